"""What may a number of a solver be? A constant, a function of x, a schedule, or a dict of these by the names in y."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pzobo.errors import OptionError
from pzobo.inner.loops import number
from pzobo.tensors.trees import Tree

Limit = Callable[[str, Any], float]
"""(what it is called, the value) -> the number, if it is in its range."""

_STEPS = ("t", "i", "k", "n", "step", "steps", "iteration", "epoch")
"""Names of an argument that is more likely a step than x."""


@dataclass(frozen=True)
class Schedule:
    """A number of a solver that changes from step to step: `GD(lr=pzobo.Schedule(lambda t: 0.1 * 0.9**t), steps=20)`.

    Steps are counted from 0 on every path. Other values compile nothing anew.

    Args:
        of: a function of the step, or a sequence of numbers, whose last one holds from there on; none of them negative.
        times: a function of x that the number of each step is multiplied with, such as a learned lr; none by default.

    Raises:
        OptionError: `of` is neither a function nor a sequence of numbers, or `times` is no function.

    Examples:
        >>> lr = pzobo.Schedule(lambda t: 0.1 * 0.9**t)
        >>> lr.at(0), lr.at(1)
        (0.1, 0.09000000000000001)
        >>> pzobo.GD(lr=lr, steps=20).steps
        20
    """

    of: Callable[[int], float] | Sequence[float]
    times: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.times is not None and (not callable(self.times) or isinstance(self.times, Schedule)):
            raise OptionError(
                f"Schedule: times={self.times!r}: give a function of x, as in times=lambda x: x[0].exp()."
            )
        if not callable(self.of):
            numbers = isinstance(self.of, (Sequence, Tensor)) and not isinstance(self.of, str)
            values = tuple(float(v) for v in self.of) if numbers else ()
            if not values:
                raise OptionError(f"Schedule({self.of!r}): give a function of the step, or numbers, one for each step.")
            object.__setattr__(self, "of", values)

    def at(self, step: int) -> float:
        """The number at a step."""
        return self.of(step) if callable(self.of) else self.of[min(step, len(self.of) - 1)]


def checked(what: str, value: Any, limit: Limit) -> Any:
    """A number, a pair of numbers, or a dict of them by the names in y, if it makes sense; tensors become numbers."""
    if isinstance(value, Mapping):
        if not value:
            raise OptionError(f"{what}={value!r}: names no part of y.")
        return {key: checked(f"{what}[{key!r}]", part, limit) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(checked(what, part, limit) for part in value)
    if getattr(value, "requires_grad", False):
        name = what.split(": ")[-1].split("[")[0]
        raise OptionError(
            f"{what} is a tensor that requires a gradient, but a solver's numbers are constants: it would get none. "
            f'Make it a part of x, and give a function of x: {name}=lambda x: x["log_{name}"].exp().'
        )
    if isinstance(value, Schedule):
        return value
    if callable(value):
        first = _first_argument(value)
        if first in _STEPS:
            raise OptionError(
                f"{what} is a function of {first!r}: is that the step? Then say pzobo.Schedule(...) around it. A "
                "function without it is one of x; call its argument x."
            )
        return value
    limit(what, value)
    return value.item() if hasattr(value, "item") else value


def _first_argument(function: Callable[..., Any]) -> str:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ""
    return names[0] if names else ""


def is_constant(value: Any) -> bool:
    """Whether a number is the same for all of y, for every x and at every step."""
    if isinstance(value, tuple):
        return all(is_constant(part) for part in value)
    return not (isinstance(value, (Schedule, Mapping)) or callable(value))


@dataclass(frozen=True)
class Source:
    """One number that comes with z: what it is called, where from, and what it may be."""

    what: str
    of: Any
    limit: Limit

    def checked(self, value: Any, where: str) -> None:
        found = value.detach() if isinstance(value, Tensor) else value
        if isinstance(self.of, Schedule) and found == 0:
            return  # a step of no length, as at the start of a warm-up
        try:
            self.limit(self.what, found.item() if isinstance(found, Tensor) else found)
        except OptionError as error:
            raise OptionError(f"{error} It is so {where}.") from None

    def at(self, x: Tree) -> Any:
        """The number at x."""
        value = self.of(x)
        if isinstance(value, Tensor):
            if value.numel() != 1 or not value.is_floating_point():
                raise OptionError(
                    f"{self.what} is a function of x, and gave a {value.dtype} tensor of shape {tuple(value.shape)}, "
                    "where one number is expected. For one for each part of y give a dict of functions by the names in "
                    "y; a function of the step is pzobo.Schedule(...)."
                )
            return value.reshape(())
        if isinstance(value, Mapping):
            raise OptionError(f"{self.what} is a function of x, and gave a dict: give a dict of functions, one a name.")
        self.checked(value, "at this x")
        return number(float(value))
