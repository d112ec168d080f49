"""Which errors of the library can a call raise? What its code raises itself, and in the functions that it calls."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from pzobo import errors
from pzobo.data import DataError

KINDS = {n: c for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.PzoboError)}
KINDS[DataError.__name__] = DataError


def raised(thing: Any) -> set[str]:
    """What making an object, or calling a function, can raise; what is raised deeper than one call is left out."""
    if not isinstance(thing, type):
        return of(thing, depth=1)
    made = [own(thing, name) for name in ("__init__", "__post_init__")]
    return set().union(*(of(function, depth=1, owner=thing) for function in made if function))


def own(kind: type, name: str) -> Callable[..., Any] | None:
    """A method that is written in the library; not one that dataclasses or torch made."""
    found = inspect.getattr_static(kind, name, None)
    found = inspect.unwrap(getattr(found, "__func__", found)) if found is not None else None
    written = inspect.isfunction(found) and (found.__module__ or "").startswith("pzobo")
    return found if written and found.__code__.co_filename != "<string>" else None


@cache
def of(function: Callable[..., Any], depth: int, owner: type | None = None) -> frozenset[str]:
    function = inspect.unwrap(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            found |= {name for name in KINDS if name == getattr(called, "id", getattr(called, "attr", None))}
        if isinstance(node, ast.Call) and (called := target(node.func, function, owner)):
            kinds = {arg.id for arg in node.args if isinstance(arg, ast.Name) and arg.id in KINDS}
            if called.__module__ == "pzobo.options":  # they raise what they are told to, an OptionError by default
                found |= kinds or ({"OptionError"} if called.__name__ != "freeze" else set())
            elif depth:
                found |= of(called, depth - (not is_super(node.func)), owner)
    return frozenset(found)


def is_super(node: ast.expr) -> bool:
    """Whether it is `super().name`: the same call, in the parent."""
    inner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "super"


def target(node: ast.expr, function: Callable[..., Any], owner: type | None) -> Callable[..., Any] | None:
    """The function of the library that is called: by its name, by its module, or as a method of the object itself."""
    found = None
    if isinstance(node, ast.Name):
        found = function.__globals__.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        known = function.__globals__.get(node.value.id)
        found = own(owner, node.attr) if owner and node.value.id == "self" else getattr(known, node.attr, None)
    elif owner and is_super(node):
        methods = [method for kind in owner.__mro__ if (method := vars(kind).get(node.attr))]
        later = methods[methods.index(function) + 1 :] if function in methods else methods
        found = next(iter(later), None)
    ours = inspect.isfunction(found) and found is not function and found.__module__.startswith("pzobo")
    return found if ours else None
