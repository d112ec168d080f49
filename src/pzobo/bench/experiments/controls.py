"""What is run beside the methods? Controls: each step tries something, and no gradient moves x."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pzobo.outer.objective import Objective


class Control(Objective):
    """An objective without a hypergradient.

    Args:
        problem: the problem.
        x: what is optimized, if the control has such a thing; one number that means nothing by default.
    """

    def __init__(self, problem: Any, x: Tensor | None = None) -> None:
        self.problem = problem
        self.x: Tensor = torch.zeros(1, requires_grad=True) if x is None else x

    @abstractmethod
    def attempt(self) -> float:
        """Try the next thing; f of the best so far."""

    def outer_loss(self) -> Tensor:
        loss: Tensor = self.attempt() + 0.0 * self.x.sum()
        return loss


class Plain(Control):
    """A model that is fitted at the first step, and has one.

    Args:
        problem: the problem.
        fit: fits it, and gives its metrics, "val_loss" among them.
    """

    def __init__(self, problem: Any, fit: Callable[[], dict[str, float]]) -> None:
        super().__init__(problem)
        self._fit, self.found = fit, dict[str, float]()

    def attempt(self) -> float:
        self.found = self.found or self._fit()
        return self.found["val_loss"]

    def evaluate(self) -> dict[str, float]:
        return dict(self.found)

    def state_dict(self) -> dict[str, Any]:
        return {"found": dict(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found = dict(state["found"])
