"""Does a run that was killed end in the same bits? One run of the demo again, killed by the system, and resumed."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pzobo.bench.commands import carry_out
from pzobo.bench.experiments.base import Experiment
from pzobo.bench.runner import command_of
from pzobo.errors import PzoboError
from pzobo.files import write_atomically
from pzobo.runs import names
from pzobo.runs.randomness import scalar_types

METHOD = "itd-r"


@dataclass(frozen=True)
class Resumed:
    """What came of it.

    Args:
        killed: the outer step at which the process was killed; None if it had ended before.
        steps: of the whole run.
        same: whether the outer variables have the same bits as those of the run that was not killed.
    """

    killed: int | None
    steps: int
    same: bool

    def sentence(self) -> str:
        end = "ended in the same bits" if self.same else "did NOT end in the same bits"
        if self.killed is None:
            return f"The run of {self.steps} steps was over before it could be killed; made again, it {end}."
        return f"Killed at step {self.killed} of {self.steps} and resumed, the same run {end}."


def kill_and_resume(experiment: Experiment, out: Path) -> Resumed:
    """Make one run of the experiment again in `out`: kill its process with SIGKILL at half, go on, and compare."""
    again = replace(experiment, methods=(METHOD,), seeds=1, out=out, workers=0, checkpoint_every=1).variants()[0]
    folder, whole = (base / experiment.name / again.label() / METHOD / "seed-0" for base in (out, experiment.out))
    note = out / "killed-at"
    if not note.exists():
        killed = _kill(again, folder)
        write_atomically(note, str(killed or "").encode())
    carry_out(again, "go on with the same command")  # what is whole is not made again
    text = note.read_text()
    return Resumed(int(text) if text.isdigit() else None, experiment.steps, _bits(folder) == _bits(whole))


def _kill(experiment: Experiment, folder: Path) -> int | None:
    """Start the run in a process of its own, and kill it at half of its steps."""
    command = [sys.executable, "-m", "pzobo.cli", *shlex.split(command_of(experiment))[1:], "--workers", "0"]
    command += ["--out", str(experiment.out), "--resume"]
    half = math.ceil(experiment.steps / 2)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            while process.poll() is None and _lines(folder) <= half:
                time.sleep(0.02)
        finally:
            process.kill()
        said = process.stderr.read().decode(errors="replace") if process.stderr is not None else ""
    if process.returncode > 0:
        raise PzoboError(f"The run that was to be killed did not begin: {said.strip()[-300:]}")
    return None if (folder / names.RESULT).exists() else _lines(folder) - 1


def _lines(folder: Path) -> int:
    """How many whole rows there are."""
    try:
        return (folder / names.METRICS).read_bytes().count(b"\n")
    except OSError:
        return 0


def _bits(folder: Path) -> bytes:
    """The outer variables at the end."""
    with torch.serialization.safe_globals(scalar_types()):
        x = torch.load(folder / names.CHECKPOINT, weights_only=True)["x"]
    return b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in x)
