"""What does a black-box search reach with as many trainings? CMA-ES and TPE, which see validation losses alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from pzobo.bench.experiments.controls import Control
from pzobo.bench.methods import Named, Setup
from pzobo.extras import need
from pzobo.jacobians import Direct
from pzobo.outer.problem import Problem
from pzobo.tensors.trees import Plan

BOUND = 5.0
"""Every x is searched between -5 and 5: a weight sigmoid(x) of .007 to .993."""


class Sampler(Protocol):
    """Where to look next, and what was found there."""

    def ask(self) -> Any: ...

    def tell(self, x: Any, value: float) -> None: ...


class CMA:
    """CMA-ES as the package cmaes has it, from 0 with a first deviation of 1."""

    def __init__(self, size: int, seed: int) -> None:
        bounds = np.tile([-BOUND, BOUND], (size, 1))
        self._search = need("cmaes").CMA(mean=np.zeros(size), sigma=1.0, bounds=bounds, seed=seed)
        self._told: list[tuple[Any, float]] = []

    def ask(self) -> Any:
        return self._search.ask()

    def tell(self, x: Any, value: float) -> None:
        self._told.append((x, value))
        if len(self._told) == self._search.population_size:
            self._search.tell(self._told)
            self._told = []


class TPE:
    """The tree-structured Parzen estimator as Optuna has it."""

    def __init__(self, size: int, seed: int) -> None:
        optuna = need("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._size, self._trial = size, None

    def ask(self) -> Any:
        self._trial = trial = self._study.ask()
        return np.array([trial.suggest_float(f"x{i}", -BOUND, BOUND) for i in range(self._size)])

    def tell(self, x: Any, value: float) -> None:
        self._study.tell(self._trial, value)


@dataclass(frozen=True)
class Search:
    """A black-box search with as many trainings as PZOBO with a direction for each outer variable makes.

    Args:
        kind: "cma-es" or "tpe".
        setup: what all methods of the experiment share.
        trainings: of the inner model.
    """

    kind: Literal["cma-es", "tpe"]
    setup: Setup
    trainings: int

    @property
    def outer_steps(self) -> int:
        return self.trainings

    def start(self, problem: Problem, seed: int = 0) -> Searched:
        return Searched(self, problem, seed)


class Searched(Control):
    """One training a step; x and y are the best so far, and no gradient moves them."""

    def __init__(self, search: Search, problem: Problem, seed: int) -> None:
        super().__init__(problem, problem.start())
        self.search, self.seed = search, seed
        self.y = problem.y0
        setup = search.setup
        self._argmin = problem.argmin(setup.solver, Direct(), compile=setup.compile, check=setup.check, audit=False)
        self._sampler: Sampler | None = None
        self._values: list[float] = []
        self._best = float("inf")

    def attempt(self) -> float:
        x = self._ask()
        problem = self.problem
        with torch.no_grad():
            there = torch.as_tensor(x).to(self.x).reshape(self.x.shape)
            y = self._argmin(there, problem.y0, problem.train)
            value = float(problem.outer_loss(there, y, problem.val))
            if value < self._best:
                self._best, self.y = value, y
                self.x.copy_(there)
        assert self._sampler is not None
        self._sampler.tell(x, value)
        self._values.append(value)
        return self._best

    def _ask(self) -> Any:
        """Where to look next. A sampler is made anew after a state was loaded, and is told all that was found."""
        if self._sampler is None:
            kind = CMA if self.search.kind == "cma-es" else TPE
            self._sampler = kind(self.x.numel(), self.seed)
            for value in self._values:
                self._sampler.tell(self._sampler.ask(), value)
        return self._sampler.ask()

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return {**self.problem.metrics(self.x, self.y), "trainings": float(len(self._values))}

    def state_dict(self) -> dict[str, Any]:
        leaves = [t.clone() for t in Plan.take(self.y)[0]]
        return {"values": list(self._values), "best": self._best, "y": leaves, "x": self.x.detach().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._values != state["values"]:
            self._sampler, self._values = None, list(state["values"])
        self._best = float(state["best"])
        self.y = Plan.take(self.problem.y0)[1].build([t.clone() for t in state["y"]])
        with torch.no_grad():
            self.x.copy_(state["x"])


def _search(kind: Literal["cma-es", "tpe"]) -> Any:
    def build(setup: Setup, problem: Problem) -> Search:
        return Search(kind, setup, setup.outer_steps * (problem.x0.numel() + 1))

    return build


SEARCHES: dict[str, Named] = {
    "cma-es": Named("CMA-ES", "a black-box search with the trainings of pzobo-all", _search("cma-es"), tuned=False),
    "tpe": Named("TPE", "the same by the tree-structured Parzen estimator", _search("tpe"), tuned=False),
}
"""Controls for problems with few outer variables."""
