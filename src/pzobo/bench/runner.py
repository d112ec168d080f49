"""How are the runs of an experiment made? Each method on each seed, side by side, into folders; each lr is searched."""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import os
import re
import shlex
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from pzobo.bench.experiments.base import SEARCH_SEED, Experiment, part_of
from pzobo.errors import AuditWarning, DamagedFileError, PzoboError, RunFolderError, SmoothingError
from pzobo.files import write_atomically
from pzobo.outer.fitting import Fit, fit
from pzobo.runs import json_text, names
from pzobo.runs.folder import writing
from pzobo.runs.memory import within_memory

FAILURES = (ArithmeticError, SmoothingError)
"""A method that diverges, or whose differences are rounding noise, is a result."""


@dataclass(frozen=True)
class Job:
    """One run: a variant of an experiment, a method, a seed, a learning rate."""

    experiment: Experiment
    method: str
    seed: int
    lr: float
    searched: tuple[tuple[float, float], ...] = ()
    """The learning rates that were tried, and what they came to."""
    command: str = ""

    @property
    def folder(self) -> Path:
        e = self.experiment
        return e.out / e.name / e.label() / self.method / f"seed-{self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        named = self.experiment.menu[self.method]
        return {
            "experiment": self.experiment.name,
            "method": self.method,
            "label": named.label,
            "seed": self.seed,
            "lr": self.lr,
            **self.experiment.settings(),
        }

    @property
    def notes(self) -> dict[str, Any]:
        return {"command": self.command, "lr_search": {f"{lr:g}": final for lr, final in self.searched}}

    def finished(self) -> bool:
        """Whether the folder holds the whole of this run."""
        try:
            config = json_text.read(self.folder / names.CONFIG)["config"]
            result = json_text.read(self.folder / names.RESULT)
        except (DamagedFileError, KeyError):
            return False
        if not isinstance(config, dict) or not isinstance(result.get("steps"), int):
            return False
        same = all(config.get(key) == value for key, value in self.config.items())
        whole = result["steps"] >= self.experiment.steps or not self.experiment.menu[self.method].tuned
        enough = result.get("stopped") in ("target", "seconds", "failed") or whole
        return same and enough


@functools.lru_cache(maxsize=2)
def _problem(experiment: Experiment, seed: int) -> Any:
    return experiment.problem(seed).to(experiment.device)


def _bare(experiment: Experiment) -> Experiment:
    """The experiment with only what its problem depends on: methods then share one problem, and what is compiled."""
    return replace(experiment, methods=(), resume=False, seeds=1, lr="paper", seconds=None, shard=None)


def _fit(job: Job, steps: int, **options: Any) -> Fit:
    # What audits measure is in the metrics, and so in the report, for all methods side by side.
    with within_memory(), warnings.catch_warnings(action="ignore", category=AuditWarning):
        return _fit_it(job, steps, **options)


def _fit_it(job: Job, steps: int, **options: Any) -> Fit:
    e = job.experiment
    problem = _problem(_bare(e), job.seed)
    method = e.menu[job.method].build(e.setup(), problem)
    return fit(
        problem,
        method,
        getattr(method, "outer_steps", steps),  # a grid has an end of its own
        optimizer=e.optimizer,
        lr=job.lr,
        scheduler=e.scheduler(),
        seed=job.seed,
        evaluate=e.evaluate,
        warm_up=True,
        clock=time.process_time if e.clock == "processor" else time.perf_counter,
        progress=False,
        **options,
    )


def make(job: Job) -> str | None:
    """Make one run in its folder; what went wrong, if anything did."""
    torch.set_num_threads(1)
    e = job.experiment
    try:
        _fit(
            job,
            steps=e.steps,
            seconds=e.seconds,
            evaluate_every=e.evaluate_every,
            evaluate_at_end=e.evaluate_at_end,
            checkpoint_every=e.checkpoint_every,
            out=job.folder,
            resume=e.resume,
            config=job.config,
            notes=job.notes,
        )
    except FAILURES as error:
        return str(error)
    return None


def attempt(job: Job) -> float:
    """Where a short run with one learning rate ends, as a number to be minimised; infinity if it fails."""
    torch.set_num_threads(1)
    e = job.experiment
    try:
        found = _fit(
            job,
            steps=e.search_steps or e.steps,
            seconds=e.search_seconds,
            evaluate_every=0,
            evaluate_at_end=e.judge,
        )
    except FAILURES:
        return math.inf
    last = found.history[-1]
    value = last.get("judged", last.get(e.about.final, last["outer_loss"]))
    if value is None:
        return math.inf
    return float(-value if e.about.higher else value)


def plan(experiment: Experiment, command: str, rates: Callable[[Experiment, str], tuple[float, Any]]) -> list[Job]:
    """All runs of an experiment, seed by seed."""
    jobs = []
    for variant, seed, method in planned(experiment):
        lr, searched = rates(variant, method)
        jobs.append(Job(variant, method, seed, lr, searched, command))
    return jobs


def planned(experiment: Experiment) -> list[tuple[Experiment, int, str]]:
    """The variant, seed and method of each run, seed by seed; of the shard's runs alone if there is one.

    Every so many of them belong to a shard. Where learning rates are searched, all runs of a method in a family of
    variants are one shard's, which searches theirs too.
    """
    part, parts = part_of(experiment.shard)
    variants = experiment.variants()
    runs = [(v, seed, method) for v in variants for seed in range(v.seeds) for method in v.chosen()]
    if experiment.lr != "search":
        return runs[part::parts]
    groups = list(dict.fromkeys((v.family(), method) for v, _, method in runs))
    mine = set(groups[part::parts])
    return [run for run in runs if (run[0].family(), run[2]) in mine]


class Rates:
    """The learning rate of each method: given, the paper's, or the best of a grid on the first variant of a family."""

    def __init__(self, experiment: Experiment) -> None:
        self.mine = {(variant.family(), method) for variant, _, method in planned(experiment)}
        self.firsts: dict[str, Experiment] = {}
        for variant in experiment.variants():
            self.firsts.setdefault(variant.family(), variant)
        self.found: dict[str, dict[str, dict[str, float]]] = {}
        for family, first in self.firsts.items():
            files = _of_all_shards(self._file(replace(first, shard=None))) if experiment.resume else []
            self.found[family] = {name: tried for file in files for name, tried in _searched(file, first).items()}

    def missing(self) -> list[Job]:
        """The trials that have not been made."""
        return [
            Job(first, method, SEARCH_SEED, lr)
            for family, first in self.firsts.items()
            if first.lr == "search"
            for method in first.chosen()
            if first.menu[method].tuned and (family, method) in self.mine
            for lr in first.lr_grid
            if f"{lr:g}" not in self.found[family].get(method, {})
        ]

    def add(self, job: Job, value: float) -> None:
        """Note what a trial came to."""
        found = self.found[job.experiment.family()]
        found.setdefault(job.method, {})[f"{job.lr:g}"] = value if math.isfinite(value) else 1e300
        file, content = self._file(job.experiment), {"settings": job.experiment.trial(), "found": found}
        with writing(file):
            write_atomically(file, (json.dumps(content, indent=2) + "\n").encode())

    def __call__(self, variant: Experiment, method: str) -> tuple[float, tuple[tuple[float, float], ...]]:
        """The learning rate, and the trials it comes from."""
        if isinstance(variant.lr, (int, float)):
            return float(variant.lr), ()
        if variant.lr == "paper" or not variant.menu[method].tuned:
            return variant.paper_lr(method), ()
        found = self.found[variant.family()][method]
        tried = sorted((lr, found[f"{lr:g}"]) for lr in variant.lr_grid)
        return min(tried, key=lambda pair: pair[1])[0], tuple(tried)

    def _file(self, first: Experiment) -> Path:
        part, parts = part_of(first.shard)
        which = "" if first.shard is None else f"-{part + 1}-of-{parts}"  # each shard writes a file of its own
        return first.out / first.name / f"rates-{first.label()}{which}.json"


def _of_all_shards(file: Path) -> list[Path]:
    """The file of learning rates of a whole experiment and those of its shards, as far as they are there."""
    name = re.compile(re.escape(file.stem) + r"(-\d+-of-\d+)?\.json")
    return sorted(path for path in file.parent.glob("rates-*.json") if name.fullmatch(path.name))


def _searched(file: Path, first: Experiment) -> dict[str, dict[str, float]]:
    """What a search with these settings came to, of each method and learning rate."""
    try:
        content = json_text.read(file)
        made, found = content.get("settings"), content.get("found")
        if not isinstance(made, dict) or not isinstance(found, dict):
            raise DamagedFileError("it does not say how its trials were made")
        for trials in found.values():
            if not isinstance(trials, dict) or not all(isinstance(value, (int, float)) for value in trials.values()):
                raise DamagedFileError("it does not hold a number for each method and rate")
            for rate in trials:
                float(rate)
    except ValueError as error:
        raise DamagedFileError(f"{file} is damaged ({error}): remove it, and each lr is searched anew.") from error
    for key, value in first.trial().items():
        if made.get(key) != value:
            raise RunFolderError(
                f"The learning rates of {file} were searched with {key}={made.get(key)!r}, now it is {value!r}. Remove "
                "the file, and they are searched anew; or choose another --out."
            )
    return found


def command_of(experiment: Experiment) -> str:
    """The command line that makes these runs."""
    words = ["pzobo", "run", experiment.name]
    for f in fields(experiment):
        value = getattr(experiment, f.name)
        default = f.default if f.default is not MISSING else None
        if f.name in ("out", "resume", "workers", "root", "shard") or value == default:
            continue
        flag = f.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join(words)


def run(experiment: Experiment, show: Callable[[str, int, int], None] = lambda text, done, total: None) -> list[str]:
    """Make all runs of an experiment, and return a sentence for each that failed. `show` is called after each run."""
    experiment.chosen()
    for variant in experiment.variants():
        variant.setup()  # what a solver refuses is refused before anything runs
    problems: list[str] = []
    rates = Rates(experiment)
    with _workers(experiment.workers) as do:
        for job, value in _all(do, attempt, rates.missing(), f"{experiment.name}: learning rates", show):
            rates.add(job, value)
        jobs = plan(experiment, command_of(experiment), rates)
        todo = [job for job in jobs if not (experiment.resume and job.finished())]
        for job, error in _all(do, make, todo, experiment.name, show):
            if error is not None:
                problems.append(f"{job.method}, seed {job.seed}: {error}")
    return problems


Do = Callable[[Callable[[Job], Any], Sequence[Job]], Iterator[tuple[Job, Any]]]
"""Does a piece of work for each job, and gives each job with what came of it as soon as it is there."""


@contextmanager
def _workers(count: int) -> Iterator[Do]:
    """Processes that do jobs; with 0 this process does. A stop cancels what has not begun, and saves what has."""
    if not count:
        yield lambda work, jobs: ((job, work(job)) for job in jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, spawn, initializer=_obey, initargs=(reader,))

    def do(work: Callable[[Job], Any], jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        futures = {pool.submit(work, job): job for job in jobs}
        return ((futures[future], future.result()) for future in as_completed(futures))

    try:
        yield do
    except BaseException:
        writer.close()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    writer.close()


def _obey(parent: Connection) -> None:
    """In a worker: end when the process that hands out the jobs closes its end, or has died, however it did.

    A Ctrl-C reaches all processes of a terminal. It is the parent's to answer: here it is ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent.poll(None)
        while True:  # a run in work hears the first, saves itself and ends; between runs it is final
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    threading.Thread(target=watch, daemon=True).start()


def _all(
    do: Do, work: Callable[[Job], Any], jobs: Sequence[Job], what: str, show: Callable[[str, int, int], None]
) -> Iterator[tuple[Job, Any]]:
    began = time.monotonic()
    try:
        for done, (job, found) in enumerate(do(work, jobs), 1):
            yield job, found
            text = f"{what}: {job.experiment.label()} {job.method} seed {job.seed}"
            left = (time.monotonic() - began) / done * (len(jobs) - done)
            show(f"{text}, about {left / 60:.0f} min left", done, len(jobs))
    except BrokenProcessPool as error:
        raise PzoboError(
            "A worker process was killed (out of memory?). Go on with the same command and --resume."
        ) from error
