"""How is a bilevel problem trained from start to end? The outer loop: progress, metrics, checkpoints, resume."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pzobo import trees
from pzobo.errors import CheckpointError, NonFiniteError, OptionError, PzoboError
from pzobo.identity import fingerprint, plain, words
from pzobo.listeners import board, interrupts
from pzobo.memory import Peak
from pzobo.objective import Objective, Startable
from pzobo.options import whole
from pzobo.progress import Progress
from pzobo.randomness import random_state, seeded, set_random_state
from pzobo.run_folder import Metrics, RunFolder
from pzobo.trees import Tree

Row = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """What a run came to.

    Attributes:
        x: the outer variables.
        y: the last inner solution, for methods that have one.
        history: the rows of metrics, as in metrics.jsonl.
        steps: outer steps made.
        seconds: their time, without evaluation.
        stopped: "steps", "target" or "seconds".
    """

    x: Tree
    y: Tree
    history: list[Row]
    steps: int
    seconds: float
    stopped: str


def fit(
    problem: Any,
    method: Startable,
    steps: int,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    lr: float | None = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: Callable[[Objective], Mapping[str, float]] | None = None,
    evaluate_every: int = 10,
    checkpoint_every: int = 50,
    target: float | Callable[[Row], bool] | None = None,
    seconds: float | None = None,
    save: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    warm_up: bool = False,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Fit:
    """Minimise a problem's outer loss by a method, step by step.

    Row k of the metrics is taken before outer step k: `step`, `seconds` (of the steps so far, without evaluation),
    `outer_loss`, `hypergradient_norm`, `memory` (peak, in MB) and, where an evaluation is due, `inner_loss` and what
    `evaluate` gives. A last row follows the last step.

    A run in a folder can be stopped at any moment, by Ctrl-C, SIGTERM or kill -9; with `resume=True` it goes on from
    its last checkpoint, and on the same machine ends in the same bits as a run that was never stopped.

    Args:
        problem: a `Problem`, or what the method's `start` takes.
        method: a `Method`, or anything with `start(problem, seed) -> Objective`.
        steps: outer steps in all, those before a resume included.
        optimizer: called with the tensors of x, and with `lr=` if that is given: a class of torch.optim, or a function.
        lr: the outer learning rate.
        scheduler: called with the optimizer, as in `lambda o: torch.optim.lr_scheduler.StepLR(o, 80)`.
        seed: of everything random in the run; torch's own generators are left as they were found.
        out: the run's folder: config.json, environment.json, metrics.jsonl, checkpoint.pt, result.json.
        resume: go on with the run that the folder holds, if it holds one.
        evaluate: metrics of an objective; its own `evaluate()` by default (`Problem.metrics`).
        evaluate_every: steps between evaluations; 0 for none but at the ends.
        checkpoint_every: steps between checkpoints; 0 for one at the end, and on Ctrl-C or SIGTERM.
        target: stop when an evaluated row has an `outer_loss` of at most this, or when this function of it says so.
        seconds: stop when the steps have taken this long.
        save: other objects with `state_dict` and `load_state_dict` that belong to the run: modules with buffers, say.
        config: settings to keep in config.json; a run with others is a different run.
        warm_up: make one step without a trace before the clock starts, so that it does not count compilation.
        tensorboard: write the metrics for TensorBoard too, into the folder.
        progress: a progress bar; by default on a terminal if rich is installed.

    Example:
        >>> method = pzobo.Method(pzobo.GD(lr=0.1, steps=20), pzobo.Unrolled(products="difference"))
        >>> found = pzobo.fit(problem, method, steps=100, lr=0.05, out="runs/first")
        >>> found.history[-1]["outer_loss"]
    """
    whole("steps", steps)
    with seeded(seed):
        objective = method.start(problem, seed)
        run = _Run(objective, optimizer, lr, scheduler, dict(save or {}))
        folder = None
        if out is not None:
            identity = {
                "problem": fingerprint(problem),
                "method": words(method),
                "optimizer": words(run.optimizer),
                "scheduler": words(run.scheduler),
                "seed": seed,
                "config": dict(config or {}),
            }
            folder = RunFolder(out, plain(identity), config or {}, resume)
        elif resume or tensorboard:
            raise OptionError("resume=True and tensorboard=True need the run's folder: out=...")
        state = None
        if folder is not None:
            folder.tidy()
            state = folder.load(run.device)
            if state is not None:
                run.restore(state)
        rows = Metrics(None if folder is None else folder.metrics, 0 if state is None else state["metrics"])
        if warm_up:
            run.rehearse()
        loop = _Loop(run, rows, folder, evaluate, evaluate_every, checkpoint_every, target, seconds)
        bar = Progress(steps, run.step, progress)
        try:
            with bar, board(folder if tensorboard else None) as write, interrupts() as interrupted:
                stopped = loop.go(steps, (bar.show, write), interrupted)
        except PzoboError as error:
            if folder is not None:
                folder.result(stopped="failed", error=str(error), steps=run.step, seconds=run.seconds)
            raise
        finally:
            rows.close()
    return Fit(objective.x, getattr(objective, "y", None), rows.rows, run.step, run.seconds, stopped)


class _Run:
    """Everything that changes from step to step, and so belongs to a checkpoint."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Callable[..., torch.optim.Optimizer],
        lr: float | None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        save: dict[str, Any],
    ) -> None:
        self.objective, self.save = objective, save
        self.variables: list[Tensor] = [t for t in optree.tree_leaves(objective.x) if trees.is_variable(t)]
        if not self.variables:
            raise OptionError("x holds no floating-point tensor that needs a gradient; there is nothing to optimize.")
        self.device = self.variables[0].device
        self.optimizer = optimizer(self.variables) if lr is None else optimizer(self.variables, lr=lr)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.step = 0
        self.seconds = 0.0

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "x": [t.detach().clone() for t in self.variables],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "objective": self.objective.state_dict(),
            "save": {name: part.state_dict() for name, part in self.save.items()},
            "random": random_state(self.device),
        }

    def restore(self, state: dict[str, Any]) -> None:
        try:
            with torch.no_grad():
                for variable, saved in zip(self.variables, state["x"], strict=True):
                    variable.copy_(saved)
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.objective.load_state_dict(state["objective"])
            for name, part in self.save.items():
                part.load_state_dict(state["save"][name])
            set_random_state(state["random"], self.device)
            self.step, self.seconds = state["step"], state["seconds"]
        except (KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
            raise CheckpointError(f"The checkpoint does not fit this run ({error}). It is left as it was.") from error

    @contextmanager
    def no_trace(self) -> Iterator[None]:
        """Whatever happens inside did not happen."""
        before = _copy(self.state())
        try:
            yield
        finally:
            self.restore(before)

    def rehearse(self) -> None:
        """One step without a trace."""
        with self.no_trace():
            self.objective.loss().backward()
        self.optimizer.zero_grad()


class _Loop:
    """The outer loop over a run."""

    def __init__(
        self,
        run: _Run,
        rows: Metrics,
        folder: RunFolder | None,
        evaluate: Callable[[Objective], Mapping[str, float]] | None,
        evaluate_every: int,
        checkpoint_every: int,
        target: float | Callable[[Row], bool] | None,
        seconds: float | None,
    ) -> None:
        self.run, self.rows, self.folder = run, rows, folder
        self.evaluate = evaluate or (lambda objective: objective.evaluate())
        self.evaluate_every, self.checkpoint_every = evaluate_every, checkpoint_every
        self.target, self.limit = target, math.inf if seconds is None else seconds
        self.peak = Peak(run.device)

    def go(self, steps: int, show: Sequence[Callable[[Row], None]], interrupted: list[int]) -> str:
        """Step until there is a reason to stop, and say which."""
        run, stopped = self.run, "steps"
        saved = run.step if self.folder is not None and self.folder.checkpoint.exists() else -1
        while run.step < steps:
            began = time.perf_counter()
            loss = run.objective.loss()
            run.optimizer.zero_grad()
            loss.backward()
            self.wait()
            taken = time.perf_counter() - began
            row = self.row(loss)
            over = run.seconds >= self.limit
            due = over or (self.evaluate_every and run.step % self.evaluate_every == 0)
            if due:
                self.measure(row)
            self.tell(row, show)
            if due and (over or self.reached(row)):
                stopped = "seconds" if over else "target"
                break
            began = time.perf_counter()
            run.optimizer.step()
            if isinstance(run.scheduler, ReduceLROnPlateau):
                run.scheduler.step(row["outer_loss"])
            elif run.scheduler is not None:
                run.scheduler.step()
            self.wait()
            run.seconds += taken + time.perf_counter() - began
            run.step += 1
            if interrupted or (self.checkpoint_every and run.step % self.checkpoint_every == 0):
                self.save()
                saved = run.step
            if interrupted:
                raise KeyboardInterrupt if interrupted[0] == signal.SIGINT else SystemExit(128 + interrupted[0])
        if saved != run.step:
            self.save()
        if stopped == "steps":
            self.last(show)
        if self.folder is not None:
            self.folder.result(stopped=stopped, error=None, steps=run.step, seconds=run.seconds)
        return stopped

    def row(self, loss: Tensor) -> Row:
        value = loss.item()
        if not math.isfinite(value):
            raise NonFiniteError(
                f"The outer loss is {value} at outer step {self.run.step}: the outer steps may be too long; try a "
                "smaller outer learning rate."
            )
        gradients = [t.grad for t in self.run.variables if t.grad is not None]
        return {
            "step": self.run.step,
            "seconds": self.run.seconds,
            "outer_loss": value,
            "hypergradient_norm": float(trees.norm(gradients)) if gradients else 0.0,
            "memory": self.peak.megabytes(),
        }

    def measure(self, row: Row) -> None:
        with torch.no_grad():
            row["inner_loss"] = self.run.objective.inner_loss()
            row.update(self.evaluate(self.run.objective))

    def last(self, show: Sequence[Callable[[Row], None]]) -> None:
        """The row after the last step; it leaves no trace, so that a longer run can go on from here."""
        if self.rows.rows and self.rows.rows[-1]["step"] == self.run.step:
            return
        with self.run.no_trace(), torch.no_grad():
            row = {**self.row(self.run.objective.loss().detach()), "hypergradient_norm": None}
            self.measure(row)
        self.tell(row, show)

    def tell(self, row: Row, show: Sequence[Callable[[Row], None]]) -> None:
        self.rows.add(row)
        for listener in show:
            listener(row)

    def reached(self, row: Row) -> bool:
        if self.target is None:
            return False
        if callable(self.target):
            return bool(self.target(row))
        return bool(row["outer_loss"] <= self.target)

    def save(self) -> None:
        if self.folder is not None:
            self.folder.save({**self.run.state(), "metrics": self.rows.size()})

    def wait(self) -> None:
        if self.run.device.type == "cuda":
            torch.cuda.synchronize(self.run.device)


def _copy(tree: Any) -> Any:
    """A copy that later steps do not change."""
    return optree.tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, tree, none_is_leaf=True)
