"""What is tried on which parser, for how long, and what may come of it?

A target writes a file that is damaged in some way and reads it. The answer must be a value or an error of this library:
no other exception, nothing run that a file asks for, and no more time or memory than a file of its size can need.
"""

from __future__ import annotations

import json
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pzobo.data import read_miniimagenet, read_omniglot
from pzobo.data.idx import parse_idx
from pzobo.errors import PzoboError
from tests.fuzz.damage import other_bytes, other_json
from tests.fuzz.data_files import CSV, NPZ, OMNIGLOT, csv_file, idx_files, other_archives, pickles, unpickle
from tests.fuzz.run_files import CONFIG, LINES, RESULT, ROW_LINES, THEORY, checkpoints, report, resume, theory

MEGABYTES, SECONDS = 700, 20.0
"""What one input may take above what the process had, and how long."""

ROUND = 50
"""Inputs that hypothesis makes in one go."""


@dataclass(frozen=True)
class Target:
    """How inputs are made, and what reads them."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any], Any]
    tried: dict[str, int] = field(default_factory=dict)
    """How many inputs had which answer."""


TARGETS = {
    "config.json": Target(other_json(CONFIG), lambda b: report(b, LINES, json.dumps(RESULT).encode())),
    "metrics.jsonl": Target(
        ROW_LINES | other_bytes(LINES),
        lambda b: report(json.dumps(CONFIG).encode(), b, json.dumps(RESULT).encode()),
    ),
    "result.json": Target(other_json(RESULT), lambda b: report(json.dumps(CONFIG).encode(), LINES, b)),
    "theory.json": Target(other_json(json.loads(THEORY.to_json())), theory),
    "checkpoint.pt": Target(checkpoints(), resume),
    "idx": Target(idx_files(), lambda content: parse_idx(content, "it")),
    "npz": Target(other_archives(NPZ), lambda content: read_miniimagenet.from_npz(content, "it")),
    "zip": Target(other_archives(OMNIGLOT), lambda content: read_omniglot.decode(content, "it")),
    "csv": Target(CSV | other_bytes(b"filename,label\na.jpg,n1\na.jpg,n2\n"), csv_file),
    "pkl": Target(pickles(), unpickle),
}


def allowed(target: Target, content: Any) -> None:
    """Read one input: a value, or an error of this library, soon and without much memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            target.read(content)
            answer = "warnings" if said else "values"
        except PzoboError:
            answer = "errors"
    target.tried[answer] = target.tried.get(answer, 0) + 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"{grown:.0f} MB"
    assert time.process_time() - began < SECONDS


def run(name: str, seconds: float, number: int) -> None:
    """Try inputs of a target for so long (processor time), from this seed on; the smallest that breaks it is shown."""
    target, end, broken = TARGETS[name], time.process_time() + seconds, False

    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(target.inputs)
    def trial(content: Any) -> None:
        nonlocal broken
        if time.process_time() > end and not broken:
            return
        try:
            allowed(target, content)
        except Exception:
            broken = True  # and what breaks it is made smaller, however long that takes
            raise

    while time.process_time() < end:
        seed(number)(trial)()
        number += 1
