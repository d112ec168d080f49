"""How is JSON read that may be damaged? As a value that can be shown and computed with, or refused by one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pzobo.errors import DamagedFileError

DEEPEST = 50
"""Lists and dicts in each other; Python itself ends with a RecursionError at a depth that depends on the caller."""
_DIGITS = 308
"""A whole number of so many digits is a float too; a longer one is read as a float, which may be infinite."""
_HALVES = re.compile("[\ud800-\udfff]")


def parse(content: str | bytes) -> Any:
    """The value that a text holds. Every number is a float too, and every string can be written as UTF-8.

    Raises:
        DamagedFileError: it is no JSON, or nested too deep.
    """
    try:
        value = json.loads(content, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"it is not JSON: {shown(str(error))}") from error
    return _clean(value, 0)


def text(path: Path) -> bytes:
    """What a file holds.

    Raises:
        DamagedFileError: it is no file, or cannot be read.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise DamagedFileError("it is not a file")
        return path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"it cannot be read: {error.strerror}") from error


def read(path: Path) -> dict[str, Any]:
    """The dict that a file holds.

    Raises:
        DamagedFileError: the file cannot be read, is no JSON, or holds something else.
    """
    value = parse(text(path))
    if not isinstance(value, dict):
        raise DamagedFileError(f"it holds a {type(value).__name__}, expected a dict")
    return value


def shown(name: str) -> str:
    """A text without halves of characters (of a file name, say), which could not be written anywhere."""
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", name)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _clean(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise DamagedFileError(f"it is nested deeper than {DEEPEST}")
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [_clean(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return {shown(key): _clean(v, depth + 1) for key, v in value.items()}
    return value
