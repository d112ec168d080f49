"""What changes from step to step? x, the optimizer, streams of data and random numbers: saved, restored, left alone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pzobo.errors import CheckpointError, OptionError
from pzobo.options import positive
from pzobo.outer.arguments import wrong
from pzobo.outer.objective import Objective, differentiable
from pzobo.runs.randomness import random_state, set_random_state
from pzobo.runs.rows import Row
from pzobo.tensors.checks import untouched
from pzobo.tensors.replay import devices_of
from pzobo.tensors.trees import unique


@dataclass
class Pending:
    """A row whose step is not made yet, and the time that its loss and hypergradient took."""

    row: Row
    taken: float


class RunState:
    """An objective and what moves it, at an outer step.

    Attributes:
        step: outer steps made.
        seconds: their time.
        variables: the tensors of x that are optimized, tied ones once.
        devices: those of x, y and the data, but for the CPU.
        pending: a row whose step is not made yet, if there is one.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Callable[..., torch.optim.Optimizer],
        lr: float | None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        save: Mapping[str, Any],
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.objective, self.save = objective, dict(save)
        self.variables = list(unique(optree.tree_leaves(objective.x)))
        if not self.variables:
            raise OptionError("x holds no floating-point tensor that needs a gradient; there is nothing to optimize.")
        used: Any = (self.variables, objective.y, objective.data())
        self.devices = devices_of(optree.tree_leaves(used))
        self.optimizer = _optimizer(optimizer, self.variables, lr)
        self.scaler = None if scaler is None else _scaler(scaler, self.variables)
        self.scheduler = None if scheduler is None else _scheduler(scheduler, self.optimizer)
        self.step = 0
        self.seconds = 0.0
        self.pending: Pending | None = None
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

    def hypergradient(self) -> Tensor:
        """f at x, a number; its hypergradient is in x. With a scaler it is not finite where something overflowed."""
        if self.scaler is None:
            return self.objective.hypergradient()
        loss = differentiable(self.objective.outer_loss())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        return loss.detach()

    def advance(self, row: Row) -> None:
        """One step of the optimizer and its schedule, by the gradients that are in x; none if a scaler skips it."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.step += 1
        if self.scaler is not None and row.hypergradient_norm is None:
            return  # a schedule counts the steps that were made
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(row.outer_loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def leaps(self) -> bool:
        """Whether the objective can make many steps in one call."""
        plain = self.scaler is None and not isinstance(self.scheduler, ReduceLROnPlateau)
        return plain and self.objective.leaps(self.optimizer)

    def lengths(self, turns: int) -> list[list[float]]:
        """How far plain SGD moves each tensor of x at its next steps. The schedule goes on as after these steps."""
        gradients, found = self.gradients, []
        for _ in range(turns):
            rates = {id(p): float(group["lr"]) for group in self.optimizer.param_groups for p in group["params"]}
            found.append([rates.get(id(variable), 0.0) for variable in self.variables])
            if self.scheduler is not None:
                self.clear()
                self.optimizer.step()  # moves nothing, and a schedule wants to see it
                self.scheduler.step()
        self.gradients = gradients
        return found

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
            **({} if self.scaler is None else {"scaler": self.scaler.state_dict()}),
            "pending": self.pending
            and {"row": dict(self.pending.row), "taken": self.pending.taken, "gradients": self.gradients},
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
            if ("scaler" in state) != (self.scaler is not None):
                raise ValueError("one of the two has a scaler, and the other has none")
            if self.scaler is not None and self.scaler.is_enabled():
                self.scaler.load_state_dict(state["scaler"])
            if state["save"].keys() != self.save.keys():
                raise ValueError(f"save= has {sorted(self.save)} where it has {sorted(state['save'])}")
            if (pending := state["pending"]) is not None:
                self._restore_scaler(pending["gradients"])
                self.gradients = pending["gradients"]
                self.pending = Pending(Row.of(pending["row"]), float(pending["taken"]))
            self.step, self.seconds = state["step"], state["seconds"]
            self._restore_surroundings(state)
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

    def _restore_scaler(self, gradients: list[Tensor | None]) -> None:
        """Let the scaler know again that gradients were scaled back, and whether all are finite: its state has that
        not."""
        if self.scaler is not None:
            self.gradients = [None if g is None else g * 0 for g in gradients]  # what is not finite stays so
            self.scaler.scale(torch.zeros_like(self.variables[0]))  # puts the scale on the device
            self.scaler.unscale_(self.optimizer)

    def _surroundings(self) -> dict[str, Any]:
        return {
            "objective": self.objective.state_dict(),
            "save": {name: part.state_dict() for name, part in self.save.items()},
            "random": random_state(self.devices),
        }

    def _restore_surroundings(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        set_random_state(state["random"], self.devices)
        for name, part in self.save.items():  # the last: these are the caller's, and stay as they are if the rest fails
            part.load_state_dict(state["save"][name])

    @contextmanager
    def no_trace(self) -> Iterator[None]:
        """Evaluations inside leave no trace: not in random numbers, streams, saved modules, or gradients.

        What they could change is copied before; y, which may be large, must not be written into.
        """
        fixed = self.objective.replaced()
        before = copy.deepcopy(self._surroundings(), {id(t): t for t in fixed})
        gradients = [None if g is None else g.clone() for g in self.gradients]
        try:
            with untouched(fixed, "evaluate", "y", closely=False):
                yield
        finally:
            self._restore_surroundings(before)
            self.gradients = gradients

    def rehearse(self) -> None:
        """Losses and their hypergradients without a trace: the third is the first that is not looked at closely, and
        compiles what later ones use."""
        with self.no_trace():
            for _ in range(3):
                self.objective.hypergradient()


def _optimizer(make: Any, variables: list[Tensor], lr: float | None) -> torch.optim.Optimizer:
    advice = "give a class of torch.optim, or a function of the tensors, as in optimizer=torch.optim.Adam"
    if lr is not None:
        positive("lr", lr)
    if not callable(make):
        raise wrong("optimizer", make, advice)
    try:
        made = make(variables) if lr is None else make(variables, lr=lr)
    except (TypeError, ValueError) as error:
        given = "the tensors" if lr is None else f"the tensors and lr={lr}"
        raise OptionError(f"optimizer= cannot be made of {given} ({error}): {advice}.") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise OptionError(f"optimizer= made a {type(made).__name__}, expected a torch.optim.Optimizer: {advice}.")
    return made


def _scaler(scaler: Any, variables: list[Tensor]) -> torch.amp.GradScaler:
    """A copy, so that the same call makes the same run."""
    if not isinstance(scaler, torch.amp.GradScaler):
        raise wrong("scaler", scaler, "give a torch.amp.GradScaler, as in scaler=torch.amp.GradScaler('cuda')")
    if any(variable.dtype == torch.float16 for variable in variables):
        raise OptionError(
            "A scaler cannot scale back gradients in float16, which x is in: keep x in float32, and convert it in the "
            "losses."
        )
    return copy.deepcopy(scaler)


def _scheduler(make: Any, optimizer: torch.optim.Optimizer) -> Any:
    advice = "give a function of the optimizer, as in scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 80)"
    if not callable(make):
        raise wrong("scheduler", make, advice)
    try:
        made = make(optimizer)
    except (TypeError, ValueError) as error:
        raise OptionError(f"scheduler= cannot be made of the optimizer ({error}): {advice}.") from error
    if not callable(getattr(made, "step", None)):
        raise OptionError(f"scheduler is a {type(made).__name__} without step(): {advice}.")
    return made


def _by_parameter(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state of each parameter, in the order of the groups."""
    for group in state["param_groups"]:
        for number in group["params"]:
            yield state["state"].get(number, {})


def _kind(tensor: Tensor) -> str:
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"
