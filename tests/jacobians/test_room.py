"""How many paths run at once? As many as there is room for; fewer after a want of memory, of which nothing is kept."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.jacobians import directional

ROWS = 5


class Limited(torch.autograd.Function):
    """The identity, which takes at most some paths at once, as a device with little memory does."""

    most, tried, lost = 100, [], []

    generate_vmap_rule = False

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def vmap(info: Any, dims: Any, y: Tensor) -> tuple[Tensor, int]:
        Limited.tried.append(info.batch_size)
        if info.batch_size > Limited.most:
            large = torch.empty(1000)
            Limited.lost.append(weakref.ref(large))
            raise torch.OutOfMemoryError("out of memory: tried to allocate too much")
        return Limited.apply(y), dims[0]


def inner_loss(x: Tensor, y: Tensor, batch: None) -> Tensor:
    return 0.5 * (Limited.apply(y) - x.sin()).square().sum()


def hypergradient(most: int, batching: Any, passes: int = 1) -> tuple[Tensor, list[int]]:
    Limited.most, Limited.tried, Limited.lost = most, [], []
    jacobian = pzobo.PZOBO(1e-3, 16, pzobo.Gaussian(seed=1), batching=batching)
    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(0.5, 3), jacobian=jacobian, audit=False)
    x = torch.linspace(0, 1, ROWS, dtype=torch.float64, requires_grad=True)
    for _ in range(passes):
        found = torch.autograd.grad(argmin(x, torch.zeros_like(x)).sum(), x)[0]
    return found, Limited.tried


def test_a_want_of_memory_halves_what_runs_at_once_and_is_remembered() -> None:
    expected, _ = hypergradient(100, "loop")
    found, tried = hypergradient(5, "auto")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert list(dict.fromkeys(tried)) == [16, 8, 4]
    _, tried = hypergradient(5, "auto", passes=2)
    assert tried.count(16) == tried.count(8) == 1, "the second pass begins with what there was room for"


def test_nothing_of_a_failed_try_stays_alive() -> None:
    hypergradient(5, "auto")
    gc.collect()
    assert len(Limited.lost) == 2
    assert all(lost() is None for lost in Limited.lost)


def test_what_was_asked_for_is_not_changed() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        hypergradient(5, 8)


def test_large_paths_run_one_by_one_where_memory_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 paths of 5 float64 numbers for y and x each, eleven copies of both: 880 bytes a path."""
    monkeypatch.setattr(directional, "free_bytes", lambda device: 2 * 880 * 3)
    _, tried = hypergradient(100, "auto")
    assert set(tried) == {3, 1}, "five times three, and the last alone"
