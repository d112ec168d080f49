"""What had another name in version 0.1? The old names, which work in this version with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from pzobo.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Say that a name is on its way out, and which one to use."""
    warnings.warn(
        f"{old} is now {new}; the old name goes with the next version.", DeprecationWarning, stacklevel=stacklevel
    )


def keywords(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose keywords old=... are taken for new=..."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in renamed.items():
                if old in kwargs:
                    if new in kwargs:
                        raise OptionError(f"Got both {new}= and {old}=, which is its old name; give {new}=.")
                    warn(f"{old}=", f"{new}=")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accept

    return decorate


def fields(**renamed: str) -> Callable[[type[T]], type[T]]:
    """A dataclass whose fields are also found, and may be given, by their old names."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = cls
        made.__init__ = keywords(**renamed)(made.__init__)
        for old, new in renamed.items():
            setattr(made, old, attribute(old, new))
        return cls

    return decorate


def attribute(old: str, new: str) -> Any:
    """A property by its old name."""

    def get(self: Any) -> Any:
        warn(f"{type(self).__name__}.{old}", f"{type(self).__name__}.{new}")
        return getattr(self, new)

    return property(get)


def method(cls: type, old: str, new: str) -> None:
    """For `__init_subclass__`: a class that defines a method by its old name defines it by the new one."""
    if old in cls.__dict__ and new not in cls.__dict__:
        warn(f"{cls.__qualname__}.{old}()", f"{new}()", stacklevel=4)
        setattr(cls, new, cls.__dict__[old])


MODULES = {
    "bench.runs": "bench.report.runs",
    "bench.summary": "bench.report.summary",
    "directions": "zeroth_order.directions",
    "doctor": "diagnosis.examination",
    "fit": "outer.fitting",
    "method": "outer.method",
    "objective": "outer.objective",
    "problem": "outer.problem",
    "smooth": "zeroth_order.smoothing",
    "solution": "inner.solution",
    "sparse": "tensors.sparse",
}
"""Where the modules that documented names were in have gone, below pzobo."""


class _Moved(types.ModuleType):
    """A module by its old name: what is asked of it is taken from the new one."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"pzobo.{old}")
        self.__dict__["_new"] = f"pzobo.{new}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        warn(self.__name__, self._new)
        return getattr(importlib.import_module(self._new), name)


def keep_old_modules() -> None:
    """Let `from pzobo.objective import Objective` work. What is listed beforehand never hides a function of pzobo."""
    for old, new in MODULES.items():
        sys.modules.setdefault(f"pzobo.{old}", _Moved(old, new))
