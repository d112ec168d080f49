"""Are operations on lists of tensors those on each, also in a torch that has none for lists?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.tensors.many import TOGETHER, groups, many
from tests.helpers import normal


@pytest.fixture(params=["as it is", "without"])
def maybe_without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        for name in [name for name in dir(torch) if name.startswith("_foreach_")]:
            monkeypatch.delattr(torch, name)


@pytest.mark.usefixtures("maybe_without")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_gets_its_own_or_the_same(count: int) -> None:
    a, b = ([normal(2, 3, seed=10 * k + i) for i in range(count)] for k in range(2))
    scale = torch.tensor(0.5, dtype=torch.float64)
    assert_same(many("add", a, b, alpha=2.0), [s + 2 * t for s, t in zip(a, b, strict=True)])
    assert_same(many("div", tuple(a), tuple(b)), [s / t for s, t in zip(a, b, strict=True)])
    assert_same(many("div", a, scale), [s / scale for s in a])
    assert_same(many("sqrt", many("mul", a, a)), [s.abs() for s in a])
    expected = [torch.lerp(s, t, 0.1) for s, t in zip(a, b, strict=True)]
    written = [t.clone() for t in a]
    many("lerp_", written, b, 0.1)
    assert_same(written, expected)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


SOLVERS: list[Any] = [
    pzobo.GD(0.1, 5),
    pzobo.HeavyBall(0.1, 0.9, 5, nesterov=True),
    pzobo.Adam(0.1, 5),
    pzobo.AdamW(0.1, 5),
]


@pytest.mark.usefixtures("maybe_without")
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_paths_of_many_tensors_have_the_bits_of_pure_updates(solver: Any) -> None:
    y = tuple(normal(3, 4, seed=i) for i in range(3))
    goal = tuple(normal(3, 4, seed=5 + i) * (i > 0) for i in range(3))
    argmin = pzobo.Argmin(
        lambda x, y, batch: sum((0.5 * (s - t).square() * (t != 0)).sum() for s, t in zip(y, goal, strict=True)),
        solver=solver,
        jacobian=pzobo.Direct(),
    )
    found, state = argmin((), list(y)), solver.init(y)
    for _ in range(5):
        gradient = tuple((s - t) * (t != 0) for s, t in zip(y, goal, strict=True))
        y, state = solver.update(gradient, y, state)
    assert all(torch.equal(a, b) for a, b in zip(found, y, strict=True))


@pytest.mark.parametrize("count", [1, 3])
def test_a_gradient_that_is_not_a_number_is_not_lost_in_adam(count: int) -> None:
    """It was taken for one that is zero."""
    argmin = pzobo.Argmin(
        lambda x, y, batch: sum(t.sum() for t in y) * torch.nan, solver=pzobo.Adam(0.1, 3), jacobian=pzobo.Direct()
    )
    with pytest.raises(pzobo.errors.DivergenceError):
        argmin((), [torch.zeros(2) for _ in range(count)])


def test_a_group_has_one_device_and_one_dtype_and_is_small() -> None:
    def found(*tensors: Tensor) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in groups(tensors)]

    small, large = torch.zeros(3), torch.zeros(TOGETHER // 4, device="meta")
    assert found() == []
    assert found(small) == [(0, 1)]
    assert found(small, small, small) == [(0, 3)]
    assert found(small, small.double(), small.to("meta"), small.to("meta")) == [(0, 1), (1, 2), (2, 4)]
    assert found(large, large, small.to("meta"), small.to("meta")) == [(0, 1), (1, 2), (2, 4)]
