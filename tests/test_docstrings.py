"""Does every public function and class say what it takes, returns and raises, and does its example run?"""

from __future__ import annotations

import builtins
import doctest
import importlib
import inspect
import io
import itertools
import re
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import pzobo
from tests.raising import KINDS, raised
from tests.test_docs import assert_printed

ROOMS = ("algorithms", "data", "distributed", "meta", "networks", "problems", "sklearn", "theory")
PACKAGES = ["pzobo", *(f"pzobo.{name}" for name in ROOMS)]

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


def section(doc: str, name: str) -> list[str]:
    """The lines of a section."""
    lines = inspect.cleandoc(doc).splitlines()
    after = lines[lines.index(name) + 1 :] if name in lines else []
    return list(itertools.takewhile(lambda line: not line or line.startswith(" "), after))


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


def returns(function: Any) -> bool:
    """Whether a function says that it gives something."""
    return inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty)


CALLED = [
    pytest.param(function, id=getattr(function, "__qualname__", ""))
    for thing in (parameter.values[0] for parameter in PUBLIC)
    for function in ([vars(thing)["__call__"]] if "__call__" in getattr(thing, "__dict__", {}) else [thing])
    if inspect.isfunction(function) and returns(function)
]
"""Public functions, and what objects do when they are called."""

FILES = {"mnist", "fashion_mnist", "omniglot", "miniimagenet", "newsgroups", "Newsgroups", "Texts"}
"""They need files that tests do not have; `docs/data.md` shows how they are used."""


@pytest.mark.parametrize("function", CALLED)
def test_what_is_returned_is_said(function):
    assert section(function.__doc__, "Returns:"), "no section Returns:"


# Shapes

TENSORS = re.compile(r"\b(Tensor|Tree|Leaves|Vector|SparseMatrix)\b")
FUNCTION = re.compile(r"Callable\[(\[[^\]]*\]|[^\[\]])*\]")
DIMENSIONS = re.compile(r"\((\w[\w*+ ]*,|\w[\w*+ ]*(?:, \w[\w*+ ]*)+)\)")
"""(n,) or (n, d); a dimension may be computed, as in (ways * shots,)."""
LETTERS = {"x", "y", "z", "x0", "y0"}
"""What these are is said on the first page."""


def has_tensors(annotation: Any) -> bool:
    """Whether a value of this type has shapes. A function has none."""
    return bool(TENSORS.search(FUNCTION.sub("", str(annotation))))


def says_shape(text: str, doc: str, names: set[str]) -> bool:
    """Whether a text has "a scalar", "a tree of tensors", "like y" of something known, or dimensions as (n, d): each
    a number, an argument, or a letter that the docstring has elsewhere too."""
    if re.search(r"\ba scalar\b|\btrees? of tensors\b|\btensors of a tree\b", text):
        return True
    if (names | LETTERS).intersection(re.findall(r"\blike (?:that of )?`?(\w+)", text)):
        return True
    words = re.findall(r"\w+", doc)
    shapes = [re.findall(r"\w+", found) for found in DIMENSIONS.findall(text)]
    return any(all(d.isdigit() or d in names or words.count(d) > 1 for d in shape) for shape in shapes)


def lines(doc: str, *sections: str) -> dict[str, str]:
    """The whole line of each name in these sections."""
    found: dict[str, str] = {}
    for line in itertools.chain.from_iterable(section(doc, name) for name in sections):
        if entry := ENTRY.match(line):
            found[name := entry[1]] = line
        elif found and line.strip():
            found[name] += " " + line.strip()
    return found


METHODS = [
    pytest.param(method, id=method.__qualname__)
    for thing in (parameter.values[0] for parameter in PUBLIC)
    for method in getattr(thing, "__dict__", {}).values()
    if inspect.isfunction(method) and "Args:" in (method.__doc__ or "")
]
"""Methods that say what they take."""


@pytest.mark.parametrize("thing", PUBLIC + METHODS)
def test_every_tensor_has_a_shape(thing):
    said = lines(thing.__doc__, "Args:", "Attributes:")
    takes = inspect.signature(thing).parameters
    shapeless = {
        name: said[name]
        for name, parameter in takes.items()
        if name in said and has_tensors(parameter.annotation) and not says_shape(said[name], thing.__doc__, set(takes))
    }
    assert not shapeless, f"no shape is said, such as (n, d), like y, a tree of tensors: {shapeless}"


@pytest.mark.parametrize("function", CALLED)
def test_every_tensor_that_is_returned_has_a_shape(function):
    signature = inspect.signature(function)
    said = " ".join(section(function.__doc__, "Returns:"))
    if has_tensors(signature.return_annotation):
        assert says_shape(said, function.__doc__, set(signature.parameters))


def test_what_counts_as_a_shape():
    doc = "x is (n, d). y is (n,). A tree like x. z is (k,)."
    for said in ("a tree of tensors", "like `x`", "like that of `weights()`", "images (n, 3)", "a scalar", "(n + 1,)"):
        assert says_shape(said, doc, {"weights"}), said
    for empty in ("a tensor", "any tensor", "(PZOBO)", "(momenta, moments)", "(k,)", "like others", "of a shape", "()"):
        assert not says_shape(empty, doc, {"weights"}), empty
    assert has_tensors("Tensor | None")
    assert has_tensors("Sequence[Tree]")
    assert not has_tensors("Callable[[Any, Tensor], Tensor] | None")
    assert lines("A.\n\nArgs:\n    a: one\n        two\n    b: three", "Args:")["a"].endswith("one two")


@pytest.mark.parametrize("thing", PUBLIC)
def test_what_is_raised_is_said(thing):
    missing = raised(thing) - entries(thing.__doc__, "Raises:")
    assert not missing, f"no line in Raises: for {', '.join(sorted(missing))}"


@pytest.mark.parametrize("thing", PUBLIC)
def test_what_is_said_to_be_raised_exists(thing):
    unknown = entries(thing.__doc__, "Raises:") - set(KINDS) - set(vars(builtins))
    assert not unknown


def numbers_like(found: str, expected: str) -> bool:
    """The same words, and numbers within a tenth, as on the pages of the documentation."""
    try:
        assert_printed(found.strip(), expected.strip(), "")
    except AssertionError:
        return False
    return True


class Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or numbers_like(got, want)


@pytest.mark.parametrize("thing", [p for p in PUBLIC if p.id.rpartition(".")[2] not in FILES])
def test_the_example_runs(thing):
    """With `torch` and `pzobo` and nothing else, it prints what it says."""
    name = thing.__name__
    test = doctest.DocTestParser().get_doctest(thing.__doc__, {"torch": torch, "pzobo": pzobo}, name, None, None)
    assert test.examples, "no example"
    out = io.StringIO()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        doctest.DocTestRunner(Checker(), optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=out.write)
    assert not out.getvalue(), out.getvalue()


def test_what_counts_as_raised():
    """By itself, by a function it calls, by a parent, by a check of options that is told what to raise."""
    assert raised(pzobo.Direct) == set()
    assert raised(pzobo.over_tasks) == {"OptionError"}
    assert raised(pzobo.GD) == {"OptionError"}
    assert raised(pzobo.PZOBO) == {"DirectionsError", "OptionError", "SmoothingError"}


def test_what_counts_as_a_line():
    doc = """First line, with x: a word and a colon.

    Args:
        a: a number; see
            b: which is only the rest of the sentence.
        **c: others.
        d:

    Attributes:
        e: a result.

    Returns:
        A number.

    Examples:
        f: is no argument.
    """
    assert section(doc, "Returns:") == ["    A number.", ""]
    assert section(doc, "Raises:") == []
    assert entries(doc, "Args:") == {"a", "c"}
    assert entries(doc, "Args:", "Attributes:") == {"a", "c", "e"}
