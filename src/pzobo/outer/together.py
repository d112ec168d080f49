"""What do the ranks of a run agree on? Which run it is, where it goes on from, its clock, and when it stops."""

from __future__ import annotations

import functools
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from pzobo.distributed.alike import check_alike
from pzobo.distributed.ranks import ALONE, Ranks
from pzobo.distributed.rows import check_mean, over_rows
from pzobo.distributed.splits import Split, splitting
from pzobo.errors import AuditWarning, CompileWarning, DriftError, NoResponseWarning, RequirementError, RunFolderError
from pzobo.files import write_atomically
from pzobo.outer.problem import Problem
from pzobo.runs import names
from pzobo.runs.folder import RunFolder, saved_step, writing

P = ParamSpec("P")
T = TypeVar("T")

_FILES = (names.CONFIG, names.METRICS, names.CHECKPOINT)
_LOCKED = 60.0
"""Seconds in which a rank 0 that was lost lets go of its folder, under torchrun."""


def ranked(function: Callable[P, T]) -> Callable[P, T]:
    """A function with the options `split` and `wire`, which all ranks call: errors and Ctrl-C are heard once."""

    @functools.wraps(function)
    def together(*args: P.args, **options: P.kwargs) -> T:
        split = Split.of(options.get("split"), options.get("wire", "scalars"))
        ranks = ALONE if split is None else split.ranks
        with ranks.together(), splitting(split), warnings.catch_warnings():
            if ranks.rank:
                for kind in (AuditWarning, CompileWarning, NoResponseWarning):
                    warnings.simplefilter("ignore", kind)
            try:
                return function(*args, **options)
            except KeyboardInterrupt:
                if ranks.rank == 0:
                    raise
                sys.exit(130)

    return together


class Beat(NamedTuple):
    """What all ranks know at a step."""

    seconds: float
    taken: float
    asked: list[int]
    """Signals that asked for a stop, on any rank."""


class Company:
    """The ranks of one run, and what they agree on.

    Args:
        split: the option of the run, or None: then this process is on its own.
    """

    def __init__(self, split: Split | None) -> None:
        self.split = split
        self.ranks: Ranks = ALONE if split is None else split.ranks
        self._before = self.ranks.splits
        self._beats = 0

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes the folder and talks to the user."""
        return self.ranks.rank == 0

    @property
    def many(self) -> bool:
        return self.ranks.count > 1

    def shared(self, problem: Any, method: Any) -> Any:
        """The problem as this rank solves it: over its own rows of all data, with split="data"."""
        if self.split is None or self.split.kind != "data" or not isinstance(problem, Problem):
            return problem
        if getattr(method, "compile", False):
            raise RequirementError('split="data": compiled code does not wait for other ranks: use compile=False.')
        loss, prepare = over_rows(problem.inner_loss, problem.prepare)
        outer, _ = over_rows(problem.outer_loss)
        x = problem.start()
        for name, one, before, batch in (
            ("inner loss", loss, prepare, problem.train),
            ("outer loss", outer, None, problem.val),
        ):
            if one is not None:
                check_mean(one, before, x, problem.y0, batch, name)
        return replace(problem, inner_loss=loss, outer_loss=outer, prepare=prepare)

    def same(self, identity: Mapping[str, Any]) -> None:
        """Refuse ranks that are about to make different runs."""
        for rank, other in enumerate(self.ranks.objects(dict(identity))):
            unlike = [key for key in identity if other.get(key) != identity[key]]
            if unlike:
                raise DriftError(
                    f"Rank {rank} makes another run than rank {self.ranks.rank}: the {unlike[0]} is "
                    f"{str(other.get(unlike[0]))[:120]} there and {str(identity[unlike[0]])[:120]} here. All ranks "
                    "must be given the same: seed whatever makes the data or x0."
                )

    def bring(self, out: Any, resume: bool) -> None:
        """After a restart rank 0 may be on another host. If another rank's disk has a newer checkpoint of the run, its
        files come to rank 0."""
        if not resume or not self.many or not isinstance(out, (str, os.PathLike)):
            return
        folder = Path(out)
        steps = self.ranks.objects(saved_step(folder))
        newest = steps.index(max(steps))
        if steps[newest] <= steps[0]:
            return
        mine = {name: (folder / name).read_bytes() for name in _FILES} if self.ranks.rank == newest else None
        files = self.ranks.objects(mine)[newest]
        if self.leads:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in files.items():
                    write_atomically(folder / name, text)

    def folder(self, out: Any, identity: dict[str, Any], config: Mapping[str, Any], resume: bool) -> RunFolder:
        """The run's folder, of rank 0. One that a lost rank still holds is waited for: that rank will end."""
        until = time.monotonic() + (_LOCKED if resume and "TORCHELASTIC_RUN_ID" in os.environ else 0.0)
        while True:
            try:
                return RunFolder(out, identity, config, resume)
            except RunFolderError as error:
                if "in use" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.5)

    def first(self, thing: T) -> T:
        """What rank 0 has."""
        found: T = self.ranks.first(thing)
        return found

    def beat(self, seconds: float, taken: float, asked: list[int], x: Sequence[Tensor]) -> Beat:
        """Once a step: rank 0's clock, and everybody's signals. So all decide alike. Now and then x is compared."""
        if not self.many:
            return Beat(seconds, taken, asked)
        self._beats += 1
        check_alike(self.ranks, {"x": tuple(x)}, self._beats)
        mine = torch.tensor([seconds, taken, asked[0] if asked else 0], dtype=torch.float64, device="cpu")
        found = self.ranks.gather(mine.to(x[0].device)).tolist()
        signals = [int(row[2]) for row in found if row[2]]
        return Beat(found[0][0], found[0][1], signals)

    def check_used(self) -> None:
        """Refuse a split that splits nothing, once a step was made."""
        if self.split is not None and self.ranks.splits == self._before:
            wanted = {
                "directions": "PZOBO, ForwardMode, HOZOG, pzobo.smooth or ESMAML",
                "tasks": "a few-shot learner of pzobo.meta",
                "data": "a pzobo.Problem",
            }[self.split.kind]
            raise RequirementError(
                f'split="{self.split.kind}" splits nothing here: it needs {wanted}. All ranks would do the same work.'
            )
