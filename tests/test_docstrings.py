"""Does every public function and class say what its arguments are? Each argument has a line of the docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from torch import nn

PACKAGES = ["pzobo", *(f"pzobo.{name}" for name in ("algorithms", "data", "networks", "problems", "meta", "theory"))]

ENTRY = re.compile(r" {4}(?:\*{1,2})?(\w+): +\S")
"""A line `name: what it is` of a section. Where it goes on in the next line, that one is indented further."""


def public() -> Iterator[Any]:
    """Each public function and class. Exceptions are not made by users, and modules have no arguments."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            exception = isinstance(found, type) and issubclass(found, BaseException)
            if not exception and not isinstance(found, ModuleType):
                yield pytest.param(found, id=f"{package}.{name}")


PUBLIC = list(public())


def arguments(thing: Any) -> set[str]:
    """The names in a signature. A module of torch without `__init__` has torch's, which takes nothing."""
    if isinstance(thing, type) and thing.__init__ is nn.Module.__init__:
        return set()
    return set(inspect.signature(thing).parameters)


def entries(doc: str, *sections: str) -> set[str]:
    """The names that have a line in these sections of a docstring."""
    names, section = set(), ""
    for line in inspect.cleandoc(doc).splitlines():
        if line and not line.startswith(" "):
            section = line
        elif section in sections and (entry := ENTRY.match(line)):
            names.add(entry[1])
    return names


def explained(thing: Any) -> set[str]:
    """The names that a docstring explains, and those of a parent that it refers to, as in "A `Problem` that..."."""
    doc = thing.__doc__ or ""
    parents = [p for p in getattr(thing, "__bases__", ()) if f"`{p.__name__}`" in doc]
    return entries(doc, "Args:", "Attributes:").union(*map(explained, parents))


@pytest.mark.parametrize("thing", PUBLIC)
def test_every_argument_has_a_line(thing):
    missing = arguments(thing) - explained(thing)
    assert not missing, f"no line `name: ...` for {', '.join(sorted(missing))}"


@pytest.mark.parametrize("thing", PUBLIC)
def test_no_line_is_about_an_argument_that_is_gone(thing):
    gone = entries(thing.__doc__, "Args:") - arguments(thing)
    assert not gone, f"Args: has a line for {', '.join(sorted(gone))}"


def test_what_counts_as_a_line():
    doc = """First line, with x: a word and a colon.

    Args:
        a: a number; see
            b: which is only the rest of the sentence.
        **c: others.
        d:

    Attributes:
        e: a result.

    Examples:
        f: is no argument.
    """
    assert entries(doc, "Args:") == {"a", "c"}
    assert entries(doc, "Args:", "Attributes:") == {"a", "c", "e"}
