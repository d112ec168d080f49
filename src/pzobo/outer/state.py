"""What changes from step to step? x, the optimizer, streams of data and random numbers: saved, restored, left alone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optree
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pzobo.errors import CheckpointError, OptionError
from pzobo.outer.objective import Objective
from pzobo.runs.randomness import random_state, set_random_state
from pzobo.tensors.trees import unique


class RunState:
    """An objective and what moves it, at an outer step.

    Attributes:
        step: outer steps made.
        seconds: their time.
        variables: the tensors of x that are optimized, tied ones once.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Callable[..., torch.optim.Optimizer],
        lr: float | None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        save: Mapping[str, Any],
    ) -> None:
        self.objective, self.save = objective, dict(save)
        self.variables = list(unique(optree.tree_leaves(objective.x)))
        if not self.variables:
            raise OptionError("x holds no floating-point tensor that needs a gradient; there is nothing to optimize.")
        self.device = self.variables[0].device
        self.optimizer = optimizer(self.variables) if lr is None else optimizer(self.variables, lr=lr)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.step = 0
        self.seconds = 0.0
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise OptionError(
                f"{type(self.optimizer).__name__} evaluates the loss several times in a step, by a closure; the outer "
                "loop makes one evaluation for each step. Use an optimizer that steps by gradients: Adam, SGD, ..."
            )
        for name, part in {**self.save, "scheduler": self.scheduler}.items():
            if part is not None and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise OptionError(
                    f"{name} is a {type(part).__name__} without state_dict and load_state_dict; it could not go on."
                )

    def advance(self, loss: float) -> None:
        """One step of the optimizer and its schedule, by the gradients that are in x."""
        self.optimizer.step()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()
        self.step += 1

    @property
    def gradients(self) -> list[Tensor | None]:
        """The hypergradient, in x."""
        return [t.grad for t in self.variables]

    @gradients.setter
    def gradients(self, values: list[Tensor | None]) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            variable.grad = None if value is None else value.to(variable.device)

    def clear(self) -> None:
        """Forget the gradients."""
        self.gradients = [None] * len(self.variables)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "x": [t.detach() for t in self.variables],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            **self._surroundings(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        try:
            for variable, saved in zip(self.variables, state["x"], strict=True):
                if variable.shape != saved.shape or variable.dtype != saved.dtype:
                    raise ValueError(f"x has {_kind(variable)} where it has {_kind(saved)}")
            with torch.no_grad():
                for variable, saved in zip(self.variables, state["x"], strict=True):
                    variable.copy_(saved)
            self._restore_optimizer(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            if state["save"].keys() != self.save.keys():
                raise ValueError(f"save= has {sorted(self.save)} where it has {sorted(state['save'])}")
            self._restore_surroundings(state)
            self.step, self.seconds = state["step"], state["seconds"]
        except Exception as error:
            raise CheckpointError(f"The checkpoint does not fit this run: {error}. It is left as it was.") from error

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        # Torch gives an optimizer's tensors the dtype of their parameter; the bits are those of the dtype they had.
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter, mine in zip(parameters, _by_parameter(state), strict=True):
            for key, saved in mine.items():
                found = self.optimizer.state[parameter].get(key)
                if isinstance(found, Tensor) and isinstance(saved, Tensor) and found.dtype != saved.dtype:
                    self.optimizer.state[parameter][key] = saved.to(found.device)

    def _surroundings(self) -> dict[str, Any]:
        return {
            "objective": self.objective.state_dict(),
            "save": {name: part.state_dict() for name, part in self.save.items()},
            "random": random_state(self.device),
        }

    def _restore_surroundings(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        for name, part in self.save.items():
            part.load_state_dict(state["save"][name])
        set_random_state(state["random"], self.device)

    @contextmanager
    def no_trace(self) -> Iterator[None]:
        """Evaluations inside leave no trace: not in random numbers, streams, saved modules, or gradients."""
        before = copy.deepcopy(self._surroundings())
        gradients = [None if g is None else g.clone() for g in self.gradients]
        try:
            yield
        finally:
            self._restore_surroundings(before)
            self.gradients = gradients

    def rehearse(self) -> None:
        """A loss and its hypergradient without a trace."""
        with self.no_trace():
            self.objective.outer_loss().backward()


def _by_parameter(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state of each parameter, in the order of the groups."""
    for group in state["param_groups"]:
        for number in group["params"]:
            yield state["state"].get(number, {})


def _kind(tensor: Tensor) -> str:
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"
