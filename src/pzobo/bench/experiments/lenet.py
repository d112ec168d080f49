"""What does deep hyper-representation show? Figure 3: LeNet features and a linear head, on minibatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch

from pzobo.algorithms import Memory
from pzobo.bench.experiments.base import Experiment, Rates, Seeds
from pzobo.bench.experiments.bounds import FromZero, Often, Within
from pzobo.bench.methods import ALGORITHMS, STOCHASTIC, Named, Setup
from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.claims import fastest_to, insensitive, only_one_to, saturates
from pzobo.outer.bilevel import Bilevel
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.problems import Classification, deep_hr
from pzobo.solvers import GD

ACCURACY = (Panel("accuracy", "seconds"), Panel("accuracy", "step"))
FORM = "pzobo-s-authors"


@dataclass(frozen=True, kw_only=True)
class LeNet(Experiment):
    """Figure 3: deep hyper-representation, LeNet's features are the outer variables."""

    data: Literal["digits", "mnist"] = "digits"
    """The data: digits, which needs no download, or mnist, which the paper has."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and in the cache, then downloaded."""
    N: int = 10
    """The number of inner steps."""
    also_N: tuple[int, ...] = ()
    """Other numbers of inner steps, which only PZOBO-S and Direct run with (fig. 3 c)."""
    alpha: float = 0.1
    """The learning rate of the inner steps and of the implicit methods. With 0.5, AID-FP-S and stocBiO diverge."""
    mu: float = 0.1
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 1
    """The number Q of random directions in each step."""
    gamma: FromZero = 1e-3
    """The strength of the l2 term in the inner loss."""
    batch_size: int = 256
    """The number of examples in an inner or outer batch."""
    warm_start: bool = True
    """Start each inner path where the last one ended, as the authors' code does."""
    milestones: tuple[int, ...] = ()
    """The outer steps at which the learning rate falls; 80 180 in the authors' code."""
    decay: Annotated[float, Within(0, 1, closed=False)] = 0.5
    """The factor by which the learning rate falls at each milestone."""
    evaluate_rows: int = 10_000
    """The number of outer examples that the accuracy is measured on."""
    seeds: Seeds = 3
    steps: int = 300
    evaluate_every: Often = 25
    compile: bool = False
    """Compile the inner steps. A head as small as this gains nothing from it."""
    lr_grid: Rates = (0.0005, 0.002, 0.005)

    menu: ClassVar[Mapping[str, Named]] = {**STOCHASTIC, **ALGORITHMS}
    slow = frozenset({"forward", "hozog", *ALGORITHMS})
    not_settings = Experiment.not_settings | {"also_N", "root"}

    about = About(
        name="hr-lenet",
        title="Deep hyper-representation, LeNet",
        text="LeNet's features are the outer variables (60,856 weights), its linear head the inner ones, trained by N "
        "steps of SGD from where the last path ended; batches of 256 at both levels. The accuracy is on the outer "
        "data, as in the paper.",
        final="accuracy",
        higher=True,
        thresholds=(0.9, 0.95, 0.97, 0.98),
        views=(
            View(
                "Fig. 3 (a, b): MNIST",
                {"data": "mnist", "N": 10},
                (*ACCURACY, Panel("val_loss", "seconds", log=True), Panel("hypergradient_norm", "step", log=True)),
            ),
            View("Fig. 3 (c): PZOBO-S with N inner steps, MNIST", {"data": "mnist", "method": FORM}, ACCURACY, by="N"),
            View(
                "Fig. 3 (c): Direct with N inner steps, MNIST", {"data": "mnist", "method": "direct"}, ACCURACY, by="N"
            ),
            View("Digits", {"data": "digits", "N": 10}, (*ACCURACY, Panel("val_loss", "seconds", log=True))),
        ),
        claims=(
            Claim("Fig. 3 (a): PZOBO-S converges with the fastest rate.", fastest_to(0.95, {"data": "mnist", "N": 10})),
            Claim(
                "PZOBO-S is the only bilevel method that attains an accuracy of 0.98+.",
                only_one_to(0.98, {"data": "mnist", "N": 10}),
            ),
            Claim("All other bilevel methods saturate around 0.93.", saturates(0.95, {"data": "mnist", "N": 10})),
            Claim(
                "Fig. 3 (c): the convergence of PZOBO-S does not change substantially with N.",
                insensitive({"data": "mnist"}, FORM),
            ),
        ),
    )

    def variants(self) -> list[Self]:
        others = [self.only("direct", FORM, N=n) for n in self.also_N if n != self.N]
        return [self, *(other for other in others if other.methods)]

    def label(self) -> str:
        return f"{self.data}-N{self.N}"

    def setup(self) -> Setup:
        return Setup(
            GD(self.alpha, self.N),
            self.mu,
            self.directions,
            iterations=self.N,
            rate=self.alpha,
            warm_start=self.warm_start,
            batch_size=self.batch_size,
            algorithm_batch=self.batch_size,
            compile=self.compile,
            check=self.check,
        )

    def problem(self, seed: int) -> Problem:
        problem = deep_hr(self.data, root=self.root, gamma=self.gamma, seed=seed)
        rows = min(self.evaluate_rows, len(problem.test.labels))
        return replace(problem, test=type(problem.test)(*(part[:rows] for part in problem.test)))

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        assert isinstance(objective, Bilevel | Memory)
        problem, x, y = objective.problem, objective.x, objective.y
        assert isinstance(problem, Classification)
        rows = (problem.val[0][: self.evaluate_rows], problem.val[1][: self.evaluate_rows])
        found = {"accuracy": problem.accuracy(x, y, rows), "val_loss": float(problem.outer_loss(x, y, rows))}
        return found if self.data == "mnist" else {**found, "test_accuracy": problem.accuracy(x, y)}

    def scheduler(self) -> Callable[[torch.optim.Optimizer], Any] | None:
        if not self.milestones:
            return None
        return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, list(self.milestones), self.decay)

    def paper_lr(self, method: str) -> float:
        return 0.001
