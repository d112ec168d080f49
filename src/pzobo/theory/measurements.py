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

    @property
    def slope(self) -> float:
        """The slope by least squares, of log measured; NaN where the points give none."""
        points = [p for p in self.points[slice(*self.span)] if p.measured > 0 and (p.value > 0 or self.law != "power")]
        x = [math.log(p.value) if self.law == "power" else p.value for p in points]
        y = [math.log(p.measured) for p in points]
        try:
            return float(statistics.linear_regression(x, y).slope)
        except (ValueError, ArithmeticError):  # fewer than two different points, or infinite ones
            return math.nan

    @property
    def holds(self) -> bool:
        """Whether no bound is below the measurement (the sharp one: beyond three standard errors)."""
        return all(
            p.measured <= p.bound and (p.sharp is None or p.measured - 3 * p.stderr <= p.sharp * (1 + 1e-9))
            for p in self.points
        )

    @property
    def as_predicted(self) -> bool:
        if self.predicted is None:
            return True
        slack = self.tolerance * (abs(self.predicted) if self.law == "exponential" else 1.0)
        if self.at_most:
            return self.slope <= self.predicted + slack
        return abs(self.slope - self.predicted) <= slack

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
    """

    sweeps: tuple[Sweep, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(s.holds and s.as_predicted for s in self.sweeps)

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
