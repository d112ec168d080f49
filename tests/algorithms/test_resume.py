"""Does a run with a memory go on where it stopped, in the same bits?"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import CheckpointError, StructureError
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Quadratic

SIZES = {"batch_size": 5, "outer_batch_size": 4}


def fit(name: str, steps: int, out: Path | None = None, **options: Any) -> pzobo.Fit:
    method = make(name, **SIZES)
    return pzobo.fit(Quadratic().problem(), method, steps, lr=0.02, seed=2, out=out, evaluate_every=2, **options)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_resumed_run_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = fit(name, 9)
    fit(name, 4, tmp_path)
    resumed = fit(name, 9, tmp_path, resume=True)
    assert torch.equal(whole.x, resumed.x)
    assert torch.equal(whole.y, resumed.y)
    assert [r["outer_loss"] for r in whole.history] == [r["outer_loss"] for r in resumed.history]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_kept_state_is_not_written_into(name: str) -> None:
    """A state can be loaded twice, whatever happened in between."""
    objective = make(name, **SIZES).start(Quadratic().problem(), 2)
    objective.outer_loss()
    state = objective.state_dict()
    kept = copy.deepcopy(state)
    first = float(objective.outer_loss().detach())
    for _ in range(3):
        objective.outer_loss()
    objective.load_state_dict(state)
    assert float(objective.outer_loss().detach()) == first
    for part, was in zip(state["carried"].values(), kept["carried"].values(), strict=True):
        if isinstance(part, list):
            assert all(torch.equal(t, s) for t, s in zip(part, was, strict=True))


def test_another_state_is_refused(tmp_path: Path) -> None:
    soba = make("SOBA", **SIZES).start(Quadratic().problem(), 2)
    f2sa = make("F2SA", **SIZES).start(Quadratic().problem(), 2)
    with pytest.raises(StructureError, match="carries"):
        soba.load_state_dict(f2sa.state_dict())
    state = soba.state_dict()
    state["carried"]["v"] = [torch.zeros(7, dtype=torch.float64)]
    with pytest.raises(StructureError, match="v has"):
        soba.load_state_dict(state)
    assert issubclass(CheckpointError, ValueError)


def test_evaluations_leave_no_trace() -> None:
    """The last row makes one more step of y, and takes it back."""
    found = fit("SABA", 3)
    objective = make("SABA", **SIZES).start(Quadratic().problem(), 2)
    optimizer = torch.optim.Adam([objective.x], lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        objective.outer_loss().backward()
        optimizer.step()
    assert torch.equal(found.x, objective.x)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_hypergradient_is_that_of_backward_and_nobody_elses(name: str) -> None:
    """`fit` asks for it without autograd. What is written into it, by an optimizer say, reaches no later step."""
    by_autograd, at_once = (make(name, **SIZES).start(Quadratic().problem(), 2) for _ in range(2))
    for _ in range(3):
        by_autograd.x.grad = at_once.x.grad = None
        loss = by_autograd.outer_loss()
        loss.backward()
        value = at_once.hypergradient()
        assert torch.equal(loss.detach(), value)
        assert torch.equal(by_autograd.x.grad, at_once.x.grad)
        at_once.x.grad.fill_(1e6)


def test_hypergradients_add_up_in_x() -> None:
    once, twice = (make("SOBA").start(Quadratic().problem(), 2) for _ in range(2))
    once.hypergradient()
    before = torch.full_like(twice.x, 3.0)
    twice.x.grad = before
    twice.hypergradient()
    assert torch.equal(twice.x.grad, once.x.grad + 3.0)
    assert torch.equal(before, torch.full_like(before, 3.0))
