"""How is a budget of evaluations spent? A look at smoothness, J and steps while they promise something, restarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pzobo.errors import RoughResponseError
from pzobo.response.levenberg_marquardt import LevenbergMarquardt, Place, Terms
from pzobo.response.roughness import BENT, ROUGH, Smoothness, kappa

Evaluate = Callable[[Sequence[Tensor], str], Sequence[Tensor | None]]
"""r at each x, None where there is none; and what the evaluations are for: "start", "smoothness", "column", "step"."""

FIRST_WIDTH = 0.1
"""Of differences: a hundredth of a box of ten units."""
SAME = 1e-6
"""Two fits may differ by this part: rounding in another order."""


@dataclass
class ResponseSearch:
    """A search for the x of least f(x, r(x)) in a box, with a budget.

    Args:
        terms: what is made least, of the r at the start.
        x0: the start.
        low: bounds of x.
        high: bounds of x.
        evaluate: r at some x.
        budget: how many evaluations at most, that of the start among them.
        generator: of the direction in which smoothness is tried, and of restarts.
        tell: called after each step.
        drawn: whether evaluations may draw random numbers. Then the start is evaluated twice, and must give the same r.
    """

    terms: Callable[[Tensor], Terms]
    x0: Tensor
    low: Tensor
    high: Tensor
    evaluate: Evaluate
    budget: int
    generator: torch.Generator
    tell: Callable[[ResponseSearch], None] = lambda search: None
    drawn: Callable[[], bool] = lambda: False
    places: list[Place] = field(default_factory=list, init=False)
    """All that was evaluated, in order."""
    smoothness: Smoothness = field(init=False)
    steps: LevenbergMarquardt = field(init=False)

    @property
    def left(self) -> int:
        return self.budget - len(self.places)

    def run(self) -> Place:
        """Spend the budget. The answer is the place of the least loss and prior."""
        (r,) = self.evaluate([self.x0], "start")
        if r is None or not bool(r.isfinite().all()):
            raise RoughResponseError("The predictions at the start are not finite numbers: look at the start.")
        terms = self.terms(r)
        self.smoothness = Smoothness()
        block = math.ceil(len(self.x0) / 8)
        self.steps = LevenbergMarquardt(terms, self.x0, self.low, self.high, FIRST_WIDTH, renew=block, block=block)
        self.steps.begin(self.x0, r)
        terms.check(self.steps.best)
        self.places.append(self.steps.best)
        if self.drawn():
            self._repeat(r)
        self.steps.width = self._width(r)
        if math.isnan(self.smoothness.kappa):
            return self.places[0]  # nothing responds
        self.steps.order = torch.randperm(len(self.x0), generator=self.generator, device="cpu").tolist()
        self.descend()
        while self.left > 2 * (len(self.x0) + 1):
            before, worth = self.steps.state_dict(), self.steps.log_evidence()
            away = torch.randn(len(self.x0), generator=self.generator, dtype=self.x0.dtype, device="cpu")
            x = (self.x0 + away).clamp(self.low, self.high)
            (found,) = self.look([x], "restart")
            if found is None:
                continue
            self.steps.begin(x, found)
            self.descend()
            if self.steps.log_evidence() <= worth:
                self.steps.load_state_dict(before)
        return min((p for p in self.places if math.isfinite(p.value)), key=self.steps.objective)

    def look(self, points: Sequence[Tensor], kind: str) -> list[Tensor | None]:
        """r at some places, noted."""
        found = [None if r is None or not bool(r.isfinite().all()) else r for r in self.evaluate(points, kind)]
        for x, r in zip(points, found, strict=True):
            place = Place(x, x.new_zeros(0), self.steps.best.extra, math.inf)
            if r is not None:
                full = self.steps.place(x, r, self.steps.best.extra)
                place = Place(x, x.new_zeros(0), full.extra, full.value)
            self.places.append(place)
        return found

    def descend(self) -> None:
        """Steps from the present place until none promises anything, or until the budget is spent."""
        steps = self.steps
        while self.left > 0:
            due = steps.due()[: max(self.left - 1, 0)]
            self._measure(due)
            x = steps.propose()
            if steps.idle():
                if due:
                    continue
                break
            if self.left <= 0:
                break
            (r,) = self.look([x], "step")
            steps.judge(x, torch.full_like(steps.best.r, math.nan) if r is None else r)
            self.tell(self)

    def _measure(self, columns: Sequence[int]) -> None:
        points = [self.steps.probe(j)[0] for j in columns]
        if points:
            for j, x, r in zip(columns, points, self.look(points, "column"), strict=True):
                self.steps.measure(j, [x], [torch.full_like(self.steps.best.r, math.nan) if r is None else r])

    def _all_alike(self) -> bool:
        """Whether all places so far have the same loss, up to what is worth an evaluation."""
        nats = [self.steps.terms.nats(place.value) for place in self.places]
        return max(nats) - min(nats) < self.steps.enough

    def _repeat(self, r: Tensor) -> None:
        """Refuse what answers the same question in two ways: differences of it are differences of what was drawn."""
        (again,) = self.look([self.x0], "repeat")
        if again is None or float((again - r).norm()) > SAME * float(r.norm()):
            raise RoughResponseError(
                "Two fits at the start do not predict the same: something is drawn anew at each fit. Give every "
                "random_state a number; or use a search that takes noise, such as Optuna."
            )

    def _width(self, at: Tensor) -> float:
        """The width for which differences are nearest to a line: the first if it is good enough."""
        signs = torch.randint(0, 2, self.x0.shape, generator=self.generator, device="cpu").to(self.x0) * 2 - 1
        inward = torch.where(self.x0 > (self.low + self.high) / 2, -1.0, 1.0)
        near = ((self.x0 - self.low).minimum(self.high - self.x0)) < 2.0
        u = torch.where(near, inward, signs) / math.sqrt(len(self.x0))
        seen: dict[float, Tensor | None] = {0.0: at}

        def r(t: float) -> Tensor:
            nonlocal u
            if t not in seen:
                (seen[t],) = self.look([self.x0 + t * u], "smoothness")
                if seen[t] is None and len(seen) == 2:  # no fit on this side: look at the other
                    u = -u
                    (seen[t],) = self.look([self.x0 + t * u], "smoothness")
            found = seen[t]
            return at if found is None else found

        def rough(width: float) -> float:
            return kappa(at, r(width), r(2 * width))

        found = {self.steps.width: rough(self.steps.width)}
        self.smoothness.found = found
        if found[self.steps.width] > BENT:
            for factor in (2.0, 0.5):
                width, before = self.steps.width, found[self.steps.width]
                for _ in range(min(3, self.left)):
                    width *= factor
                    found[width] = rough(width)
                    if found[width] <= BENT or not found[width] < before:
                        break
                    before = found[width]
                if found[width] <= BENT:
                    break
        if self.smoothness.kappa >= ROUGH and self._all_alike():
            self.smoothness.found = dict.fromkeys(found, math.nan)  # rounding, of what does not respond
        self.smoothness.check()
        return self.smoothness.width
