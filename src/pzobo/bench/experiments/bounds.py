"""Which numbers may an option have? Finite ones above zero, whole ones from 1, unless its annotation says others."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pzobo.errors import OptionError

MANY = 10**9
"""More than this of anything cannot be meant, and products of two such numbers fit into 64 bits."""

INNER_STEPS = 10**8
"""More of them in one outer step are not meant either: at 10 microseconds each, which few problems reach, they take a
quarter of an hour."""


@dataclass(frozen=True)
class Within:
    """In an annotation, as in `Annotated[int, Within(0)]`: the least and the largest value, and whether it may be the
    least."""

    low: float
    high: float = math.inf
    closed: bool = True


@dataclass(frozen=True)
class NotEmpty:
    """In an annotation of a tuple: there must be something in it."""


FromZero = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]
AnyNumber = Annotated[float, Within(-math.inf)]
Count = Annotated[int, Within(0)]
Often = Count | str
"""A number of steps, or seconds as a text such as "2s"."""


def check(options: Any) -> None:
    """Refuse the first number of a dataclass that is out of its bounds."""
    hints = get_type_hints(type(options), include_extras=True)
    for f in fields(options):
        kinds, notes = _flat(hints[f.name])
        value = getattr(options, f.name)
        if NotEmpty() in notes and not value:
            raise OptionError(f"{f.name} is empty: give at least one value.")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, (int, float)) and not isinstance(item, bool):
                within = next((note for note in notes if isinstance(note, Within)), None)
                _number(f.name, item, float not in kinds, within)


def check_work(options: Any) -> None:
    """Refuse directions and inner steps that make one outer step endless."""
    directions = getattr(options, "directions", 1)
    lengths = [getattr(options, name, ()) for name in ("N", "also_N")]
    N = max([1, *(n for length in lengths for n in (length if isinstance(length, tuple) else (length,)))])
    if directions * N > INNER_STEPS:
        raise OptionError(
            f"directions={directions} and N={N}: one outer step would make {directions * N:.1e} inner steps, one path "
            f"of N for each direction. More than {INNER_STEPS:.0e} are refused: it would take hours. Choose fewer."
        )


def _flat(hint: Any) -> tuple[set[Any], list[Any]]:
    """All types in an annotation, and all notes."""
    if get_origin(hint) is None or not (parts := get_args(hint)):
        return {hint}, []
    kinds, notes = set(), []
    if get_origin(hint) is Annotated:
        parts, notes = parts[:1], list(parts[1:])
    for part in parts:
        more = _flat(part)
        kinds |= more[0]
        notes += more[1]
    return kinds, notes


def _number(name: str, value: Any, whole: bool, within: Within | None) -> None:
    bounds = within or Within(1 if whole else 0, closed=whole)
    high = min(bounds.high, MANY) if whole else bounds.high
    fits = bounds.low <= value <= high and (bounds.closed or value > bounds.low) and math.isfinite(value)
    if fits and (not whole or (hasattr(value, "__index__") and operator.index(value) == value)):
        return
    kind = "a whole number" if whole else "a finite number"
    least = "" if bounds.low == -math.inf else f" from {bounds.low:g}" if bounds.closed else f" above {bounds.low:g}"
    most = "" if high == math.inf else f" {'to' if bounds.closed and least else 'up to'} {high:.10g}"
    raise OptionError(f"{name}={value!r}: must be {kind}{least}{most}.")
