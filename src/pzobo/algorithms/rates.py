"""How long is a step of the inner variables at outer step k? A number, or a function of k, such as a decay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pzobo.errors import OptionError
from pzobo.options import freeze, positive, whole

Rate = float | Callable[[int], float]
"""A number, or a function of the outer step k = 0, 1, 2, ..."""


@dataclass(frozen=True)
class Decay:
    """first * (delay / (k + delay)) ** power at outer step k = 0, 1, 2, ...: the decays of the papers.

    With `delay=1` it is first / (k + 1) ** power. A negative power grows.

    Args:
        first: the value at k = 0; positive.
        power: how fast it falls; SOBA's is 1/2, SUSTAIN's 1/3.
        delay: how many steps it stays near its first value.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> lr = pzobo.algorithms.Decay(0.1, 0.5)
        >>> lr(0), lr(3)
        (0.1, 0.05)
        >>> pzobo.algorithms.SOBA(lr=lr).lr
        Decay(first=0.1, power=0.5, delay=1)
    """

    first: float
    power: float
    delay: int = 1

    def __post_init__(self) -> None:
        positive("Decay: first", self.first)
        whole("Decay: delay", self.delay)
        freeze(self)

    def __call__(self, k: int) -> float:
        """The number at an outer step.

        Args:
            k: the step, counted from 0.

        Returns:
            first * (delay / (k + delay)) ** power.
        """
        return float(self.first * (self.delay / (k + self.delay)) ** self.power)


TWO_THIRDS = Decay(0.5, 2 / 3)
"""The momentum of STORM, as its papers let it fall."""
ROOT = Decay(0.5, 0.5)
"""FSLA's momentum."""


def number_at(rate: Rate, k: int, most: float = math.inf) -> float:
    """A rate at outer step k. A function may give 0, but nothing below, and at most `most`."""
    if not callable(rate):
        return rate
    found: Any = rate(k)
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= most or number == math.inf:
        wanted = "at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise OptionError(
            f"{rate!r} gives {found!r} at outer step {k}, where the algorithm wants a number, {wanted}. It is called "
            "with k = 0, 1, 2, ..., and once more after the last step."
        )
    return number


def check_rate(what: str, value: Any) -> None:
    """Refuse what is neither a positive number nor a function of the step."""
    if callable(value):
        return
    try:
        positive(what, value)
    except OptionError as error:
        raise OptionError(f"{error} A function of the outer step does too, such as Decay(0.1, 0.5).") from error


def check_share(what: str, value: Any) -> None:
    """Refuse what is neither a number in (0, 1] nor a function of the step."""
    if not callable(value) and positive(what, value) > 1:
        raise OptionError(f"{what}={value!r}: must be in (0, 1], or a function of the outer step.")
