"""Where does bilevel optimization win? Few weights for sources of data, a network trained inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pzobo.bench.experiments.base import Experiment, Rates, Seeds
from pzobo.bench.experiments.bounds import NotEmpty
from pzobo.bench.experiments.controls import Plain
from pzobo.bench.experiments.memory import called
from pzobo.bench.experiments.ordinary import ORDINARY, again
from pzobo.bench.experiments.searches import BOUND, SEARCHES
from pzobo.bench.methods import ALGORITHMS, METHODS, SMALL, Named, Setup
from pzobo.bench.report.about import About, Panel, View
from pzobo.jacobians import PZOBO
from pzobo.outer.gauss_newton import GaussNewton
from pzobo.outer.method import Method
from pzobo.outer.objective import Objective, Startable
from pzobo.outer.problem import Problem
from pzobo.problems import SourceWeights, source_weights
from pzobo.solvers import Adam
from pzobo.zeroth_order.directions import Orthogonal


@dataclass(frozen=True)
class Network:
    """The ordinary model: the same network without weights, on all images alike or on those of the target alone."""

    setup: Setup
    data: Literal["all", "clean"]

    @property
    def outer_steps(self) -> int:
        return 1

    def start(self, problem: SourceWeights, seed: int = 0) -> Plain:
        return Plain(problem, lambda: self.fit(problem))

    def fit(self, problem: SourceWeights) -> dict[str, float]:
        """The network's metrics after one training."""
        assert problem.all_data is not None
        weights, batch = problem.all_data(problem.x0, problem.train, problem.val)
        if self.data == "clean":
            batch = (*problem.val, torch.zeros_like(problem.val[1]))

        argmin = Problem(problem.inner_loss, problem.outer_loss, weights, problem.y0).argmin(self.setup.solver, PZOBO())
        with torch.no_grad():
            return problem.metrics(problem.x0, argmin(torch.ones_like(weights), problem.y0, batch))


def _all_directions(setup: Setup, problem: Problem) -> Startable:
    """PZOBO with a direction for each outer variable: no noise."""
    p = problem.x0.numel()
    return Method(
        setup.solver, PZOBO(setup.mu, p, Orthogonal(), shrink=False, at="x"), compile=setup.compile, check=setup.check
    )


def _gauss_newton(setup: Setup, problem: Any) -> Startable:
    """Steps by the response of the target images' logits; an eighth of its columns is renewed at each."""

    def outputs(x: Tensor, y: Any, val: Any) -> Tensor:
        logits: Tensor = problem.logits(x, y, val[0])
        return logits

    def loss(logits: Tensor, val: Any) -> Tensor:
        return cross_entropy(logits, val[1])

    columns = max(1, problem.x0.numel() // 8)
    return GaussNewton(
        setup.solver,
        PZOBO(setup.mu, columns),
        outputs,
        loss,
        low=-BOUND,
        high=BOUND,
        compile=setup.compile,
        check=setup.check,
    )


@dataclass(frozen=True, kw_only=True)
class Sources(Experiment):
    """New here: one weight for each source of training data."""

    data: Literal["digits", "mnist"] = "digits"
    """The data: digits, which needs no download, or mnist."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and in the cache, then downloaded."""
    sources: Annotated[tuple[int, ...], NotEmpty()] = (8,)
    """The numbers of sources to run with."""
    size: int | None = None
    """Images of each source. By default as many as the data has for all of them, at most 2,000."""
    N: int = 100
    """The number of inner steps."""
    alpha: float = 0.01
    """The learning rate of the inner steps, which are Adam's."""
    mu: float = 0.1
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 4
    """The number Q of random directions in each step; pzobo-all has one for each source."""
    batch_size: int = 128
    """The rows of an inner batch of the algorithms; the Jacobians see all data."""
    seeds: Seeds = 3
    steps: int = 25
    lr_grid: Rates = (0.1, 0.3, 1.0)

    # CG and the exact one need a solved inner problem, and a network's is not.
    slow = frozenset({"exact", "aid-cg", "aid-fp", "aid-cg-difference", "aid-fp-difference", *ALGORITHMS, *SMALL})
    menu: ClassVar[Mapping[str, Named]] = {
        **METHODS,
        "pzobo-all": Named("PZOBO, all directions", "a direction for each source: no noise", _all_directions),
        "gauss-newton": Named(
            "Gauss-Newton", "steps by the measured response of the logits, with a prior", _gauss_newton, tuned=False
        ),
        **ALGORITHMS,
        **SMALL,
        **SEARCHES,
        **ORDINARY,
        "alike": Named(
            "The network, all data alike",
            "the ordinary model: sources and target images, all of weight 1",
            lambda s, p: Network(s, "all"),
            tuned=False,
        ),
        "target-alone": Named(
            "The network, target data",
            "trained on the target images alone",
            lambda s, p: Network(s, "clean"),
            tuned=False,
        ),
    }
    not_settings = Experiment.not_settings | {"root"}

    about = About(
        name="source-weights",
        title="Source weights: which data is worth learning from",
        text="A tanh network trained by Adam on sources of images with ever more wrong labels; the outer variables "
        "weigh the sources, the outer loss is that of 60 target images. Direct leaves all weights alike: it is "
        "training on all sources.",
        final="test_accuracy",
        higher=True,
        beside=("val_loss", "refit_test_accuracy", "rank"),
        thresholds=(0.9, 0.92, 0.94),
        views=(
            View(
                "Source weights",
                {},
                (Panel("test_accuracy", "seconds"), Panel("test_accuracy", "step"), Panel("val_loss", "step")),
            ),
        ),
    )

    def variants(self) -> list[Self]:
        return [replace(self, sources=(k,)) for k in self.sources]

    def label(self) -> str:
        return f"{self.data}-K{self.sources[0]}" + (f"-size{self.size}" if self.size is not None else "")

    def family(self) -> str:
        return self.label()

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "sources": self.sources[0]}

    def setup(self) -> Setup:
        return Setup(
            Adam(self.alpha, self.N),
            self.mu,
            self.directions,
            iterations=10,
            rate=self.alpha,
            compile=self.compile,
            check=self.check,
            algorithm_batch=self.batch_size,
            outer_whole=True,
            algorithm_rate=10 * self.alpha,  # gradient descent moves a network less than Adam does with the same lr
            outer_steps=self.steps,
        )

    def problem(self, seed: int) -> SourceWeights:
        k = self.sources[0]
        return source_weights(self.data, sources=k, size=self.size, seed=seed, root=self.root)

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        problem = getattr(objective, "problem", None)
        rank = {"rank": _rank(objective.x.detach(), problem.wrong)} if _weighs(problem, objective) else {}
        return {**objective.evaluate(), **rank, **called(objective)}

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        weighs = _weighs(getattr(objective, "problem", None), objective)
        weights = objective.x.detach().sigmoid().tolist() if weighs else []
        named = {f"weight_{k}": weight for k, weight in enumerate(weights)}
        return {**self.evaluate(objective), **named, **again(objective, self.setup().solver)}

    def paper_lr(self, method: str) -> float:
        return 0.3


def _weighs(problem: object, objective: Objective) -> TypeGuard[SourceWeights]:
    """Whether x has a weight for each source; a control's has not."""
    return isinstance(problem, SourceWeights) and objective.x.shape == problem.wrong.shape


def _rank(x: torch.Tensor, wrong: torch.Tensor) -> float:
    """The rank correlation of the weights with how right the sources are; 1 is the right order."""
    if len(x) < 2 or x.unique().numel() == 1:
        return 0.0
    order, truth = (t.argsort().argsort().double() for t in (x, -wrong.to(x)))
    found: torch.Tensor = torch.corrcoef(torch.stack([order, truth]))[0, 1]
    return float(found)
