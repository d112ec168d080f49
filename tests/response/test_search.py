"""Is the budget kept, is the optimum found, and is what cannot be searched refused?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pzobo.errors import NoResponseWarning, RoughResponseError
from pzobo.response.levenberg_marquardt import Terms
from pzobo.response.search import ResponseSearch
from tests.helpers import normal

A, B, FAR = normal(40, 12), normal(40, seed=1), 5 + normal(12, seed=2)


def smooth(x: Tensor) -> Tensor:
    return 4 * (A @ (x - FAR) / 4).tanh() + 0.3 * B


def search(r: Callable[[Tensor], Tensor | None], budget: int, prior: Any = None) -> tuple[ResponseSearch, list[str]]:
    kinds: list[str] = []

    def evaluate(points: Sequence[Tensor], kind: str) -> list[Tensor | None]:
        kinds.extend([kind] * len(points))
        assert len(kinds) <= budget
        assert all(bool(((x >= 0) & (x <= 10)).all()) for x in points)
        return [r(x) for x in points]

    box = torch.zeros(12).double(), torch.full((12,), 10.0).double()
    start = torch.full((12,), 5.0).double()
    terms = Terms(lambda x, r, c: r.square().mean(), 40, "scale", prior)
    found = ResponseSearch(lambda r: terms, start, *box, evaluate, budget, torch.Generator().manual_seed(0))
    return found, kinds


@pytest.mark.parametrize("budget", [4, 9, 15, 16, 40, 120])
def test_the_budget_is_kept_and_used(budget: int) -> None:
    run, kinds = search(smooth, budget)
    best = run.run()
    assert kinds[:3] == ["start", "smoothness", "smoothness"]
    assert len(kinds) == len(run.places) <= budget
    assert best.value == min(place.value for place in run.places)
    if budget >= 16:
        assert kinds.count("step") > 0
        assert best.value < 0.5 * run.places[0].value


def test_finds_the_optimum_and_restarts_with_what_is_left() -> None:
    run, kinds = search(smooth, 150)
    best = run.run()
    slope = torch.func.grad(lambda x: smooth(x).square().mean())(best.x)
    assert float(slope.abs().max()) < 0.01
    assert "restart" in kinds


def test_fits_that_fail_are_stepped_around() -> None:
    """No r where the first coordinate is above 5.05: its column is measured there in vain."""
    run, _ = search(lambda x: None if x[0] > 5.05 else smooth(x), 120)
    best = run.run()
    assert best.value < 0.5 * run.places[0].value
    assert best.x[0] <= 5.05
    assert any(place.value == math.inf for place in run.places)


def test_steps_are_refused_and_silence_is_told() -> None:
    weights, many = normal(12, seed=5), torch.arange(1, 41).double() ** 2
    rough = search(lambda x: (torch.floor(400 * (x @ weights)) * many).sin(), 60)[0]
    with pytest.raises(RoughResponseError, match="jumps"):
        rough.run()
    assert len(rough.places) < 20
    silent = search(lambda x: B, 60)[0]
    with pytest.warns(NoResponseWarning):
        best = silent.run()
    assert best is silent.places[0]
    rounding = search(lambda x: B + 1e-9 * (torch.floor(400 * (x @ weights)) * many).sin(), 60)[0]
    with pytest.warns(NoResponseWarning):
        assert rounding.run() is rounding.places[0]


def test_noise_is_measured_with_wider_differences() -> None:
    """Noise of a hundredth beside a slope of one. With a small budget fewer widths are tried."""

    def noisy(x: Tensor, part: float = 0.15) -> Tensor:
        return smooth(x) + part * (1e4 * x.sum() * torch.arange(1, 41)).sin()

    run, _ = search(noisy, 80)
    run.run()
    assert run.smoothness.width > 0.1
    assert run.smoothness.kappa < run.smoothness.found[0.1]
    for budget in (4, 5):
        run, kinds = search(lambda x: noisy(x, 0.1), budget)
        run.run()
        assert kinds == ["start"] + ["smoothness"] * (budget - 1)
