"""What is a solver to the inner problem? Something that gives y^N, and says what else a Jacobian may ask of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch

from pzobo.inner.loops import number
from pzobo.inner.numbers import Limit, checked, is_constant
from pzobo.options import freeze, in_range, whole
from pzobo.tensors.trees import Leaves

if TYPE_CHECKING:
    from pzobo.inner.problem import InnerProblem


@dataclass(frozen=True)
class Solver(ABC):
    """What every solver states about itself.

    Examples:
        >>> isinstance(pzobo.GD(lr=0.1, steps=5), pzobo.Solver)
        True
    """

    gives: ClassVar[frozenset[str]] = frozenset()
    """What a Jacobian may ask of it: "gradient" of g, "path" of updates, "map" with a fixed point, "function" of z."""
    opaque: ClassVar[bool] = False
    """Whether nothing is known of it but its answer: it is a function of x itself, and needs no inner loss."""

    @abstractmethod
    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        """y^N for these values of the problem's variables; `functional` inside of `torch.func` transforms."""

    def solve_all(self, problem: InnerProblem, values: Iterable[Leaves]) -> list[Leaves]:
        """The same for many values, side by side if the solver can."""
        return [self.solve(problem, one) for one in values]

    @property
    def side_by_side(self) -> bool:
        """Whether `solve_all` is faster than one after the other."""
        return False

    def update_only(self) -> Solver:
        """The solver without what only the path needs: its number of steps."""
        return self


class Iterative(Solver):
    """A solver that repeats one update with the gradient of g: `init` makes its state, `update` is one step.

    `update` is a pure function of tensors, differentiable, and the same on every step. A solver of your own is a frozen
    dataclass with these two, `steps`, and whatever numbers it needs; `pzobo.testing.check_solver` looks at it.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, repr=False)
        ... class Sign(pzobo.Iterative):
        ...     lr: float
        ...     steps: int
        ...
        ...     def update(self, gradient, y, state):
        ...         return tuple(t - self.lr * g.sign() for t, g in zip(y, gradient)), state
        >>> inner_loss = lambda x, y, batch: (y - x).square().sum()
        >>> argmin = pzobo.Argmin(inner_loss, solver=Sign(0.5, 4), jacobian=pzobo.Direct())
        >>> argmin(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1., 2.])
    """

    steps: int
    tol: float = 0.0
    """A path ends when |dg/dy| is no more than this; 0 makes all `steps`."""
    weight_decay: Any = 0.0
    """Half of it times |y|^2 is added to g, unless the solver is `decoupled`."""
    decoupled: ClassVar[bool] = False
    """Whether its update itself applies the weight decay."""
    gives = frozenset({"gradient", "path", "map"})
    numbers: ClassVar[tuple[str, ...]] = ()
    """Which of its fields may be tensors in `update` and `pull`; compiled code has the others as constants. They
    may be functions of x, schedules, and dicts by the names in y."""
    limits: ClassVar[Mapping[str, Limit]] = {}
    """What these may be."""
    linear: ClassVar[bool] = False
    """Whether the update is linear in (gradient, y, state): then its transpose does not need the gradient."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """What is known of an update is not true of another one: `linear` and `pull` are not inherited without it."""
        super().__init_subclass__(**kwargs)
        if "update" in vars(cls):
            known: dict[str, Any] = {"linear": False, "pull": Iterative.pull}
            for name in known.keys() - vars(cls).keys():
                setattr(cls, name, known[name])

    def __post_init__(self) -> None:
        self._check()

    def __repr__(self) -> str:
        """As a call; what is added to a solver only where it is asked for is left out where it is not."""
        shown = [(f.name, getattr(self, f.name)) for f in fields(self)]
        kept = [f"{name}={value!r}" for name, value in shown if value or name not in _EXTRAS]
        return f"{type(self).__name__}({', '.join(kept)})"

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        return self.path(problem, values, functional)[0]

    def path(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> tuple[Leaves, Leaves]:
        """y^N and the state after it."""
        y0, state = problem.start(values), problem.call.state
        return problem.kernel.path(problem.feed(values), y0, functional=functional, state=state)

    def alike(self, **values: Any) -> Self:
        """The same solver with other values, which are not looked at."""
        made: Any = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return cast(Self, made)

    def with_tensors(self) -> Self:
        """The same solver with tensors for its `numbers`: a view for compiled code, which takes them as inputs.

        A class that inherits an update but not what it does with the numbers says so by `numbers` of its own.
        """
        if "numbers" not in vars(type(self)):
            return self
        return self.alike(**{name: _tensors(getattr(self, name)) for name in self.numbers})

    @property
    def constant(self) -> bool:
        """Whether its numbers are the same for all of y, for every x and at every step."""
        return all(is_constant(getattr(self, name)) for name in self.numbers)

    def with_steps(self, steps: int) -> Self:
        """The same solver with another number of steps."""
        alike: Any = self
        return cast(Self, replace(alike, steps=steps))

    def update_only(self) -> Solver:
        return self.alike(steps=1, **({"tol": 0.0} if self.tol else {}))

    def init(self, y: Leaves) -> Leaves:
        """The state before the first step."""
        return ()

    @abstractmethod
    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        """One step: the next y and the next state, from the gradient of g at y."""

    def update_(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        """The same step in the same bits, which may write into y and state. By default it does not."""
        return self.update(gradient, y, state)

    @property
    def owning(self) -> Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]:
        """`update_`, or `update` where a class that inherits the first has an update of its own."""
        for kind in type(self).__mro__:
            if "update_" in vars(kind):
                return self.update_
            if "update" in vars(kind):
                break
        return self.update

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """The transpose of the update's derivative: cotangents of (y', state') to those of (gradient, y, state)."""
        vjp = torch.func.vjp(self.update, gradient, y, state)[1]
        pulled: tuple[Leaves, Leaves, Leaves] = vjp((y_bar, state_bar))
        return pulled

    def _check(self) -> None:
        """Refuse what is no number, and keep numbers of tensors, not the tensors."""
        name = type(self).__name__
        object.__setattr__(self, "steps", whole(f"{name}: steps", self.steps))
        in_range(f"{name}: tol", self.tol, 0, math.inf)
        for field, limit in type(self).limits.items():
            object.__setattr__(self, field, checked(f"{name}: {field}", getattr(self, field), limit))
        freeze(self)


_EXTRAS = ("weight_decay", "tol", "nesterov")


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_tensors(part) for part in value)
    return number(float(value)) if isinstance(value, (int, float)) else value
