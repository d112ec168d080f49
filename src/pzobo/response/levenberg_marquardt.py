"""Where to look next, when the response of r to x is measured? Levenberg-Marquardt steps in a box, with a prior.

The matrix J = dr/dx is measured by differences, a block of columns at a time, with a step after each block: variables
whose column is not known yet stay. J is kept from step to step: the oldest columns are renewed in turn, and every
evaluation corrects it along its own step (Broyden, 1965).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pzobo.errors import OptionError, RequirementError, StructureError
from pzobo.response.box import hessian, newton, positive
from pzobo.response.evidence import strength

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""f(x, r, c): of the outer variables, of what responds to them, and of free constants that are fitted along."""

WIDEST = 0.12
"""The weakest prior: its variance 1 / .12 is that of a uniform distribution over a box of ten units."""
FACTOR = 4.0
"""The prior's strength changes by this much at most from one place to the next: the evidence at a place knows only what
is near it."""
FREE_TURNS = 3
"""After so many changes of its direction it may change by less, as one over their number (Kesten, 1958): two places
whose evidence asks for each other would take turns for ever. Steps of this kind still reach any strength."""
LONGEST = 3.0
"""No step is longer in any coordinate, in units of x."""
SHORTER = 4.0
"""A step that failed makes the damping so much larger, the next in a row by its square, and so on (the growth is that
of Nielsen, 1999): a damping that had become small would else take many failures to come back."""


@dataclass(frozen=True)
class Terms:
    """What is made least: f of the response, in nats, and a prior.

    Args:
        loss: f.
        rows: n, how many independent observations f is worth. Fewer than it is a mean over, where those hang together.
        kind: "nats" where n f is a negative log-likelihood (log loss); "scale" where n/2 log f is one, since the noise
            has an unknown variance (squared error).
        prior: the strength of the Gaussian prior at the start; "evidence" finds it, None is none.
        extra: where the free constants start; they are fitted again at each x.
    """

    loss: Loss
    rows: float
    kind: Literal["nats", "scale"] = "nats"
    prior: float | Literal["evidence"] | None = "evidence"
    extra: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64, device="cpu"))

    def weight(self, value: float) -> float:
        """d nats / d f."""
        return self.rows if self.kind == "nats" else self.rows / (2 * max(value, 1e-300))

    def nats(self, value: float) -> float:
        if not math.isfinite(value):
            return math.inf
        if self.kind == "nats":
            return self.rows * value
        if value < 0:
            raise OptionError(
                f"The loss is {value:g}: n/2 log of it is weighed against the prior, so it must not be negative. Add "
                "what makes it so, such as the least that it can be."
            )
        return 0.5 * self.rows * math.log(max(value, 1e-300))

    def fitted(self, x: Tensor, r: Tensor, extra: Tensor) -> Tensor:
        """The free constants that make f least here."""
        if not len(extra):
            return extra
        free = torch.full_like(extra, math.inf)
        return newton(lambda c: self.loss(x, r, c), extra, -free, free, turns=50, tol=1e-10)

    def check(self, start: Place) -> None:
        """Refuse an f that shows no way down from the start: one that is no number there, or has no slope."""
        if not math.isfinite(start.value):
            raise RequirementError(f"The loss at the start is {start.value:g}: look at the start, and at the loss.")
        slopes = torch.func.grad(self.loss, (0, 1))(start.x, start.r, start.extra)
        if start.value and not any(bool(slope.any()) for slope in slopes):
            raise RequirementError(
                f"The loss is {start.value:g} at the start, and its gradient is zero in every output: no step can be "
                "told from it. Comparisons, round(), argmax() and detach() have no slope: write the loss in operations "
                "of torch that have one. Where it is flat there indeed, start elsewhere."
            )


@dataclass
class Place:
    """A point that was evaluated."""

    x: Tensor
    r: Tensor
    extra: Tensor
    value: float


class LevenbergMarquardt:
    """The state of a search: the best place, J there, how long steps may be, how strong the prior is.

    Args:
        terms: what is made least.
        x0: the start, and the centre of the prior.
        low: bounds of x.
        high: bounds of x.
        width: of the differences that measure J, in units of x.
        renew: how many columns are renewed after a step.
        central: whether differences go both ways.
        enough: a step that promises fewer nats than this is not worth an evaluation.
        order: in which order the columns are measured for the first time; None is that of x.
        block: how many of them before the first step, and again before the next; None is all.
    """

    def __init__(
        self,
        terms: Terms,
        x0: Tensor,
        low: Tensor,
        high: Tensor,
        width: float,
        renew: int,
        central: bool = False,
        enough: float = 0.01,
        order: Sequence[int] | None = None,
        block: int | None = None,
    ) -> None:
        self.terms, self.x0, self.low, self.high = terms, x0, low, high
        self.width, self.renew, self.central, self.enough = width, renew, central, enough
        self.order: Sequence[int] = range(len(x0)) if order is None else order
        self.block = len(x0) if block is None else block
        self.damping, self.alpha = 1.0, self._first_alpha()
        self.base: Place | None = None
        self.J = torch.zeros(0, len(x0), dtype=x0.dtype, device=x0.device)
        self.age = torch.full((len(x0),), -1, device="cpu")
        self.step = 0
        self.failures = 0
        self.promised = math.inf
        self.moved = False
        self.way, self.turns = 0.0, 0

    def begin(self, x: Tensor, r: Tensor) -> None:
        """Start at x anew, with a J that is not known."""
        self.base = self.place(x, r, self.terms.extra)
        self.J = torch.zeros(r.numel(), len(x), dtype=x.dtype, device=x.device)
        self.age.fill_(-1)
        self.damping, self.failures, self.promised = 1.0, 0, math.inf
        self.alpha, self.moved = self._first_alpha(), False
        self.way, self.turns = 0.0, 0

    def _first_alpha(self) -> float:
        """1 is a deviation of one unit; the evidence takes it from there."""
        return 1.0 if self.terms.prior == "evidence" else float(self.terms.prior or 0.0)

    def place(self, x: Tensor, r: Tensor, extra: Tensor) -> Place:
        if not bool(r.isfinite().all()):
            return Place(x, r, extra, math.inf)
        extra = self.terms.fitted(x, r, extra)
        return Place(x, r, extra, float(self.terms.loss(x, r, extra)))

    @property
    def least_damping(self) -> float:
        """With which the longest step in one coordinate costs what is just worth an evaluation: less damps nothing."""
        return max(2 * self.enough / LONGEST**2, 1e-6)

    @property
    def best(self) -> Place:
        assert self.base is not None
        return self.base

    def objective(self, place: Place) -> float:
        """Nats of the loss and of the prior."""
        return self.terms.nats(place.value) + 0.5 * self.alpha * float((place.x - self.x0).square().sum())

    # J

    def due(self) -> list[int]:
        """The columns to measure now: the next that are not known, then the oldest; more after a step that failed."""
        new = [j for j in self.order if self.age[j] < 0]
        if new:
            return new[: self.block]
        count = min(self.renew * (1 + self.failures), len(self.age))
        old = [int(j) for j in self.age.argsort(stable=True)[:count]]
        return [j for j in old if self.age[j] < self.step]

    def probe(self, j: int) -> list[Tensor]:
        """Where column j is measured: at one place away from a bound, or at two."""
        x, ways = self.best.x, (1.0, -1.0)
        fits = [w for w in ways if self.low[j] <= x[j] + w * self.width <= self.high[j]] or [1.0]
        chosen = fits if self.central else fits[:1]
        points = []
        for way in chosen:
            point = x.clone()
            point[j] += way * self.width
            points.append(point)
        return points

    def measure(self, j: int, points: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Column j from r at the places of `probe`. A place where the fit failed tells nothing: the column is 0."""
        here = self.best
        other = (points[1], found[1]) if len(found) > 1 else (here.x, here.r)
        column = (found[0] - other[1]) / (points[0][j] - other[0][j])
        self.J[:, j] = column if bool(column.isfinite().all()) else 0.0
        self.age[j] = self.step

    def gradient(self) -> Tensor:
        """df/dx at the best place, by J."""
        return self._expansion()[0]

    def _along(self) -> Callable[[Tensor], Tensor]:
        """f of (s, c) by J: f(x + s, r + J s, c)."""
        here, p = self.best, len(self.x0)
        return lambda v: self.terms.loss(here.x + v[:p], here.r + self.J @ v[:p], v[p:])

    def _expansion(self) -> tuple[Tensor, Tensor]:
        """Gradient and curvature of f in x by J; the free constants follow."""
        p, start = len(self.x0), torch.cat([torch.zeros_like(self.x0), self.best.extra])
        fn = self._along()
        g, whole = torch.func.grad(fn)(start), hessian(fn, start)
        B, cross, rest = whole[:p, :p], whole[:p, p:], whole[p:, p:]
        if len(rest):
            B = B - cross @ torch.linalg.solve(positive(rest), cross.T)
        return g[:p], 0.5 * (B + B.T)

    # Steps

    def propose(self) -> Tensor:
        """The next x to evaluate: f(x + s, r + J s) least in the box, with the prior, and with a price for long s."""
        here, p, terms = self.best, len(self.x0), self.terms
        weight, away = terms.weight(here.value), here.x - self.x0
        known = self.age >= 0
        if terms.prior == "evidence" and self.moved and bool(known.all()):
            self.moved = False
            g, B = self._expansion()
            self._strengthen(strength(weight * g, positive(weight * B), away, least=WIDEST))
        f, damping, alpha = self._along(), self.damping, self.alpha

        def price(v: Tensor) -> Tensor:
            s = v[:p]
            prior = 0.5 * alpha * (away + s).square().sum()
            return weight * (f(v) - here.value) + prior + 0.5 * damping * s.square().sum()

        free = torch.full_like(here.extra, math.inf)
        low = torch.cat([torch.where(known, (self.low - here.x).clamp(min=-LONGEST), 0.0), -free])
        high = torch.cat([torch.where(known, (self.high - here.x).clamp(max=LONGEST), 0.0), free])
        start = torch.cat([torch.zeros_like(self.x0), here.extra])
        v = newton(price, start, low, high, tol=0.01 * self.enough)
        s = v[:p]
        self.promised = float(price(start) - price(v) + 0.5 * damping * s.square().sum())
        return (here.x + s).clamp(self.low, self.high)

    def _strengthen(self, found: float) -> None:
        """Take the strength of the prior that the evidence asks for, or what is allowed of it."""
        way = found - self.alpha
        self.turns += way * self.way < 0
        self.way = way
        most = FACTOR ** (1 / max(1, 1 + self.turns - FREE_TURNS))
        self.alpha = min(max(found, self.alpha / most), self.alpha * most)

    def judge(self, x: Tensor, r: Tensor) -> bool:
        """Take what was found at a proposed x: whether it is the best place now."""
        here = self.best
        there = self.place(x, r, here.extra)
        self.step += 1
        won = self.objective(here) - self.objective(there)
        s = x - here.x
        if bool(r.isfinite().all()) and float(s.square().sum()) > 0:
            self.J += torch.outer(r - here.r - self.J @ s, s / s.square().sum())
        ratio = won / self.promised if self.promised > 0 else -1.0
        if won > 0:
            self.base, self.failures, self.moved = there, 0, True
        else:
            self.failures += 1
        if ratio > 0.7:
            self.damping = max(self.damping / 5, self.least_damping)
        elif ratio < 0.25:
            self.damping *= SHORTER ** max(self.failures, 1)
        return won > 0

    def done(self) -> bool:
        """Whether no step is worth an evaluation, by a J that is not older than the best place."""
        return self.idle() and not self.due()

    def idle(self) -> bool:
        """Whether the proposed step is not worth an evaluation."""
        return self.promised < self.enough or self.damping > 1e9

    def log_evidence(self) -> float:
        """How likely the data are with a search that ends here, by Laplace: what tells two optima apart.

        A better loss is worth its nats; every hyperparameter that is narrowed down costs some.
        """
        value = -self.objective(self.best)
        if not self.alpha:
            return value
        B = self.terms.weight(self.best.value) * self._expansion()[1]
        e = torch.linalg.eigvalsh(B).clamp(min=0)
        return value + 0.5 * float((self.alpha / (e + self.alpha)).log().sum())

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        here = self.base
        return {
            "x0": self.x0.clone(),
            "J": self.J.clone(),
            "age": self.age.clone(),
            "numbers": [self.damping, float(self.alpha), self.promised, self.width],
            "counts": [self.step, self.failures, int(self.moved)],
            "prior": [self.way, self.turns],
            "base": None if here is None else [here.x.clone(), here.r.clone(), here.extra.clone(), here.value],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["x0"].shape != self.x0.shape or state["J"].shape[1] != len(self.x0):
            raise StructureError(f"The saved search has {len(state['x0'])} outer variables, this {len(self.x0)}.")
        self.x0, self.J, self.age = (state[name].clone() for name in ("x0", "J", "age"))
        self.damping, self.alpha, self.promised, self.width = state["numbers"]
        self.step, self.failures = state["counts"][:2]
        self.moved = bool(state["counts"][2])
        self.way, self.turns = state.get("prior", (0.0, 0))  # older checkpoints have none
        base = state["base"]
        self.base = None if base is None else Place(base[0].clone(), base[1].clone(), base[2].clone(), base[3])
