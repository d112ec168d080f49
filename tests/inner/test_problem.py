"""Are the two kinds of inner problem the same function, as far as both can be asked?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.inner.at_x import AtX
from pzobo.inner.at_z import AtZ
from pzobo.inner.kernel import Kernel
from pzobo.inner.problem import Call, InnerProblem, Questions, Reached, in_turn
from pzobo.tensors.replay import Replay
from pzobo.tensors.trees import Leaves, Plan
from tests.helpers import leaf, normal

GD = pzobo.GD(0.1, 4)


def features(x: dict[str, Tensor], batch: Tensor) -> Tensor:
    return torch.tanh(batch @ x["w"]) + x["shift"]


def loss(z: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return (z * y).sum().sin() + 0.5 * y.square().sum()


def call(count: int, own: int = 0) -> Call:
    """Two outer tensors, `count` batches, and as many of the Jacobian's own as said."""
    x = {"w": leaf(3, 2), "shift": leaf(2, seed=1), "constant": normal(1, seed=2)}
    batches = [normal(2, 3, seed=i) for i in range(count)]
    leaves, plan = Plan.take(x)
    z_plan, y_plan = Plan.take(torch.zeros(2, 2))[1], Plan.take(torch.zeros(2))[1]
    y0 = (normal(2, seed=7),)
    return Call(
        kernel=Kernel(loss, GD.update_only(), z_plan, y_plan, False),
        solver=GD,
        x_leaves=leaves,
        x_plan=plan,
        variables=tuple(t for t in leaves if t.requires_grad),
        y0=y0,
        batches=batches,
        own=[normal(2, 3, seed=50 + i) for i in range(own)],
        data=batches,
        prepare=features,
        replay=Replay(y0),
        check=True,
        questions=Questions(),
        reached=Reached(GD.steps),
    )


@pytest.mark.parametrize("count", [1, 4])
def test_both_reach_the_same_solution(count: int) -> None:
    at_x, at_z = AtX(call(count)), AtZ(call(count))
    with torch.no_grad():
        assert torch.equal(at_x.base()[0], at_z.base()[0])
    assert [t.shape for t in at_x.variables] == [(2,), (3, 2)]
    assert [t.shape for t in at_z.variables] == [(2, 2)] * count
    assert (len(at_x.points), len(at_z.points)) == (0, count)


def along(inner: InnerProblem, u: Leaves) -> Tensor:
    """dy^N/d(variables) u by central differences of whole paths."""
    e = 1e-6
    up, down = (inner.again(tuple(t + s * d for t, d in zip(inner.variables, u, strict=True)))[0] for s in (e, -e))
    return (up - down) / (2 * e)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("kind", [AtX, AtZ])
def test_tangents_are_the_derivative_of_the_feed(kind: Any, count: int) -> None:
    inner = kind(call(count))
    u = tuple(normal(*t.shape, seed=9 + i) for i, t in enumerate(inner.variables))
    with torch.no_grad():
        inner.base()
        steps = list(inner.tangents(u))
        e = 1e-6
        ends = [
            [z for z, _, times in inner.feed(tuple(t + s * d for t, d in zip(inner.variables, u, strict=True)))
             for _ in range(times)]
            for s in (e, -e)
        ]  # fmt: skip
        assert len(steps) == GD.steps
        for (z, _, slots, dot), up, down in zip(steps, *ends, strict=True):
            for slot, d in zip(slots, dot, strict=True):
                assert torch.allclose(d, (up[slot] - down[slot]) / (2 * e), atol=1e-8), slot
            assert len(z) == 1
        found = pzobo.ForwardMode().change(inner, inner.y0, functional=False)[0](u)[0]
        assert torch.allclose(found, along(inner, u), atol=1e-8)


def test_own_batches_are_asked_about_and_the_path_keeps_its_own() -> None:
    plain, own = AtZ(call(4)), AtZ(call(4, own=3))
    assert len(own.points) == 3
    with torch.no_grad():
        assert torch.equal(plain.base()[0], own.base()[0])
        moved = tuple(t + 1 for t in own.variables)
        assert torch.equal(own.solve(moved)[0], own.base()[0]), "the path does not see the Jacobian's own points"


def test_the_mixed_batch_alone_is_asked_about() -> None:
    plain, mixed = AtZ(call(4)), AtZ(replace(call(4), mixed=[normal(5, 3, seed=80)]))
    assert (list(mixed.turn), list(mixed.mixed)) == ([0, 1, 2, 3], [4])
    assert [t.shape for t in mixed.variables] == [(5, 2)], "only its z has a graph"
    with torch.no_grad():
        assert torch.equal(plain.base()[0], mixed.base()[0])


def test_a_path_without_prepare_moves_with_x_beside_other_batches() -> None:
    """The z of all batches is x itself, so another x is another path whatever batches the Jacobian has."""

    def quadratic(z: dict[str, Tensor], y: Tensor, batch: Tensor) -> Tensor:
        return (batch @ z["w"] @ y).sum() * z["shift"].sum() + 0.5 * y.square().sum()

    def made(**other: Any) -> AtZ:
        before = call(4)
        kernel = Kernel(quadratic, GD.update_only(), before.x_plan, Plan.take(before.y0[0])[1], False)
        return AtZ(replace(before, kernel=kernel, prepare=None, **other))

    extra = [normal(2, 3, seed=90)]
    plain, own, mixed = made(), made(own=extra), made(mixed=extra)
    with torch.no_grad():
        moved = tuple(t + 1 for t in plain.variables)
        assert not torch.equal(plain.solve(moved)[0], plain.base()[0])
        for other in (own, mixed):
            assert torch.equal(other.solve(moved)[0], plain.solve(moved)[0])


def test_cotangents_are_summed_by_variable() -> None:
    inner = AtZ(call(4))
    parts = {i: (torch.full((2, 2), float(i + 1), dtype=torch.float64),) for i in (0, 2)}
    found = inner.cotangents(parts)
    assert [float(t[0, 0]) for t in found] == [1.0, 0.0, 3.0, 0.0]


def test_a_feed_in_turn() -> None:
    assert list(in_turn([((1,), "a")], 7)) == [((1,), "a", 7)]
    assert [batch for _, batch, _ in in_turn([((1,), "a"), ((2,), "b")], 5)] == ["a", "b", "a", "b", "a"]
