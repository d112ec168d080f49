"""Whose is x.grad after a step? The caller's: whatever is written into it, the next step is the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pzobo.algorithms import Algorithm, Oracles, Step, Vector
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Logistic


@dataclass(frozen=True)
class Carried:
    y: Vector


@dataclass(frozen=True)
class Direct(Algorithm[Carried]):
    """D = df/dx, in which nothing is added."""

    def begin(self, at: Oracles) -> Carried:
        return Carried(at.y0)

    def step(self, at: Oracles, now: Carried) -> Step[Carried]:
        f = at.f(at.x, now.y, at.outer_batch())
        return Step(Carried(now.y.step(0.1, f.y)), f.value, f.x)


def path(method: Algorithm[Any], problem: Any, spoil: bool) -> tuple[Tensor, Tensor]:
    """x and y after five steps; with `spoil`, each gradient is overwritten after it was used."""
    objective = method.start(problem, 1)
    for _ in range(5):
        objective.x.grad = None
        objective.hypergradient()
        assert objective.x.grad is not None
        with torch.no_grad():
            objective.x -= 0.1 * objective.x.grad
            if spoil:
                objective.x.grad.fill_(float("nan"))
    return objective.x.detach().clone(), objective.y.clone()


def methods() -> dict[str, Algorithm[Any]]:
    sizes = {"batch_size": 5, "outer_batch_size": 4}
    return {"Direct": Direct(**sizes), **{name: make(name, **sizes) for name in NUMBERS}}


@pytest.mark.parametrize("has_x", [True, False], ids=["f of x and y", "f of y"])
@pytest.mark.parametrize("name", methods())
def test_a_gradient_that_is_overwritten_changes_no_step(name: str, has_x: bool) -> None:
    problem = Logistic().problem()
    if not has_x:
        problem = replace(problem, outer_loss=lambda x, y, batch: (batch[0] @ y).square().mean())
    plain, spoiled = (path(methods()[name], problem, spoil) for spoil in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, spoiled, strict=True))
    assert torch.isfinite(plain[0]).all()


def test_a_gradient_is_added_to_one_that_is_there() -> None:
    problem = Logistic().problem()
    once, twice = (make("MASOBA").start(problem, 1) for _ in range(2))
    once.hypergradient()
    twice.x.grad = torch.ones_like(twice.x)
    twice.hypergradient()
    assert torch.equal(twice.x.grad, once.x.grad + 1)
