"""What does an outer loop drive? An objective: outer variables, a loss with their hypergradient, and a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pzobo import deprecated
from pzobo.errors import RequirementError
from pzobo.tensors.checks import scalar
from pzobo.tensors.trees import Leaves, Tree


class Turns(NamedTuple):
    """What happened in steps that were made in one call."""

    values: list[float]
    """f at each."""
    norms: list[float]
    """The length of the hypergradient at each."""


class Objective(ABC):
    """What `fit` minimises. A method makes it from a problem; it owns the data order and everything random.

    Somebody else's algorithm becomes one by `outer_loss`, and by `state_dict` if it remembers anything.

    Attributes:
        x: the outer variables, a tree whose tensors are changed in place by an optimizer.
        y: the inner solution of the last call of `outer_loss`; None for an objective that has none.

    Examples:
        >>> class Bowl(pzobo.Objective):
        ...     def __init__(self):
        ...         self.x = torch.ones(2, requires_grad=True)
        ...
        ...     def outer_loss(self):
        ...         return self.x.square().sum()
        >>> class Method:
        ...     def start(self, problem, seed=0):
        ...         return Bowl()
        >>> pzobo.fit(None, Method(), steps=50, lr=0.1, progress=False).x.norm() < 0.1
        tensor(True)
    """

    x: Tree
    y: Tree = None

    @abstractmethod
    def outer_loss(self) -> Tensor:
        """f of the next step, on its next batches: `.backward()` gives the hypergradient in x."""

    def hypergradient(self) -> Tensor:
        """f of the next step, a number; its hypergradient is added to the gradients in x."""
        loss = differentiable(self.outer_loss())
        loss.backward()
        return loss.detach()

    def leaps(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `move` and `turns` stand for the steps of this optimizer, so that many can be made in one call."""
        return False

    def ahead(self, most: int) -> int:
        """How many of the next steps one call of `turns` can make: at most `most`, and 0 if not even the next."""
        return 0

    def turns(self, steps: Sequence[Sequence[float]]) -> Turns:
        """Many steps in one call. For each row of `steps`, x moves as by `move`; then its gradient is what `outer_loss`
        and `backward` give.

        Args:
            steps: the lengths of the steps, one row a turn.
        """
        raise NotImplementedError(f"{type(self).__name__} makes one step after the other.")

    def move(self, steps: Sequence[float]) -> None:
        """x moves against its gradient, by a length for each of its tensors that are optimized."""
        raise NotImplementedError(f"{type(self).__name__} leaves x to the optimizer.")

    def inner_loss(self) -> float | None:
        """g where the last path ended, if there is one."""
        return None

    def replaced(self) -> Leaves:
        """Tensors of the state that a step replaces and never writes into: an evaluation needs no copy of them."""
        return ()

    def data(self) -> Tree:
        """The data of its losses, if they are at hand: the devices that they are on belong to the run."""
        return None

    def chosen(self) -> str:
        """What was chosen on the way, in one line: by `pzobo.Auto`, say. Empty if there was no choice."""
        return ""

    def suspects(self) -> str:
        """What in the state may be the reason where f or its hypergradient is not finite, in a sentence or two."""
        return ""

    def audit(self) -> dict[str, float]:
        """What was measured of the last hypergradient, if it was looked at; see `pzobo.Argmin(audit=)`."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """Metrics at the present x and the last inner solution, without a trace in any state."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step besides x: streams of random numbers, warm starts, positions in data.

        Tensors, numbers, strings, lists and dicts of them, so that a checkpoint holds no code.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most objectives have no state)
        """Go on where `state_dict` was taken."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        deprecated.method(cls, "loss", "outer_loss")

    def loss(self) -> Tensor:
        """The old name of `outer_loss`."""
        deprecated.warn("Objective.loss()", "outer_loss()")
        return self.outer_loss()


def differentiable(loss: Any) -> Tensor:
    """The outer loss, if it is a number that has a hypergradient."""
    number = scalar(loss, "The outer loss")
    if not number.requires_grad:
        raise RequirementError("The outer loss does not depend on x, so it has no hypergradient: look at both.")
    return number


class Startable(Protocol):
    """A method: a solver with a Jacobian (`pzobo.Method`), `pzobo.HOZOG`, or a learner of `pzobo.meta`."""

    def start(self, problem: Any, seed: int = 0) -> Objective:
        """The objective of a problem; all its random numbers follow from the seed."""
        ...
