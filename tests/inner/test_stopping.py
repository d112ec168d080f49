"""Does a path end when its gradient is small enough, and do all Jacobians then speak of the steps that were made?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.inner import compiled
from tests.helpers import bowl, descend, leaf, normal, relative_error

TOL = 0.05


def by_hand(x: Tensor, y0: Tensor) -> tuple[Tensor, int]:
    """Plain gradient descent until |dg/dy| <= TOL, after at least one step."""
    for steps in range(1, 100):
        y = descend(lambda y: bowl(x, y), y0, lr=0.2, steps=steps)
        if torch.autograd.grad(bowl(x, y), y, retain_graph=True)[0].norm() <= TOL:
            return y, steps
    raise AssertionError


JACOBIANS = {
    "unrolled": pzobo.Unrolled(),
    "checkpoint": pzobo.Unrolled(checkpoint=True),
    "pzobo": pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True),
    "pzobo, vmap": pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(), shrink=False, antithetic=True, batching="vmap"),
    "forward mode": pzobo.ForwardMode(3, pzobo.Orthogonal(seed=0), shrink=False),
}


@pytest.mark.parametrize(
    ("name", "compile"), [*[(name, False) for name in JACOBIANS], ("unrolled", True), ("pzobo", True)]
)
def test_the_steps_that_were_made_are_differentiated(name: str, compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graph.forward)
    x, y0 = leaf(3), 2 * normal(3, seed=1)
    expected, steps = by_hand(x, y0)
    assert 2 < steps < 40
    solver = pzobo.GD(0.2, 60, tol=TOL)
    argmin = pzobo.Argmin(bowl, solver=solver, jacobian=JACOBIANS[name], compile=compile, audit="error")
    y = argmin(x, y0)
    assert argmin.last.steps == steps
    torch.testing.assert_close(y.detach(), expected.detach(), rtol=1e-12, atol=0)
    found, truth = (torch.autograd.grad(t.square().sum(), x)[0] for t in (y, expected))
    assert relative_error(found, truth) < (1e-6 if "pzobo" in name else 1e-11)


@pytest.mark.parametrize("jacobian", [pzobo.Implicit(pzobo.CG()), pzobo.Nudged(steps=60)], ids=["implicit", "nudged"])
def test_what_speaks_of_a_solution_is_right_where_the_tolerance_is_small(jacobian: Any) -> None:
    x, y0 = leaf(3), normal(3, seed=1)
    argmin = pzobo.Argmin(bowl, solver=pzobo.GD(0.2, 400, tol=1e-9), jacobian=jacobian, audit="error")
    y = argmin(x, y0)
    assert argmin.last.gradient_norm <= 1e-9
    assert 20 < argmin.last.steps < 400
    found = torch.autograd.grad(y.square().sum(), x)[0]
    exact = torch.autograd.grad(descend(lambda y: bowl(x, y), y0, 0.2, 300).square().sum(), x)[0]
    assert relative_error(found, exact) < 1e-5


def test_at_least_one_step_is_made_and_at_most_all() -> None:
    x = leaf(3)
    argmin = pzobo.Argmin(bowl, solver=pzobo.GD(0.2, 5, tol=1e-12), jacobian=pzobo.Unrolled())
    solved = descend(lambda y: bowl(x.detach(), y), normal(3, seed=1), 0.2, 300).detach()
    argmin(x, normal(3, seed=1))
    assert argmin.last.steps == 5
    argmin.solver = pzobo.GD(0.2, 5, tol=1e-6)
    y = argmin(x, solved)
    assert argmin.last.steps == 1
    assert torch.autograd.grad(y.sum(), x)[0].any()


def test_batches_of_the_steps_that_are_not_made_are_not_seen() -> None:
    """The second batch has a zero gradient; the third would be far away."""
    x, seen = torch.ones(2, dtype=torch.float64, requires_grad=True), []

    def inner_loss(z: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return batch * 0.5 * (y - z).square().sum()

    def prepare(x: Tensor, batch: Tensor) -> Tensor:
        seen.append(float(batch))
        return x * 2

    batches = [torch.tensor(b, dtype=torch.float64) for b in (1.0, 0.0, 100.0)]
    jacobian = pzobo.PZOBO(1e-4, 2, pzobo.Orthogonal(seed=0), shrink=False, at="x")
    argmin = pzobo.Argmin(
        inner_loss, solver=pzobo.GD(0.5, 3, tol=1e-8), jacobian=jacobian, prepare=prepare, audit=False
    )
    y = argmin(x, torch.zeros(2, dtype=torch.float64), batches=batches)
    assert argmin.last.steps == 1
    seen.clear()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.ones(2).double(), rtol=1e-6, atol=0)
    assert set(seen) == {1.0}
    for jacobian in (pzobo.Unrolled(), pzobo.ForwardMode(2, pzobo.Orthogonal(seed=0), shrink=False)):
        argmin.jacobian = jacobian
        y = argmin(x, torch.zeros(2, dtype=torch.float64), batches=batches)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.ones(2).double(), rtol=1e-10, atol=0)


def test_another_tolerance_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graphs.append(graph) or graph.forward)
    argmin = pzobo.Argmin(
        lambda x, y, batch: bowl(x, y), solver=pzobo.GD(0.2, 60, tol=TOL), jacobian=pzobo.Direct(), compile=True
    )
    x, y0 = normal(3), normal(3, seed=1)
    argmin(x, y0)
    made, before = argmin.last.steps, len(graphs)
    argmin.solver = pzobo.GD(0.25, 80, tol=TOL / 100)
    argmin(x, y0)
    assert argmin.last.steps > made
    assert len(graphs) == before > 0
    eager = pzobo.Argmin(bowl, solver=argmin.solver, jacobian=pzobo.Direct())
    eager(x, y0)
    assert argmin.last.steps == eager.last.steps
