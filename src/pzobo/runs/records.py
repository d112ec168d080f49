"""How does JSON become a record? By the annotations of a dataclass; what does not fit them is named in a sentence."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pzobo.errors import DamagedFileError


def built(kind: Any, value: Any, where: str = "it") -> Any:
    """The value as `kind`: a dataclass, a tuple, a union, a Literal, or one of str, bool, int, float and None.

    Args:
        kind: a type, as in an annotation.
        value: from JSON.
        where: its name, for the error.
    """
    options = get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, value, where)
    if get_origin(kind) in (Union, types.UnionType):
        fitting = next((option for option in options if _alike(option, value)), options[0])
        return built(fitting, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        kinds = [options[0]] * len(value) if options[-1] is Ellipsis else options
        if len(kinds) != len(value):
            raise DamagedFileError(f"{where} has {len(value)} items, expected {len(kinds)}")
        return tuple(built(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if not _alike(kind, value):
        raise _wrong(where, value, " or ".join(map(repr, options)) or getattr(kind, "__name__", str(kind)))
    return float(value) if kind is float else value


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a dict")
    hints = get_type_hints(kind)
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    for found, what in ((needed - value.keys(), "has no"), (value.keys() - hints.keys(), "has an unknown")):
        if found:
            raise DamagedFileError(f"{where} {what} {sorted(found)[0]!r}")
    return kind(**{key: built(hints[key], v, f"{where}.{key}") for key, v in value.items()})


def _alike(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _wrong(where: str, value: Any, expected: str) -> DamagedFileError:
    return DamagedFileError(f"{where} is {str(value)[:40]!r}, expected {expected}")
