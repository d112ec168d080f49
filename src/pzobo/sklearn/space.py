"""Which hyperparameters are searched, and between which bounds? Log and linear scales, numbers and vectors."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.options import whole

UNITS = 10.0
"""How many units a box is wide, in every coordinate."""

USE_OPTUNA = (
    "A search by the response needs numbers that can change a little; for whole numbers and choices use Optuna."
)


@dataclass(frozen=True)
class Hyperparameter(ABC):
    """A number, or a vector of them, between two bounds.

    Args:
        low: the lower bound.
        high: the upper bound.
        size: how many numbers; None is one number, not a vector.
        start: where the search begins, and what the prior holds it to: a number, or one for each. By default it is what
            the estimator has, or the middle of the box where that is no number (`gamma="scale"`).
    """

    low: float
    high: float
    size: int | None = None
    start: Any = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        for bound in (self.low, self.high):
            if isinstance(bound, bool) or not isinstance(bound, numbers.Real) or not math.isfinite(bound):
                raise OptionError(f"{name}({self.low!r}, {self.high!r}): the bounds must be finite numbers.")
        if not self.low < self.high:
            raise OptionError(f"{name}({self.low!r}, {self.high!r}): the lower bound must be below the upper one.")
        if self.size is not None:
            object.__setattr__(self, "size", whole(f"{name}: size", self.size))

    @abstractmethod
    def to_line(self, value: Any) -> Any:
        """A value where equal distances mean equal changes."""

    @abstractmethod
    def from_line(self, place: Any) -> Any:
        """The value there."""

    @property
    def count(self) -> int:
        return 1 if self.size is None else self.size

    def at_start(self, name: str, own: Any) -> Any:
        """Where the search begins, in units of the box."""
        given = own if self.start is None else self.start
        if self.start is None and (own is None or isinstance(own, str)):
            return np.full(self.count, UNITS / 2)
        try:
            if isinstance(given, (bool, np.bool_)):
                raise TypeError
            values = np.broadcast_to(np.asarray(given, dtype=float), (self.count,))
        except (TypeError, ValueError):
            shape = "one number" if self.size is None else f"{self.size} numbers"
            raise OptionError(
                f"{name}: the start is {given!r}, expected {shape}; give {type(self).__name__}(..., start=...). "
                f"{USE_OPTUNA}"
            ) from None
        if not bool(np.all((values >= self.low) & (values <= self.high))):
            raise OptionError(
                f"{name}: the start {given!r} is not between {self.low:g} and {self.high:g}: widen the bounds, or give "
                f"{type(self).__name__}({self.low:g}, {self.high:g}, start=...)."
            )
        low, high = self.to_line(self.low), self.to_line(self.high)
        return (self.to_line(values) - low) / (high - low) * UNITS

    def value(self, units: Any) -> Any:
        """What the estimator gets: a float, or an array."""
        low, high = self.to_line(self.low), self.to_line(self.high)
        values = np.clip(self.from_line(low + np.asarray(units) / UNITS * (high - low)), self.low, self.high)
        return float(values[0]) if self.size is None else values


@dataclass(frozen=True)
class Log(Hyperparameter):
    """A positive number on a logarithmic scale: strengths, widths, learning rates.

    Args:
        low: the lower bound, positive.
        high: the upper bound.
        size: how many numbers; None is one number, not a vector.
        start: where the search begins, and what the prior holds it to: a number, or one for each. By default it is what
            the estimator has, or the middle of the box where that is no number (`gamma="scale"`).

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> from pzobo.sklearn import Log
        >>> Log(1e-3, 1e3).to_line(1.0), Log(1e-3, 1e3, size=4).size
        (np.float64(0.0), 4)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low > 0:
            raise OptionError(f"Log({self.low!r}, {self.high!r}): a logarithmic scale needs positive bounds.")

    def to_line(self, value: Any) -> Any:
        return np.log(value)

    def from_line(self, place: Any) -> Any:
        return np.exp(place)


@dataclass(frozen=True)
class Linear(Hyperparameter):
    """A number on a linear scale: logarithms, shares, margins.

    Args:
        low: the lower bound.
        high: the upper bound.
        size: how many numbers; None is one number, not a vector.
        start: where the search begins, and what the prior holds it to: a number, or one for each. By default it is what
            the estimator has, or the middle of the box where that is no number.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> from pzobo.sklearn import Linear
        >>> Linear(-5, 5).low, Linear(-5, 5, size=4).size
        (-5, 4)
    """

    def to_line(self, value: Any) -> Any:
        return np.asarray(value, dtype=float)

    def from_line(self, place: Any) -> Any:
        return place


class Space:
    """All hyperparameters of a search as one vector, in units: each coordinate is between 0 and 10.

    Args:
        parts: hyperparameters by their names, as in `estimator.set_params`.
        own: the values that the estimator has, by name.
    """

    def __init__(self, parts: Any, own: Mapping[str, Any]) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise OptionError(f"space={parts!r}: give a dict, as in {{'svc__C': Log(1e-3, 1e3)}}.")
        for name, part in parts.items():
            if not isinstance(part, Hyperparameter):
                raise OptionError(f"{name}: {part!r} is neither Log(low, high) nor Linear(low, high). {USE_OPTUNA}")
            if name not in own:
                raise OptionError(f"The estimator has no parameter {name!r}; it has {', '.join(sorted(own))}.")
        self.parts: Mapping[str, Hyperparameter] = parts
        starts = [part.at_start(name, own[name]) for name, part in parts.items()]
        self.start: Tensor = torch.tensor(np.concatenate(starts))
        self.low: Tensor = torch.zeros_like(self.start)
        self.high: Tensor = torch.full_like(self.start, UNITS)

    def __len__(self) -> int:
        return len(self.start)

    def values(self, x: Tensor) -> dict[str, Any]:
        """Parameters for `set_params`."""
        found, first = {}, 0
        for name, part in self.parts.items():
            found[name] = part.value(x[first : first + part.count].numpy())
            first += part.count
        return found

    def names(self) -> list[str]:
        """One name for each coordinate: "svc__C", "scale__log_scale[0]", ..."""
        return [
            name if part.size is None else f"{name}[{i}]"
            for name, part in self.parts.items()
            for i in range(part.count)
        ]
