"""Who wins on the field's own benchmark? Data cleaning and simulated quadratics, by Jacobians and algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pzobo.algorithms import Memory
from pzobo.bench.experiments.base import Experiment, Rates, Seeds
from pzobo.bench.experiments.bounds import AnyNumber, NotEmpty, Share
from pzobo.bench.experiments.controls import Control
from pzobo.bench.experiments.hyperparameters import auc
from pzobo.bench.experiments.ordinary import ORDINARY, again
from pzobo.bench.methods import ALGORITHMS, BATCHED, METHODS, SMALL, Named, Setup
from pzobo.bench.report.about import About, Panel, View
from pzobo.jacobians import Direct
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.problems import Reweighting, SimulatedQuadratics, data_cleaning, simulated_quadratics
from pzobo.solvers import GD, HeavyBall, Solver


def called(objective: Objective) -> dict[str, float]:
    """How often the oracles of an algorithm were called, as gradients: a product counts as two."""
    if not isinstance(objective, Memory):
        return {}
    calls = objective.at.calls
    return {"oracle_calls": float(calls["f"] + calls["g"] + 2 * calls["products"])}


def solved(objective: Objective, solver: Solver) -> dict[str, float]:
    """The metrics of x with the inner problem solved for it, from y0. The y of a penalty method is no solution: it
    is pulled towards f, so its own loss is lower than that of the model which x stands for."""
    problem = getattr(objective, "problem", None)
    if not isinstance(problem, Problem) or isinstance(objective, Control):
        return {}
    with torch.no_grad():
        y = problem.argmin(solver, Direct())(objective.x, problem.y0, problem.train)
        return {f"solved_{key}": value for key, value in problem.metrics(objective.x, y).items()}


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True, kw_only=True)
class Benchmark(Experiment):
    """What both problems share: every method with each outer optimizer, whose learning rates are searched apart."""

    outer: Annotated[tuple[Literal["sgd", "adam"], ...], NotEmpty()] = ("sgd", "adam")
    """The outer optimizers; each method runs with each of them."""
    batch_size: int = 64
    """The rows of a batch of the algorithms; the Jacobians see all data."""
    compile_algorithms: bool = False
    """Compile whole steps of the algorithms, and many in one call with sgd: for long runs."""
    seeds: Seeds = 3

    def variants(self) -> list[Self]:
        # What has no lr is the same with every optimizer: it runs with the first.
        first, *others = dict.fromkeys(self.outer)
        tuned = [name for name in self.chosen() if self.menu[name].tuned]
        return [replace(self, outer=(first,)), *(self.only(*tuned, outer=(other,)) for other in others if tuned)]

    def family(self) -> str:
        return self.outer[0]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "outer": self.outer[0]}

    def optimizer(self, variables: list[Tensor], lr: float) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.outer[0]](variables, lr=lr)


@dataclass(frozen=True, kw_only=True)
class DataCleaning(Benchmark):
    """New here: the data cleaning of benchopt's benchmark_bilevel."""

    data: Literal["digits", "mnist", "fashion"] = "digits"
    """The data: digits, which needs no download, mnist, which the benchmark has, or fashion (FashionMNIST)."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and in the cache, then downloaded."""
    corruption: Share = 0.5
    """The share of training labels that are drawn at random."""
    start: AnyNumber = -2.0
    """Every x at first."""
    N: int = 4
    """The number of inner steps of the Jacobians, from where the last path ended."""
    alpha: float = 0.1
    """The learning rate of the inner steps."""
    batch_alpha: float = 0.02
    """The learning rate of the inner variables of the algorithms. With 0.1, batches of 64 keep them in noise."""
    mu: float = 0.1
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 8
    """The number Q of random directions in each step."""
    steps: int = 200
    lr_grid: Rates = (0.05, 0.5, 5.0, 20.0, 200.0, 2000.0)

    slow = frozenset({"forward", "exact"})
    menu: ClassVar[Mapping[str, Named]] = {**METHODS, **BATCHED, **ALGORITHMS, **ORDINARY}
    not_settings = Benchmark.not_settings | {"root"}

    about = About(
        name="data-cleaning",
        title="Data cleaning, as in benchmark_bilevel",
        text="Softmax regression on images, many of whose labels are random; the outer variables weigh the training "
        "images. f does not contain x, so Direct never moves: it is plain training with equal weights. AUC: how "
        "well the weights tell right labels from wrong ones.",
        final="val_loss",
        beside=("solved_val_loss", "test_accuracy", "solved_test_accuracy", "refit_test_accuracy", "auc"),
        settings=("outer",),
        views=tuple(
            View(
                f"Data cleaning: {data}",
                {"data": data},
                (
                    Panel("val_loss", "seconds"),
                    Panel("val_loss", "oracle_calls"),
                    Panel("test_accuracy", "seconds"),
                    Panel("auc", "seconds"),
                ),
            )
            for data in ("mnist", "fashion", "digits")
        ),
    )

    def label(self) -> str:
        return f"{self.data}-corruption{self.corruption:g}-{self.outer[0]}"

    @property
    def to_the_end(self) -> HeavyBall:
        """Solves the inner problem: the best momentum for the curvature 0.4 of 0.2 |y|^2. GD takes 500 steps for it."""
        return HeavyBall(self.alpha, (1 - (0.4 * self.alpha) ** 0.5) ** 2, 60)

    def setup(self) -> Setup:
        return Setup(
            GD(self.alpha, self.N),
            self.mu,
            self.directions,
            iterations=6,
            rate=self.alpha,
            warm_start=True,
            compile=self.compile,
            check=self.check,
            converged=(self.to_the_end, 200),
            algorithm_batch=self.batch_size,
            compile_algorithms=self.compile_algorithms,
            algorithm_rate=self.batch_alpha,
        )

    def problem(self, seed: int) -> Reweighting:
        return data_cleaning(self.data, corruption=self.corruption, start=self.start, seed=seed, root=self.root)

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        problem = getattr(objective, "problem", None)
        found: dict[str, float] = {}
        if isinstance(problem, Reweighting) and objective.x.shape == problem.corrupted.shape:
            found["auc"] = auc(objective.x, problem.corrupted)
        return {**objective.evaluate(), **found, **called(objective)}

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        solver = self.to_the_end
        return {**self.evaluate(objective), **solved(objective, solver), **again(objective, solver)}

    def judge(self, objective: Objective) -> Mapping[str, float]:
        # By what x is worth: a y that is fitted to the validation data would choose the rate that fits it best.
        return {"judged": solved(objective, self.to_the_end)["solved_val_loss"]}

    def paper_lr(self, method: str) -> float:
        return 0.1 if self.outer[0] == "adam" else 10.0


@dataclass(frozen=True, kw_only=True)
class Quadratics(Benchmark):
    """New here: the simulated quadratics of benchopt's benchmark_bilevel, whose optimum is known."""

    p: int = 20
    """The number of outer variables."""
    d: int = 20
    """The number of inner variables."""
    n: int = 1024
    """The rows of both means."""
    N: int = 10
    """The number of inner steps of the Jacobians, from where the last path ended."""
    alpha: float = 0.3
    """The learning rate of the inner steps."""
    mu: float = 0.01
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 4
    """The number Q of random directions in each step."""
    steps: int = 500
    lr_grid: Rates = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

    slow = frozenset({"forward"})
    menu: ClassVar[Mapping[str, Named]] = {**METHODS, **ALGORITHMS, **SMALL}

    about = About(
        name="quadratics",
        title="Simulated quadratics, as in benchmark_bilevel",
        text="Means of random quadratics. The value function Phi(x) = f(x, y*(x)) is known: the table shows the square "
        "of its gradient.",
        final="squared_gradient",
        beside=("gap", "inner_distance"),
        settings=("outer",),
        thresholds=(1e-1, 1e-2, 1e-4),
        views=(
            View(
                "Simulated quadratics",
                {},
                (
                    Panel("squared_gradient", "seconds", log=True),
                    Panel("squared_gradient", "step", log=True),
                    Panel("squared_gradient", "oracle_calls", log=True),
                    Panel("gap", "seconds", log=True),
                ),
            ),
        ),
    )

    def label(self) -> str:
        return f"p{self.p}-d{self.d}-n{self.n}-{self.outer[0]}"

    def setup(self) -> Setup:
        solver = GD(self.alpha, self.N)
        return Setup(
            solver,
            self.mu,
            self.directions,
            iterations=self.N,
            rate=self.alpha,
            warm_start=True,
            compile=self.compile,
            check=self.check,
            algorithm_batch=self.batch_size,
            compile_algorithms=self.compile_algorithms,
        )

    def problem(self, seed: int) -> SimulatedQuadratics:
        return simulated_quadratics(self.p, self.d, self.n, seed=seed)

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        problem = getattr(objective, "problem", None)
        assert isinstance(problem, SimulatedQuadratics)
        found = objective.evaluate()
        gap = found["value"] - float(problem.value(problem.optimum()))
        return {**found, "gap": gap, **called(objective)}

    def paper_lr(self, method: str) -> float:
        return 0.1
