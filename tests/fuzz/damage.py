"""How is a good file damaged? Values of JSON, trees with other parts, bytes that are changed or gone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -1, 10**400, -(10**400), 1e308, 5e-324, float("nan"), float("inf")]),
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\ud800", "\0", "../../x", "</script>", "$", "|\n", "pzobo", "hr-linear", "x" * 300, "NaN"]),
)
NASTY = st.sampled_from(
    ["\ud800", "\0", "../../x", 10**400, -1, 1e308, float("nan"), None, True, [], {}, ["a"], {"a": []}]
)
"""What has broken a parser before, so that it comes often."""
JSON = NASTY | st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a tree of dicts and lists."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The tree with something else at a place; Ellipsis takes away what is there."""
    if not at:
        return None if new is Ellipsis else new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and new is Ellipsis:
        del copy[at[0]]
    else:
        copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@st.composite
def other_trees(draw: st.DrawFn, good: Any, values: st.SearchStrategy[Any] = JSON) -> Any:
    """A good value with up to three places changed or gone."""
    for _ in range(draw(st.integers(1, 3))):
        good = replaced(good, draw(st.sampled_from(list(paths(good)))), draw(st.just(...) | values))
    return good


@st.composite
def other_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes, cut off, with some changed, put in or gone; or anything at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place, size = draw(st.integers(0, len(content))), draw(st.integers(0, 8))
        content[place : place + size] = draw(st.binary(max_size=8))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 3)) == 0 else content)


def other_json(good: Any) -> st.SearchStrategy[bytes]:
    written = other_trees(good).map(lambda value: json.dumps(value).encode())
    deep = st.integers(40, 3000).map(lambda n: b"[" * n + b"]" * n)
    return written | other_bytes(json.dumps(good).encode()) | deep


class Evil:
    """What makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)
