"""What did a check of the theory find? Plain records: measured values beside bounds, slopes, and verdicts."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from typing import Literal

from pzobo.runs.json_text import parse
from pzobo.runs.records import built


@dataclass(frozen=True)
class Point:
    """One measurement beside its bounds.

    Attributes:
        value: where on the grid: the Q, N, mu... of this measurement.
        measured: what the bounds are about, as a mean over draws where it is random.
        stderr: the standard error of that mean; 0 where nothing is random.
        bound: the paper's bound, repaired where needed.
        sharp: the bound of `pzobo.theory.sharp`; None where there is none.

    Examples:
        >>> pzobo.theory.Point(value=4, measured=0.2, stderr=0.01, bound=0.9).bound
        0.9
    """

    value: float
    measured: float
    stderr: float
    bound: float
    sharp: float | None = None


@dataclass(frozen=True)
class Sweep:
    """A statement checked over a grid of one quantity.

    Attributes:
        statement: which one, as "Proposition 2".
        quantity: what is measured, in symbols.
        problem: on which problem, "quadratic" or "logistic".
        against: the quantity that the grid is of, as "Q".
        points: the measurements, in the order of the grid.
        predicted: the slope that theory says; None where it says none.
        law: "power" for a slope of log measured against log value, "exponential" for one against value itself.
        span: from which point to before which the slope is fitted, as a slice of `points`; all by default.
        tolerance: how far from `predicted` the slope may be; for "exponential" as a part of it.
        at_most: whether `predicted` is an upper bound of the slope.

    Examples:
        >>> points = tuple(pzobo.theory.Point(q, 1 / q, 0.0, 3 / q) for q in (1, 4, 16))
        >>> sweep = pzobo.theory.Sweep("Proposition 2", "error", "quadratic", "Q", points, predicted=-1.0)
        >>> round(sweep.slope, 2), sweep.holds
        (-1.0, True)
    """

    statement: str
    quantity: str
    problem: str
    against: str
    points: tuple[Point, ...]
    predicted: float | None = None
    law: Literal["power", "exponential"] = "power"
    span: tuple[int | None, int | None] = (None, None)
    tolerance: float = 0.1
    at_most: bool = False

    def _logarithms(self) -> tuple[list[float], list[float], list[float]]:
        """What the slope is fitted to: places, logarithms of the measurements, and the standard errors of these."""
        points = [p for p in self.points[slice(*self.span)] if p.measured > 0 and (p.value > 0 or self.law != "power")]
        x = [math.log(p.value) if self.law == "power" else p.value for p in points]
        return x, [math.log(p.measured) for p in points], [p.stderr / p.measured for p in points]

    @property
    def slope(self) -> float:
        """The slope by least squares, of log measured; NaN where the points give none."""
        x, y, _ = self._logarithms()
        try:
            return float(statistics.linear_regression(x, y).slope)
        except (ValueError, ArithmeticError):  # fewer than two different points, or infinite ones
            return math.nan

    @property
    def slope_error(self) -> float:
        """The standard error of the slope, from those of the points; 0 where nothing is random."""
        x, _, errors = self._logarithms()
        try:
            middle = statistics.fmean(x)
            weights = [(a - middle) / sum((b - middle) ** 2 for b in x) for a in x]
            return math.sqrt(sum((w * e) ** 2 for w, e in zip(weights, errors, strict=True)))
        except (ValueError, ArithmeticError):
            return math.nan

    @property
    def holds(self) -> bool:
        """Whether no bound is below the measurement (the sharp one: beyond three standard errors)."""
        return all(
            p.measured <= p.bound and (p.sharp is None or p.measured - 3 * p.stderr <= p.sharp * (1 + 1e-9))
            for p in self.points
        )

    @property
    def _slack(self) -> float:
        return self.tolerance * (abs(self.predicted or 0.0) if self.law == "exponential" else 1.0)

    @property
    def as_predicted(self) -> bool:
        """Whether the slope that was found is the predicted one, however noisy it is."""
        if self.predicted is None:
            return True
        if self.at_most:
            return self.slope <= self.predicted + self._slack
        return abs(self.slope - self.predicted) <= self._slack

    @property
    def decided(self) -> bool:
        """Whether the slope says something: two of its standard errors are no more than its tolerance, or it is farther
        than that from where the verdict would change."""
        noise = 2 * self.slope_error
        if self.predicted is None or not noise > self._slack:
            return True
        edges = [self.predicted + self._slack] + ([] if self.at_most else [self.predicted - self._slack])
        return min(abs(self.slope - edge) for edge in edges) > noise

    @property
    def verdict(self) -> Literal["ok", "bound broken", "another slope", "not decided"]:
        """What the measurements say of the statement."""
        if not self.holds:
            return "bound broken"
        if not self.decided:
            return "not decided"
        return "ok" if self.as_predicted else "another slope"

    def looseness(self, sharp: bool = False) -> tuple[float, float] | None:
        """The least and the largest bound divided by measurement."""
        pairs = [(p.sharp if sharp else p.bound, p.measured) for p in self.points]
        ratios = [bound / measured for bound, measured in pairs if bound is not None and measured > 0]
        return (min(ratios), max(ratios)) if ratios else None


@dataclass(frozen=True)
class Verification:
    """Everything that `verify` measured.

    Attributes:
        sweeps: one for each statement, problem and grid.
        seconds: how long it took.

    Examples:
        >>> points = tuple(pzobo.theory.Point(q, 1 / q, 0.0, 3 / q) for q in (1, 4, 16))
        >>> sweep = pzobo.theory.Sweep("Proposition 2", "error", "quadratic", "Q", points, predicted=-1.0)
        >>> found = pzobo.theory.Verification((sweep,), seconds=0.0)
        >>> found.ok, found.undecided
        (True, ())
    """

    sweeps: tuple[Sweep, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against the theory. What is not decided does not; `undecided` names it."""
        return all(s.verdict in ("ok", "not decided") for s in self.sweeps)

    @property
    def undecided(self) -> tuple[Sweep, ...]:
        """Those whose slope is too noisy for a verdict."""
        return tuple(s for s in self.sweeps if s.verdict == "not decided")

    def find(self, statement: str, against: str, problem: str | None = None) -> Sweep:
        for s in self.sweeps:
            if s.statement == statement and s.against == against and problem in (None, s.problem):
                return s
        raise KeyError((statement, against, problem))

    def to_json(self) -> str:
        """As text, for `from_json`."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Verification:
        """What `to_json` was made from.

        Raises:
            DamagedFileError: it is something else.
        """
        found: Verification = built(cls, parse(text))
        return found
