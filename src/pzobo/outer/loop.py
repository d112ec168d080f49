"""How does a run go from step to step? Loss, metrics, a reason to stop, the optimizer's step, a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import NonFiniteError, OptionError
from pzobo.outer.every import Every
from pzobo.outer.objective import Objective
from pzobo.outer.state import Pending, RunState
from pzobo.outer.together import Company
from pzobo.runs.folder import RunFolder
from pzobo.runs.listeners import Listener, obey
from pzobo.runs.memory import Peak
from pzobo.runs.metrics import Metrics
from pzobo.runs.rows import Row
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree

LEAST = 2.0**-24
"""The least scale of a loss: if gradients overflow there, it is not for want of a smaller one."""


class Loop:
    """The outer loop over a run.

    A row of metrics belongs to the x before its step. So a run that stops at a target has a row whose step is not made
    yet; it is `pending`, and goes into the checkpoint with its gradients: a longer run makes that very step.
    """

    def __init__(
        self,
        run: RunState,
        rows: Metrics,
        folder: RunFolder | None,
        evaluate: Callable[[Objective], Mapping[str, float]] | None,
        evaluate_at_end: Callable[[Objective], Mapping[str, float]] | None,
        evaluate_every: Every,
        checkpoint_every: int,
        target: float | Callable[[Row], bool] | None,
        seconds: float | None,
        clock: Callable[[], float],
        company: Company,
    ) -> None:
        self.run, self.rows, self.folder = run, rows, folder
        self.evaluate = evaluate or (lambda objective: objective.evaluate())
        self.evaluate_at_end = evaluate_at_end or self.evaluate
        self.evaluate_every, self.checkpoint_every = evaluate_every, checkpoint_every
        self.target, self.limit = target, math.inf if seconds is None else seconds
        self.clock = clock
        self.company = company
        self.leaps, self.pace = run.leaps() and not company.many, 0.0
        self.peak = Peak(run.devices)
        self.changed = False
        self.y: Tree = None

    def go(self, steps: int, listeners: Sequence[Listener], interrupted: list[int]) -> str:
        """Step until there is a reason to stop, and say which."""
        run = self.run
        asked = [] if self.company.many else interrupted
        while run.step < steps:
            if run.pending is None:
                asked = self.look(listeners, interrupted)
            stopped = self.reason()
            if stopped is not None:
                self.save()
                self.y = run.objective.y
                return stopped
            if not self.leap(steps, listeners):
                self.advance()
            if asked or (self.checkpoint_every and run.step % self.checkpoint_every == 0):
                self.save()
            obey(asked)
        self.save()
        return self.last(listeners)

    def look(self, listeners: Sequence[Listener], interrupted: list[int]) -> list[int]:
        """The loss at x, its hypergradient, and a row about them; and the signals that ask for a stop."""
        run = self.run
        began = self.clock()
        run.clear()
        loss, norm = self.told(run.hypergradient())
        taken = self.clock() - began
        self.company.check_used()
        run.seconds, taken, asked = self.company.beat(run.seconds, taken, interrupted, run.variables)
        row = self.row(self.sound(loss), self.norm(norm), audit=run.objective.audit())
        self.pend(row, taken, listeners)
        return asked

    def told(self, loss: Tensor) -> tuple[float, float]:
        """The outer loss and the length of its hypergradient, in one read, which waits for the device."""
        gradients = [g for g in self.run.gradients if g is not None]
        if not gradients:
            return float(loss), 0.0
        length = trees.norm(gradients, torch.float64)
        value, norm = torch.stack([loss.to(length.device, torch.float64), length]).tolist()
        return value, norm

    def pend(self, row: Row, taken: float, listeners: Sequence[Listener]) -> None:
        """Evaluate the row if it is due, and keep it until its step is made."""
        over = row.seconds >= self.limit
        if over or self.evaluate_every.due(row.step, row.seconds, self.rows.rows):
            row = self.measured(row, self.evaluate_at_end if over else self.evaluate)
        self.tell(row, listeners)
        self.run.pending, self.changed = Pending(row, taken), True

    def leap(self, steps: int, listeners: Sequence[Listener]) -> bool:
        """Make the step of the pending row and those after it in one call, as far as no row is evaluated on the way and
        no checkpoint is due. False if the objective makes one step after the other."""
        run, pending = self.run, self.run.pending
        assert pending is not None
        turns = run.objective.ahead(self.turns_wanted(steps)) if self.leaps else 0
        if not turns:
            return False
        began = self.clock()
        told = run.objective.turns(run.lengths(turns))
        self.pace = (self.clock() - began) / turns
        run.seconds += pending.taken
        for i, (value, norm) in enumerate(zip(told.values, told.norms, strict=True)):
            run.step += 1
            run.seconds += self.pace if i else 0.0
            row = self.row(self.sound(value), self.finite(norm))
            if i + 1 < turns:
                self.tell(row, listeners)
            else:
                self.pend(row, self.pace, listeners)
        return True

    def turns_wanted(self, steps: int) -> int:
        """As many steps as can be made before something is due: the end, an evaluation, a checkpoint, a quarter of a
        second, in which nobody can stop the run."""
        run = self.run
        most = [steps - run.step - 1, self.evaluate_every.ahead(run.step, run.seconds, self.pace)]
        if self.checkpoint_every:
            most.append(self.checkpoint_every - run.step % self.checkpoint_every)
        if self.pace > 0:
            most.append(max(1, int(min(0.25, self.limit - run.seconds) / self.pace)))
        else:
            most.append(8)  # nothing is known yet of how long they take
        return max(0, min(most))

    def reason(self) -> str | None:
        """Why to stop at the pending row, if there is a reason."""
        assert self.run.pending is not None
        row = self.run.pending.row
        if row.seconds >= self.limit:
            return "seconds"
        # What was measured may differ in bits from rank to rank: one decides.
        return "target" if row.evaluated and self.company.first(self.reached(row)) else None

    def advance(self) -> None:
        """Make the step of the pending row."""
        run, pending = self.run, self.run.pending
        assert pending is not None
        began = self.clock()
        if self.leaps:
            run.objective.move(run.lengths(1)[0])
            run.step += 1
        else:
            run.advance(pending.row)
        # Nobody waits for a device here: the next loss does, and its time counts what this step left to be done.
        run.seconds += pending.taken + self.clock() - began
        run.pending, self.changed = None, True

    def last(self, listeners: Sequence[Listener]) -> str:
        """The row after the last step. It leaves no trace, so that a longer run can go on from here."""
        run = self.run
        self.wait()
        # A finished run that is resumed has this row already.
        row = self.company.first(next((r for r in self.rows.after if r.last and r.step == run.step), None))
        with run.no_trace():
            run.clear()
            loss = float(run.objective.outer_loss().detach())
            self.y = run.objective.y
            if row is None or row.outer_loss != loss:
                row = self.measured(self.row(self.sound(loss), last=True), self.evaluate_at_end)
        self.tell(row, listeners)
        return "target" if self.reached(row) else "steps"

    def row(self, loss: float, norm: float | None = None, **more: Any) -> Row:
        return Row(self.run.step, self.run.seconds, loss, norm, self.peak.megabytes, **more)

    def sound(self, loss: float) -> float:
        """The outer loss, if it is finite."""
        if not math.isfinite(loss):
            raise self.broken(
                f"The outer loss is {loss} at outer step {self.run.step}: the outer steps may be too long; try a "
                "smaller outer learning rate."
            )
        return loss

    def norm(self, norm: float) -> float:
        """The norm of the hypergradient, which must be finite, unless a scaler can make it so."""
        if not math.isfinite(norm) and not trees.is_finite([g for g in self.run.gradients if g is not None]):
            scaler = self.run.scaler
            if scaler is None or not scaler.is_enabled() or scaler.get_scale() < LEAST:
                self.finite(math.nan)
        return norm

    def finite(self, norm: float) -> float:
        """The norm, if the hypergradient is finite."""
        if not math.isfinite(norm):
            raise self.broken(
                f"The hypergradient holds NaN or infinity at outer step {self.run.step}, although the outer loss does "
                "not: look at the outer loss near this x, or try a smaller outer learning rate."
            )
        return norm

    def broken(self, sentence: str) -> NonFiniteError:
        """The error for what is not finite, with what the objective suspects."""
        return NonFiniteError(f"{sentence} {self.run.objective.suspects()}".rstrip())

    def measured(self, row: Row, evaluate: Callable[[Objective], Mapping[str, float]]) -> Row:
        """The row with an evaluation."""
        with self.peak.aside(), self.run.no_trace(), torch.no_grad():
            inner_loss = _number("inner_loss", self.run.objective.inner_loss())
            found = evaluate(self.run.objective)
        if not isinstance(found, Mapping):
            raise OptionError(
                f"evaluate returned a {type(found).__name__}; expected a dict of numbers, as in {{'accuracy': 0.9}}."
            )
        metrics = {key: _number(key, value) for key, value in found.items()}
        for key in metrics:
            if not isinstance(key, str):
                raise OptionError(f"evaluate returned the key {key!r}; expected names, as in {{'accuracy': 0.9}}.")
            if key in Row.OWN or key.startswith(Row.AUDIT):
                raise OptionError(f"evaluate returned {key!r}, which is a metric of the loop itself: rename it.")
        memory = self.peak.megabytes
        return replace(row, memory=memory, evaluated=True, inner_loss=inner_loss, metrics=metrics)

    def tell(self, row: Row, listeners: Sequence[Listener]) -> None:
        self.rows.add(row)
        for listener in listeners:
            listener(row)

    def reached(self, row: Row) -> bool:
        if self.target is None:
            return False
        if callable(self.target):
            return bool(self.target(row))
        return row.outer_loss <= self.target

    def save(self) -> None:
        """Write a checkpoint, if anything changed since the last."""
        if self.folder is None or not self.changed:
            return
        self.wait()
        with self.peak.aside():
            self.folder.save({**self.run.state(), "metrics": self.rows.mark()})
        self.changed = False

    def wait(self) -> None:
        """Wait for the steps that were asked of devices, so that their time is not that of something else."""
        began = self.clock()
        for device in self.run.devices:
            torch.accelerator.current_stream(device).record_event().synchronize()
        self.run.seconds += self.clock() - began if self.run.devices else 0.0


def _number(key: str, value: Any) -> Any:
    """A metric as a number of Python's."""
    try:
        number = None if value is None else float(value)
        return value if isinstance(value, int) else number
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise OptionError(f"evaluate returned {key!r} as a {type(value).__name__}; expected one number.") from error
