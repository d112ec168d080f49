"""What does shallow hyper-representation show? Figures 1 and 2, on synthetic data: linear and two-layer features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from pzobo.algorithms import Memory
from pzobo.bench.experiments.base import Experiment, Rates
from pzobo.bench.experiments.bounds import FromZero, NotEmpty
from pzobo.bench.experiments.quality import at_solution, cosine
from pzobo.bench.methods import ALGORITHMS, METHODS, Named, Setup
from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.claims import beats_all, hozog_flat, hozog_stuck, hozog_worse, insensitive
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.problems import linear_hr, two_layer_hr
from pzobo.solvers import GD

LOSS = (Panel("outer_loss", "seconds", log=True), Panel("outer_loss", "step", log=True))
NORM = Panel("hypergradient_norm", "step", log=True)
QUALITY = Panel("cosine", "step")


@dataclass(frozen=True, kw_only=True)
class Shallow(Experiment):
    """What both kinds of features share."""

    N: int = 20
    """The number of inner steps."""
    also_N: tuple[int, ...] = ()
    """Other numbers of inner steps, which only PZOBO and Direct run with."""
    alpha: float = 1e-3
    """The learning rate of the inner steps."""
    mu: float = 0.01
    """The length of the perturbation of PZOBO and HOZOG."""
    directions: int = 1
    """The number Q of random directions in each step."""
    gamma: FromZero = 0.1
    """The strength of the l2 term in the inner loss."""
    noise: FromZero = 0.1
    """The standard deviation of the noise in the data's targets."""

    menu: ClassVar[Mapping[str, Named]] = {**METHODS, **ALGORITHMS}
    slow = frozenset(ALGORITHMS)
    not_settings = Experiment.not_settings | {"also_N"}
    n_methods = ("direct", "pzobo", "pzobo-authors")

    def setup(self) -> Setup:
        solver = GD(self.alpha, self.N)
        return Setup(
            solver, self.mu, self.directions, iterations=self.N, rate=self.alpha, compile=self.compile, check=self.check
        )

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        return {**cosine(objective, GD(self.alpha, self.N)), **at_solution(objective)}

    def judge(self, objective: Objective) -> Mapping[str, float]:
        # The y of an algorithm is its own, and a penalty pulls it towards f: its x is judged at the solution.
        if isinstance(objective, Memory):
            return {"judged": at_solution(objective)["solved_loss"]}
        return super().judge(objective)

    def over_N(self) -> list[Self]:
        """This variant, and for PZOBO those with other N."""
        others = [self.only(*self.n_methods, N=n) for n in self.also_N if n != self.N]
        return [self, *(other for other in others if other.methods)]


@dataclass(frozen=True, kw_only=True)
class Linear(Shallow):
    """Figure 2 a-c: hyper-representation with linear features, x = H of m x d."""

    d: Annotated[tuple[int, ...], NotEmpty()] = (128, 256)
    """The numbers d of features to run with; the paper has 128 and 256."""
    m: int | None = None
    """The number m of inputs; half of d by default."""
    n: int | None = None
    """The number of examples in each half of the data; by default 500 for d = 128 and 1000 for d = 256."""
    steps: int | None = None  # type: ignore[assignment]  # its variants have a number
    """The number of outer steps of each run; 0 means 100 for d = 128 and 150 for d = 256."""
    also_N: tuple[int, ...] = (10, 40)

    about = About(
        name="hr-linear",
        title="Hyper-representation, linear features",
        text="Synthetic regression Y = X H w + noise: the outer level learns the features X H on one half of the data, "
        "the inner level ridge regression on the other half, by N steps of gradient descent from 0.",
        final="outer_loss",
        thresholds=(1.0, 0.1, 0.02),
        views=(
            View("Fig. 2 (a): d = 128", {"d": 128, "N": 20}, (*LOSS, NORM, QUALITY)),
            View("Fig. 2 (b): d = 256", {"d": 256, "N": 20}, (*LOSS, NORM, QUALITY)),
            View(
                "Fig. 2 (c): PZOBO with N inner steps, authors' form",
                {"d": 128, "method": "pzobo-authors"},
                LOSS,
                by="N",
            ),
            View("Fig. 2 (c): Direct with N inner steps", {"d": 128, "method": "direct"}, LOSS, by="N"),
        ),
        claims=(
            Claim(
                "Fig. 2 (a, b): PZOBO converges faster than all the other approaches.",
                beats_all({"d": (128, 256), "N": 20}, 0.1),
            ),
            Claim("PZOBO outperforms the existing ES-based algorithm HOZOG.", hozog_worse({"d": (128, 256), "N": 20})),
            Claim(
                "Fig. 2 (c): the convergence of PZOBO does not change substantially with N.", insensitive({"d": 128})
            ),
        ),
    )

    def variants(self) -> list[Self]:
        # The main setting of each d, then other N for the first of them.
        usual = {d: 100 if d <= 128 else 150 for d in self.d}
        mains = [replace(self, d=(d,), steps=usual[d] if self.steps is None else self.steps) for d in self.d]
        return [mains[0], *mains[1:], *mains[0].over_N()[1:]]

    def label(self) -> str:
        return f"d{self.d[0]}-N{self.N}"

    def family(self) -> str:
        return f"d{self.d[0]}"

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "d": self.d[0]}

    def problem(self, seed: int) -> Problem:
        d = self.d[0]
        n = self.n or max(1, round(500 * d / 128))
        return linear_hr(self.m or max(1, d // 2), d, n, gamma=self.gamma, noise=self.noise, seed=seed)

    def paper_lr(self, method: str) -> float:
        return 0.1 if method == "hozog" else 0.05


@dataclass(frozen=True, kw_only=True)
class TwoLayer(Shallow):
    """Figure 2 d-f: hyper-representation with a two-layer network, x = (H1, H2)."""

    N: int = 10
    also_N: tuple[int, ...] = (5, 20, 50)
    mu: float = 0.1
    gamma: FromZero = 1e-3
    m: int = 256
    """The number m of inputs."""
    q: int = 512
    """The width q of the hidden layer."""
    d: int = 256
    """The number d of features."""
    n: int = 5000
    """The number of examples in each half of the data."""
    lr_grid: Rates = (0.002, 0.005, 0.01, 0.02, 0.05)

    about = About(
        name="hr-two-layer",
        title="Hyper-representation, two-layer network",
        text="Synthetic regression on features sigmoid(sigmoid(X H1) H2): 262,144 outer variables, N steps of gradient "
        "descent on the head from a random start.",
        final="outer_loss",
        thresholds=(1.0, 0.01, 0.001),
        views=(
            View("Fig. 2 (d, e): outer loss and hypergradient norm", {"N": 10}, (*LOSS, NORM, QUALITY)),
            View("Fig. 2 (f): PZOBO with N inner steps, authors' form", {"method": "pzobo-authors"}, LOSS, by="N"),
            View("Fig. 2 (f): Direct with N inner steps", {"method": "direct"}, LOSS, by="N"),
        ),
        claims=(
            Claim(
                "Fig. 2 (d): PZOBO converges faster than all the other approaches, by more than with linear features.",
                beats_all({"N": 10}, 0.01),
            ),
            Claim("Fig. 2 (d): HOZOG does not converge.", hozog_stuck({"N": 10})),
            Claim("Fig. 2 (e): the hypergradient norm of HOZOG is flat.", hozog_flat({"N": 10})),
            Claim("Fig. 2 (f): the convergence of PZOBO does not change substantially with N.", insensitive({})),
        ),
    )

    def variants(self) -> list[Self]:
        return self.over_N()

    def label(self) -> str:
        return f"N{self.N}"

    def problem(self, seed: int) -> Problem:
        return two_layer_hr(self.m, self.q, self.d, self.n, gamma=self.gamma, noise=self.noise, seed=seed)

    def paper_lr(self, method: str) -> float:
        return 0.01


@dataclass(frozen=True, kw_only=True)
class Partial(Shallow):
    """Figure 1: a zeroth-order estimate of the response alone (PZOBO) beside one of the whole hypergradient (HOZOG)."""

    model: Annotated[tuple[Literal["linear", "two-layer"], ...], NotEmpty()] = ("linear", "two-layer")
    """The features to run with: linear, two-layer, or both."""

    about = About(
        name="partial-vs-full",
        title="Partial against full zeroth-order estimates",
        text="One random direction at each step: for the response Jacobian alone (PZOBO), or for the whole "
        "hypergradient (HOZOG), on both problems of figure 2.",
        final="outer_loss",
        thresholds=(1.0, 0.1),
        views=(
            View("Fig. 1, left: linear features", {"model": "linear"}, (*LOSS, QUALITY)),
            View("Fig. 1, right: two-layer network", {"model": "two-layer"}, (*LOSS, QUALITY)),
        ),
        claims=(
            Claim(
                "Fig. 1: full hypergradient estimation is inferior, PZOBO performs significantly better.",
                hozog_worse({"model": ("linear", "two-layer")}),
            ),
        ),
    )

    menu: ClassVar[Mapping[str, Named]] = {
        name: METHODS[name] for name in ("direct", "exact", "pzobo", "pzobo-authors", "pzobo-paper", "hozog")
    }

    def variants(self) -> list[Self]:
        return [
            replace(self, model=(model,))
            if model == "linear"
            else replace(self, model=(model,), N=10, mu=0.1, gamma=1e-3)
            for model in self.model
        ]

    def label(self) -> str:
        return self.model[0]

    family = label

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "model": self.model[0]}

    def problem(self, seed: int) -> Problem:
        if self.model[0] == "linear":
            return linear_hr(gamma=self.gamma, noise=self.noise, seed=seed)
        return two_layer_hr(gamma=self.gamma, noise=self.noise, seed=seed)

    def paper_lr(self, method: str) -> float:
        if self.model[0] == "linear":
            return 0.1 if method == "hozog" else 0.05
        return 0.01
