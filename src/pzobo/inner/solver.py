"""What is a solver to the inner problem? Something that gives y^N, and says what else a Jacobian may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch

from pzobo.errors import OptionError
from pzobo.inner.loops import number
from pzobo.options import freeze, positive, whole
from pzobo.tensors.trees import Leaves

if TYPE_CHECKING:
    from pzobo.inner.problem import InnerProblem


@dataclass(frozen=True)
class Solver(ABC):
    """What every solver states about itself."""

    gives: ClassVar[frozenset[str]] = frozenset()
    """What a Jacobian may ask of it: "gradient" of g, "path" of updates, "map" with a fixed point, "function" of z."""
    opaque: ClassVar[bool] = False
    """Whether nothing is known of it but its answer: it is a function of x itself, and needs no inner loss."""

    @abstractmethod
    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        """y^N for these values of the problem's variables; `functional` inside of `torch.func` transforms."""

    def update_only(self) -> Solver:
        """The solver without what only the path needs: its number of steps."""
        return self


class Iterative(Solver):
    """A solver that repeats one update with the gradient of g: `init` makes its state, `update` is one step.

    `update` is a pure function of tensors, differentiable, and the same on every step.
    """

    steps: int
    gives = frozenset({"gradient", "path", "map"})
    numbers: ClassVar[tuple[str, ...]] = ()
    """Which of its fields may be tensors in `update` and `pull`; compiled code has the others as constants."""
    linear: ClassVar[bool] = True
    """Whether the update is linear in (gradient, y, state): then its transpose does not need the gradient."""

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        return problem.kernel.path(problem.feed(values), problem.y0, functional=functional)[0]

    def with_tensors(self) -> Self:
        """The same solver with tensors for its `numbers`: a view for compiled code, which takes them as inputs.

        A class that inherits an update but not what it does with the numbers says so by `numbers` of its own.
        """
        if "numbers" not in vars(type(self)):
            return self
        alike: Any = object.__new__(type(self))
        alike.__dict__.update(self.__dict__)
        for name in self.numbers:
            value = getattr(self, name)
            made = tuple(number(float(v)) for v in value) if isinstance(value, tuple) else number(float(value))
            object.__setattr__(alike, name, made)
        return cast(Self, alike)

    def with_steps(self, steps: int) -> Self:
        """The same solver with another number of steps."""
        alike: Any = self
        return cast(Self, replace(alike, steps=steps))

    def update_only(self) -> Solver:
        return self.with_steps(1)

    def init(self, y: Leaves) -> Leaves:
        """The state before the first step."""
        return ()

    @abstractmethod
    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        """One step: the next y and the next state, from the gradient of g at y."""

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """The transpose of the update's derivative: cotangents of (y', state') to those of (gradient, y, state)."""
        vjp = torch.func.vjp(self.update, gradient, y, state)[1]
        pulled: tuple[Leaves, Leaves, Leaves] = vjp((y_bar, state_bar))
        return pulled

    def _check(self, **rates: float) -> None:
        """Refuse what is no number, and keep numbers of tensors, not the tensors."""
        object.__setattr__(self, "steps", whole(f"{type(self).__name__}: steps", self.steps))
        for name, value in rates.items():
            if getattr(value, "requires_grad", False):
                raise OptionError(
                    f"{type(self).__name__}: {name} is a tensor that requires a gradient, but a solver's numbers are "
                    "constants: it would get none. Give a float."
                )
            positive(f"{type(self).__name__}: {name}", value)
        freeze(self)
