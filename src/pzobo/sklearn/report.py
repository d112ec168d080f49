"""Did the search learn the folds by heart? Losses of the start and of the best candidate, on other folds and rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sklearn.model_selection import TimeSeriesSplit


@dataclass(frozen=True)
class Losses:
    """The loss at the start and at the best candidate."""

    start: float
    best: float

    @property
    def change(self) -> float:
        """Of the loss, beside the start's: -.2 is a fifth less."""
        return (self.best - self.start) / abs(self.start) if self.start else 0.0


@dataclass(frozen=True)
class Report:
    """What a search came to. Print it for a table.

    Args:
        folds: on the folds that were searched on. That is too good: the search has seen their labels.
        other_folds: on other folds of the same rows; None without `guard`, or where a splitter has no other folds.
        test: on the rows of `fit(..., test=(X, y))`; None without.
        evaluations: how many there were.
        fits: how many fits.
        rows: of X.
        hyperparameters: p.
    """

    folds: Losses
    other_folds: Losses | None
    test: Losses | None
    evaluations: int
    fits: int
    rows: int
    hyperparameters: int

    @property
    def overfits(self) -> bool:
        """Whether other folds or held-out rows have a loss that is more than a hundredth larger than at the start."""
        return any(pair is not None and pair.change > 0.01 for pair in (self.other_folds, self.test))

    def _pairs(self) -> Iterator[tuple[str, Losses]]:
        named = {"the folds of the search": self.folds, "other folds": self.other_folds, "held-out rows": self.test}
        yield from ((name, pair) for name, pair in named.items() if pair is not None)

    def __str__(self) -> str:
        head = f"{'loss on':24s} {'start':>10s} {'best':>10s} {'change':>8s}"
        rows = [f"{name:24s} {p.start:10.4g} {p.best:10.4g} {100 * p.change:+7.1f}%" for name, p in self._pairs()]
        counts = f"{self.hyperparameters} hyperparameters, {self.rows} rows"
        tail = f"{counts}, {self.evaluations} evaluations, {self.fits} fits"
        return "\n".join([head, *rows, tail])


def other_folds(cv: Any, seed: int) -> Any:
    """The same splitter with other folds, or None where it has no others (a fixed list, time series, one row out)."""
    if not hasattr(cv, "random_state") or isinstance(cv, TimeSeriesSplit):
        return None
    other = copy.copy(cv)
    other.random_state = seed
    if hasattr(other, "shuffle"):
        other.shuffle = True
    return other
