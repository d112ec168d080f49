"""How is a bilevel problem trained from start to end? The outer loop: progress, metrics, checkpoints, resume."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import optree
import torch

from pzobo.distributed.splits import Kind, Split, Wire
from pzobo.errors import OptionError
from pzobo.options import positive, whole
from pzobo.outer.arguments import wrong
from pzobo.outer.every import Every
from pzobo.outer.identity import identity
from pzobo.outer.loop import Loop
from pzobo.outer.objective import Objective, Startable
from pzobo.outer.refit import refit_solver, refitted
from pzobo.outer.state import RunState
from pzobo.outer.together import Company, ranked
from pzobo.runs.folder import RunFolder
from pzobo.runs.listeners import board, explained, interrupts, obey, summary_writer
from pzobo.runs.metrics import Metrics
from pzobo.runs.progress import Progress
from pzobo.runs.randomness import seeded
from pzobo.runs.rows import Row
from pzobo.solvers import Solver
from pzobo.tensors import trees
from pzobo.tensors.replay import devices_of
from pzobo.tensors.trees import Tree


@dataclass(frozen=True)
class Fit:
    """What a run came to.

    Attributes:
        x: the outer variables, a tree like x0.
        y: the inner solution at x, a tree like y0, for methods that have one.
        history: the rows of metrics, as in metrics.jsonl.
        steps: outer steps made.
        seconds: their time, without evaluation.
        stopped: "steps", "target" or "seconds".
        refit: y of the model fitted again on all data, with `refit=True`, a tree like y0; None without. Its metrics on
            validation data mean nothing, since it has seen them.
        chosen: the estimator that `Auto` chose, and why, in one line; empty where nothing was to choose.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> found = pzobo.fit(problem, pzobo.Method(pzobo.GD(lr=0.2, steps=20)), steps=5, lr=0.1, progress=False)
        >>> found.steps, found.stopped, found.x.shape
        (5, 'steps', torch.Size([3]))
    """

    x: Tree
    y: Tree
    history: list[Row]
    steps: int
    seconds: float
    stopped: str
    chosen: str = ""
    refit: Tree = None

    def copy_to(self, tree: Tree) -> None:
        """Write x into the tensors of a tree of the same structure, in place: x0 itself, or the parameters of a module.

        Args:
            tree: a tree like x0, as in `found.copy_to(dict(module.named_parameters()))`.

        Raises:
            StructureError: another structure, shape or dtype; then nothing is written.
        """
        trees.copy_into(self.x, tree, "copy_to")


@ranked
def fit(
    problem: Any,
    method: Startable,
    steps: int,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    lr: float | None = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: Callable[[Objective], Mapping[str, float]] | None = None,
    evaluate_at_end: Callable[[Objective], Mapping[str, float]] | None = None,
    evaluate_every: int | str = 10,
    checkpoint_every: int = 50,
    target: float | Callable[[Row], bool] | None = None,
    seconds: float | None = None,
    save: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    warm_up: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    refit: bool | Solver = False,
    tensorboard: bool = False,
    progress: bool | None = None,
    split: Kind | None = None,
    wire: Wire = "scalars",
) -> Fit:
    """Minimise a problem's outer loss by a method, step by step.

    Row k of the metrics is taken before outer step k: `step`, `seconds` (of the steps so far, without evaluation),
    `outer_loss`, `hypergradient_norm`, `memory` (the peak during steps, in MB) and, where an evaluation is due,
    `inner_loss` and what `evaluate` gives. A last row follows the last step.

    A run in a folder can be stopped at any moment, by Ctrl-C, SIGTERM or kill -9; with `resume=True` it goes on from
    its last checkpoint, and on the same machine ends in the same bits as a run that was never stopped. The message
    of the `KeyboardInterrupt` says where the run is.

    x0 is not changed: `found.copy_to` writes x into it, or into a module.

    Args:
        problem: a `Problem`, or what the method's `start` takes.
        method: a `Method`, or anything with `start(problem, seed) -> Objective`.
        steps: outer steps in all, those before a resume included.
        optimizer: called with the tensors of x, and with `lr=` if that is given: a class of torch.optim, or a function.
        lr: the outer learning rate.
        scheduler: called with the optimizer, as in `lambda o: torch.optim.lr_scheduler.StepLR(o, 80)`.
        scaler: a torch.amp.GradScaler, for losses in float16: the outer loss is multiplied before its backward pass,
            and the hypergradient divided after. A step whose hypergradient overflowed is skipped, and the next has a
            smaller scale; its row has no `hypergradient_norm`. A copy is used; its state is in checkpoints.
        seed: of everything random in the run; the generators of torch, Python and NumPy are left as they were found.
        out: the run's folder: config.json, environment.json, metrics.jsonl, checkpoint.pt, result.json.
        resume: go on with the run that the folder holds, if it holds one.
        evaluate: metrics of an objective; its own `evaluate()` by default (`Problem.metrics`). What it draws leaves no
            trace in the run.
        evaluate_at_end: the same for the last row, where it may take longer; `evaluate` by default.
        evaluate_every: steps between evaluations, or their seconds as a text such as "2s"; 0 for none but at the end.
        checkpoint_every: steps between checkpoints; 0 for one at the end, and on Ctrl-C or SIGTERM.
        target: stop when an evaluated row has an `outer_loss` of at most this, or when this function of it says so.
        seconds: stop when the steps have taken this long.
        save: other objects with `state_dict` and `load_state_dict` that belong to the run: modules with buffers, say.
        config: settings to keep in config.json; a run with others is a different run.
        notes: more to keep there, that does not make it a different run.
        warm_up: make one step without a trace before the clock starts, so that it does not count compilation.
        clock: what `seconds` are measured by; `time.process_time`, the time of the processor, on a busy machine.
        refit: fit the model once more at the end, at the found x and on all data, the validation data included; by the
            method's solver, or by the one that is given, which a method needs whose steps go on from the last y
            (`warm_start=True`, `SAMA`). The problem's `all_data` says what that is. The model is
            `found.refit`.
        tensorboard: write the metrics for TensorBoard too, into the folder.
        progress: a progress bar; by default on a terminal if rich is installed.
        split: what is split over the ranks of torchrun, each of which makes this call: the "directions" of PZOBO,
            ForwardMode, HOZOG and ES-MAML; the "tasks" of a few-shot learner; or the rows of the "data". Rank 0 has the
            folder, the progress bar and the messages. In one process nothing changes.
        wire: what crosses the network with "directions", as in `Argmin`.

    Returns:
        A `Fit`: x, y, the rows of metrics, and why the run ended.

    Raises:
        OptionError: an option has a value that makes no sense.
        NonFiniteError: the outer loss or the hypergradient is NaN or infinity.
        RunFolderError: `out` holds another run, or something that is not a run.
        CheckpointError: the checkpoint in `out` is damaged, or of something else.
        RequirementError: `split` is asked of a method that cannot do it.
        MissingExtraError: an extra of the package that is needed is not installed.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.Method(pzobo.GD(lr=0.2, steps=20), pzobo.Unrolled())
        >>> found = pzobo.fit(problem, method, steps=50, lr=0.1, progress=False)     # out="runs/first": a folder
        >>> [round(row["outer_loss"], 2) for row in found.history[::25]]
        [0.38, 0.06, 0.05]
    """
    steps = whole("steps", steps)
    every = Every.of("evaluate_every", evaluate_every)
    checkpoint_every = 0 if checkpoint_every == 0 else whole("checkpoint_every", checkpoint_every)
    if seconds is not None:
        positive("seconds", seconds)
    if target is not None and not callable(target) and not isinstance(target, (int, float)):
        raise OptionError(f"target={target!r}: give a number for the outer loss, or a function of a row of metrics.")
    if out is None and (resume or tensorboard):
        raise OptionError("resume=True and tensorboard=True need the run's folder: out=...")
    if isinstance(method, type) or not hasattr(method, "start"):
        raise wrong("method", method, "give a method, as in pzobo.Method(pzobo.GD(lr=0.1, steps=20))")
    for name, call in {"evaluate": evaluate, "evaluate_at_end": evaluate_at_end, "clock": clock}.items():
        if call is not None and not callable(call):
            raise wrong(name, call, "give a function")
    for name, part in {"save": save, "config": config, "notes": notes}.items():
        if part is not None and not isinstance(part, Mapping):
            raise wrong(name, part, f"give a dict, as in {name}={{'name': ...}}")
    solver = refit_solver(problem, method, refit)
    writer = summary_writer() if tensorboard else None
    with (
        seeded(seed, _devices(problem)),
        explained(lambda: "Stopped before the first outer step; nothing is saved."),
        contextlib.ExitStack() as stack,
    ):
        company = Company(Split.of(split, wire))
        objective = method.start(company.shared(problem, method), seed)
        run = RunState(objective, optimizer, lr, scheduler, save or {}, scaler)
        folder = state = None
        if out is not None or company.many:
            who = identity(problem, method, run.optimizer, run.scheduler, seed, config or {}, run.scaler)
            company.same(who)
        company.bring(out, resume)
        if out is not None and company.leads:
            kept = {**(config or {}), **(notes or {})}
            folder = stack.enter_context(company.folder(out, who, kept, resume))
            state = folder.load()
        state = company.first(state)
        if state is not None:
            if state["step"] > steps:
                raise OptionError(
                    f"steps={steps}: the run in {folder.path if folder else out} has made {state['step']} already; "
                    "give at least as many."
                )
            run.restore(state)
        stack.enter_context(explained(lambda: _saved(run, folder)))
        rows = stack.enter_context(Metrics(None if folder is None else folder.metrics, state and state["metrics"]))
        rows.rows = company.first(rows.rows)
        if warm_up and run.step < steps:
            run.rehearse()
        loop = Loop(
            run, rows, folder, evaluate, evaluate_at_end, every, checkpoint_every, target, seconds, clock, company
        )
        bar = stack.enter_context(Progress(steps, run.step, progress if company.leads else False))
        write = stack.enter_context(board(writer, folder, rows.rows))
        interrupted = stack.enter_context(interrupts())
        try:
            if folder is not None:
                folder.clear_result()
            stopped = loop.go(steps, (bar.show, write), interrupted)
        except Exception as error:
            if folder is not None:
                with contextlib.suppress(OSError):
                    folder.result(stopped="failed", error=str(error), steps=run.step, seconds=run.seconds)
            raise
        if folder is not None:
            told = {"chosen": objective.chosen()} if objective.chosen() else {}
            folder.result(stopped=stopped, error=None, steps=run.step, seconds=run.seconds, **told)
        again = None if solver is None else refitted(problem, solver, objective.x)
        obey(interrupted)
    return Fit(objective.x, loop.y, rows.rows, run.step, run.seconds, stopped, objective.chosen(), again)


def _devices(problem: Any) -> tuple[torch.device, ...]:
    """The devices that a problem's tensors are on, but for the CPU."""
    parts: Any = [getattr(problem, f.name) for f in fields(problem)] if is_dataclass(problem) else []
    return devices_of(optree.tree_leaves(parts))


def _saved(run: RunState, folder: RunFolder | None) -> str:
    """Where a run that was stopped is, and how it goes on."""
    done = f"Stopped after {run.step} outer steps."
    if folder is None:
        return f"{done} Nothing is saved, because the run has no folder: give out=..., and resume=True to go on."
    if folder.saved is None:
        return f"{done} {folder.path} has no checkpoint yet: the same call with resume=True starts anew."
    return f"{done} Saved in {folder.path} after {folder.saved}: the same call with resume=True goes on from there."
