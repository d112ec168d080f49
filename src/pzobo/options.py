"""Is this option a number of the right kind? One sentence if it is not."""

from __future__ import annotations

import math
import operator
from dataclasses import fields
from typing import Any

from pzobo.errors import OptionError, PzoboError


def positive(what: str, value: Any, kind: type[PzoboError] = OptionError, least: str = "a positive number") -> float:
    """A finite number above zero."""
    number = _number(value)
    if number is None or not number > 0:
        raise kind(f"{what}={value!r}: must be {least}.")
    return number


def in_range(what: str, value: Any, low: float, high: float) -> float:
    """A number in [low, high)."""
    number = _number(value)
    if number is None or not low <= number < high:
        raise OptionError(f"{what}={value!r}: must be a number in [{low:g}, {high:g}).")
    return number


def check_audit(what: str, value: Any) -> None:
    """Refuse what `audit` cannot be."""
    if value not in (True, False, "error"):
        raise OptionError(f'{what}={value!r}: must be True, False or "error".')


def freeze(options: Any) -> None:
    """Make plain numbers of the tensors and arrays among the fields of a frozen dataclass: what is written into one
    of them later, or between a forward and its backward pass, changes nothing."""
    for field in fields(options):
        value = getattr(options, field.name)
        object.__setattr__(options, field.name, tuple(map(_plain, value)) if type(value) is tuple else _plain(value))


def _plain(value: Any) -> Any:
    """The number in a tensor or an array of one; a tensor that needs a gradient stays, to be refused."""
    if getattr(value, "requires_grad", False) or not (hasattr(value, "item") and hasattr(value, "shape")):
        return value
    return value.item() if math.prod(value.shape) == 1 else value


def whole(what: str, value: Any, kind: type[PzoboError] = OptionError) -> int:
    """A whole number, at least 1."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 1:
        raise kind(f"{what}={value!r}: must be a whole number, at least 1.")
    return number


def _number(value: Any) -> float | None:
    # A tensor that needs a gradient would be used as a constant and learn nothing.
    if isinstance(value, (bool, str)) or getattr(value, "requires_grad", False):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
