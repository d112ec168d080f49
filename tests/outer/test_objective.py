"""Can somebody else's algorithm be given to `fit`, with a state of its own, and a Jacobian with one?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.inner.problem import InnerProblem
from pzobo.problems import quadratic


@dataclass(frozen=True)
class SingleLoop:
    """An algorithm that carries y: one inner step, and the implicit direction by one solve."""

    lr: float = 0.25

    def start(self, problem: pzobo.Problem, seed: int = 0) -> Carried:
        return Carried(problem, self.lr)


class Carried(pzobo.Objective):
    def __init__(self, problem: pzobo.Problem, lr: float) -> None:
        self.problem, self.lr = problem, lr
        self.x, self.y = problem.start(), problem.y0

    def outer_loss(self) -> Tensor:
        argmin = self.problem.argmin(pzobo.GD(self.lr, 1), pzobo.Implicit(pzobo.CG(50)))
        y = argmin(self.x, self.y, self.problem.train)
        self.y = y.detach()
        return self.problem.outer_loss(self.x, y, self.problem.val)

    def state_dict(self) -> dict[str, Any]:
        return {"y": self.y}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.y = state["y"]


def test_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    def run(steps: int, **options: Any) -> pzobo.Fit:
        return pzobo.fit(problem, SingleLoop(), steps, optimizer=torch.optim.SGD, lr=0.5, **options)

    problem = quadratic(3, 4)
    found = run(300)
    assert problem.hypergradient(found.x).norm().item() < 1e-6
    assert torch.allclose(found.y, problem.solution(found.x, problem.train), atol=1e-6)
    run(25, out=tmp_path)
    again = run(300, out=tmp_path, resume=True)
    assert torch.equal(found.x, again.x)
    assert torch.equal(found.y, again.y)


def test_what_must_be_defined_is_abstract() -> None:
    for kind in (pzobo.Objective, pzobo.Jacobian, pzobo.Solver, pzobo.Sampler):
        with pytest.raises(TypeError, match="abstract"):
            type("Empty", (kind,), {})()


def test_an_objective_without_inner_variables() -> None:
    class Plain(pzobo.Objective):
        def __init__(self) -> None:
            self.x = torch.ones(2, requires_grad=True)

        def outer_loss(self) -> Tensor:
            return self.x.square().sum()

    class Start:
        def start(self, problem: Any, seed: int = 0) -> Plain:
            return Plain()

    assert pzobo.fit(None, Start(), 3, lr=0.1).y is None


@dataclass(frozen=True)
class Alternating(pzobo.Jacobian):
    """A Jacobian with a state: Unrolled at every other call, and nothing between."""

    calls: list[int] = field(default_factory=lambda: [0], compare=False)

    def run(self, inner: InnerProblem) -> Any:
        self.calls[0] += 1
        return (pzobo.Unrolled() if self.calls[0] % 2 else pzobo.Direct()).run(inner)

    def at_start(self) -> Alternating:
        return Alternating()

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls[0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.calls[0] = state["calls"]


def test_a_jacobian_with_a_state(tmp_path: Path) -> None:
    problem, method = quadratic(3, 4), pzobo.Method(pzobo.GD(0.1, 5), Alternating())
    whole = pzobo.fit(problem, method, 9, lr=0.05)
    pzobo.fit(problem, method, 4, lr=0.05, out=tmp_path)
    assert torch.equal(whole.x, pzobo.fit(problem, method, 9, lr=0.05, out=tmp_path, resume=True).x)
    norms = [row.hypergradient_norm for row in whole.history]
    assert norms[0] != pytest.approx(norms[1], rel=0.2), "the two kinds of steps differ"


def test_a_state_of_another_jacobian_is_refused() -> None:
    problem = quadratic(3, 4)
    state = pzobo.Method(pzobo.GD(0.1, 5), Alternating()).start(problem).state_dict()
    other = pzobo.Method(pzobo.GD(0.1, 5), pzobo.PZOBO()).start(problem)
    with pytest.raises(pzobo.errors.OptionError, match=r"\['calls'\].*PZOBO has \['sampler'\]"):
        other.load_state_dict(state)
