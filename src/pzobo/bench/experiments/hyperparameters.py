"""What do a thousand hyperparameters gain? Figure 5, one l2 strength for each weight; and a weight for each example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from pzobo.algorithms import Memory
from pzobo.bench.experiments.base import Experiment, Rates, Seeds
from pzobo.bench.experiments.bounds import AnyNumber, NotEmpty, Share
from pzobo.bench.experiments.controls import Plain
from pzobo.bench.experiments.global_l2 import GlobalL2
from pzobo.bench.experiments.ordinary import ORDINARY, again
from pzobo.bench.methods import ALGORITHMS, METHODS, Named, Setup
from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.claims import beats, converges_faster, finds_corrupted
from pzobo.outer.bilevel import Bilevel
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.problems import Reweighting, logistic_ho, reweighting
from pzobo.solvers import GD, HeavyBall

VAL = (Panel("val_loss", "seconds"), Panel("val_loss", "step"), Panel("test_accuracy", "seconds"))


@dataclass(frozen=True, kw_only=True)
class Logistic(Experiment):
    """Figure 5: logistic regression with one l2 strength for each weight."""

    data: Literal["digits", "newsgroups"] = "digits"
    """The data: digits, which needs no download, or newsgroups, which the paper has."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and in the cache, then downloaded."""
    N: Annotated[tuple[int, ...], NotEmpty()] = (5, 10)
    """The numbers of inner steps to run with."""
    alpha: float | None = None
    """The learning rate of the inner steps; by default 100 on newsgroups, as in the paper, and 1 on digits."""
    momentum: Share = 0.9
    """The momentum of the inner steps."""
    mu: float = 0.01
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 1
    """The number Q of random directions in each step."""
    start: AnyNumber | None = None
    """The first value of every x, the logarithm of a strength; by default one that stands for a strength of 0.0001."""
    bounded: bool = True
    """Keep every strength so small that the inner steps are stable."""
    warm_start: bool = True
    """Start each inner path where the last one ended, as Grazzi et al. (2020) do, whom the paper follows."""
    seeds: Seeds = 1
    steps: int = 200
    lr_grid: Rates = (0.02, 0.1, 0.5)

    slow = frozenset({"forward", *ALGORITHMS})
    menu: ClassVar[Mapping[str, Named]] = {
        **METHODS,
        **ALGORITHMS,
        "global-l2": Named(
            "One global l2, scikit-learn",
            "the best of a grid of one strength for all weights",
            lambda setup, problem: GlobalL2(),
            tuned=False,
        ),
        **ORDINARY,
    }
    not_settings = Experiment.not_settings | {"root"}

    about = About(
        name="ho-logistic",
        title="Hyperparameter optimization, one l2 strength for each weight",
        text="Logistic regression; the outer variables are the logarithms of the l2 strengths, as many as weights "
        "(20 Newsgroups: 2,602,140), learnt on a validation half. f does not contain x, so "
        "Direct never moves: it is plain training with the first strengths.",
        final="val_loss",
        beside=("test_accuracy", "refit_test_accuracy"),
        thresholds=(1.0, 0.8, 0.7),
        views=tuple(
            View(
                f"Fig. 5: {data}, N = {n}",
                {"data": data, "N": n},
                (*VAL, Panel("hypergradient_norm", "step", log=True)),
            )
            for data in ("newsgroups", "digits")
            for n in (5, 10)
        ),
        claims=(
            Claim(
                "Fig. 5: PZOBO slightly outperforms HOZOG.",
                beats("pzobo", "hozog", {"data": "newsgroups", "N": (5, 10)}),
            ),
            Claim(
                "Fig. 5: PZOBO converges faster than the AID and ITD based approaches.",
                converges_faster(("aid-cg", "aid-fp", "itd-r"), {"data": "newsgroups", "N": (5, 10)}),
            ),
        ),
    )

    def variants(self) -> list[Self]:
        return [replace(self, N=(n,)) for n in self.N]

    def label(self) -> str:
        return f"{self.data}-N{self.N[0]}"

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "N": self.N[0]}

    def setup(self) -> Setup:
        rate = self.alpha or (100.0 if self.data == "newsgroups" else 1.0)
        solver = HeavyBall(rate, self.momentum, self.N[0])
        return Setup(
            solver,
            self.mu,
            self.directions,
            iterations=self.N[0],
            rate=rate,
            warm_start=self.warm_start,
            compile=self.compile,
            check=self.check,
            converged=(solver.with_steps(100), 200) if self.data == "digits" else None,
        )

    def chosen(self) -> tuple[str, ...]:
        # Newsgroups has no exact hypergradient to be had in a reasonable time.
        found = super().chosen()
        return found if self.methods or self.data == "digits" else tuple(m for m in found if m != "exact")

    def problem(self, seed: int) -> Problem:
        problem = logistic_ho(self.data, root=self.root, seed=seed)
        start = math.log(1e-4 * problem.x0.numel()) if self.start is None else self.start
        return replace(problem, x0=torch.full_like(problem.x0, start))

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        return {**self.evaluate(objective), **again(objective, self.setup().solver.with_steps(200))}

    def optimizer(self, variables: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """Adam, projected onto strengths s with which the inner steps are stable: alpha s / (d c) <= 1.

        A weight that only does harm wants an infinite strength, and gets there: without the bound the inner path
        leaves the finite numbers after some hundred steps with any Jacobian that is good enough.
        """
        made = torch.optim.Adam(variables, lr=lr)
        limit = math.log(sum(t.numel() for t in variables) / self.setup().rate)

        def project(*_: object) -> None:
            with torch.no_grad():
                for t in variables:
                    t.clamp_(max=limit)

        if self.bounded:
            made.register_step_post_hook(project)
        return made

    def paper_lr(self, method: str) -> float:
        return 0.02


@dataclass(frozen=True, kw_only=True)
class Reweight(Experiment):
    """New here: a weight for each training example, some of whose labels are wrong."""

    corruption: Share = 0.4
    """The share of training labels that are changed to wrong ones."""
    N: int = 20
    """The number of inner steps."""
    alpha: float = 1.0
    """The learning rate of the inner steps."""
    mu: float = 0.1
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 8
    """The number Q of random directions in each step."""
    seeds: Seeds = 3
    lr_grid: Rates = (0.02, 0.05, 0.1, 0.2)

    slow = frozenset({"forward", *ALGORITHMS})
    menu: ClassVar[Mapping[str, Named]] = {**METHODS, **ALGORITHMS, **ORDINARY}

    about = About(
        name="reweight",
        title="Data reweighting with corrupted labels",
        text="scikit-learn's digits with 40 % of the training labels changed; the outer variables weigh the 600 "
        "training examples, the outer loss is that of clean validation data. AUC: how well the weights tell right "
        "labels from wrong ones.",
        final="test_accuracy",
        higher=True,
        beside=("refit_test_accuracy", "auc"),
        thresholds=(0.8, 0.85, 0.9),
        views=(
            View(
                "Reweighting",
                {},
                (
                    Panel("test_accuracy", "seconds"),
                    Panel("test_accuracy", "step"),
                    Panel("auc", "step"),
                    Panel("outer_loss", "step"),
                ),
            ),
        ),
        claims=(
            Claim("(Ours, not the paper's) The weights tell corrupted labels from right ones.", finds_corrupted()),
        ),
    )

    def label(self) -> str:
        return f"corruption{self.corruption:g}"

    def setup(self) -> Setup:
        solver = GD(self.alpha, self.N)
        return Setup(
            solver,
            self.mu,
            self.directions,
            iterations=self.N,
            rate=self.alpha,
            compile=self.compile,
            check=self.check,
            converged=(solver.with_steps(200), 200),
        )

    def problem(self, seed: int) -> Problem:
        return reweighting(corruption=self.corruption, seed=seed)

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        if isinstance(objective, Plain):
            return objective.evaluate()
        assert isinstance(objective, (Bilevel, Memory))
        assert isinstance(objective.problem, Reweighting)
        return {**objective.evaluate(), "auc": auc(objective.x, objective.problem.corrupted)}

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        return {**self.evaluate(objective), **again(objective, GD(self.alpha, 200))}

    def paper_lr(self, method: str) -> float:
        return 0.1


def auc(weights: torch.Tensor, corrupted: torch.Tensor) -> float:
    """The chance that a right label has a larger weight than a wrong one, ties by half."""
    right, wrong = weights[~corrupted].detach(), weights[corrupted].detach().sort().values
    below, not_above = (torch.searchsorted(wrong, right, side=side) for side in ("left", "right"))
    return float((below + not_above).double().mean() / (2 * len(wrong)))
