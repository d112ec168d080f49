"""Is a run evaluated when it should be, by steps or by seconds?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import OptionError
from pzobo.outer.every import Every
from tests.algorithms.problems import Quadratic


class Clock:
    """A tenth of a second for each step: a step asks twice for its loss, and twice for its move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


def fit(steps: int, **options: Any) -> pzobo.Fit:
    method = pzobo.algorithms.SOBA(0.1, batch_size=5)
    return pzobo.fit(Quadratic().problem(), method, steps, lr=0.05, clock=Clock(), **options)


def evaluated(found: pzobo.Fit) -> list[int]:
    return [row["step"] for row in found.history if row.evaluated]


def test_seconds_of_steps_are_counted() -> None:
    found = fit(30, evaluate_every="0.5s")
    assert [round(row["seconds"], 6) for row in found.history[:3]] == [0.0, 0.1, 0.2]
    # The clock's rounding decides whether a row at .5 seconds is one before or after: each half second has one.
    steps = evaluated(found)
    halves = [int(found.history[k]["seconds"] / 0.5) for k in steps[:-1]]
    assert halves == list(range(len(halves)))
    assert steps[0] == 0
    assert steps[-1] == 30
    assert len(steps) in (7, 8)


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    whole = fit(30, evaluate_every="0.5s")
    fit(13, evaluate_every="0.5s", out=tmp_path)
    resumed = fit(30, evaluate_every="0.5s", out=tmp_path, resume=True)
    assert torch.equal(whole.x, resumed.x)
    assert evaluated(whole) == evaluated(resumed)


@pytest.mark.parametrize("value", ["2", "s", "-1s", "0s", "two s", "nans"])
def test_other_texts_are_refused(value: str) -> None:
    with pytest.raises(OptionError, match='such as "2s"'):
        fit(3, evaluate_every=value)


def test_how_far_ahead() -> None:
    assert Every(steps=10).ahead(7, 0.0, 1.0) == 3
    assert Every(steps=10).ahead(10, 0.0, 1.0) == 10
    assert Every(seconds=2.0).ahead(3, 3.0, 0.25) == 4
    assert Every(seconds=2.0).ahead(3, 3.9, 1.0) == 1
    assert Every().ahead(3, 3.9, 1.0) > 10**6
    assert not Every().due(10, 10.0, [])
