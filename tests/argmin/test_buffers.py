"""Are buffers of modules left alone, and is a loss refused that goes on with what it wrote?"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm

import pzobo
from pzobo.errors import (
    AuditWarning,
    RequirementError,
)
from tests.helpers import ZERO, leaf, make, normal

GD = pzobo.GD(0.1, 20)


class Later(nn.Module):
    """Two layers, of which the second is used from a moment on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
        self.late = False

    def forward(self, rows: Tensor) -> Tensor:
        return self.second(self.first(rows)) if self.late else rows


def test_a_module_that_appears_later_is_left_alone_in_the_backward_pass() -> None:
    net, data = Later(), normal(8, 3)

    def loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (net(batch) @ y - x.sum()).square().mean()

    x = leaf(3)
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.1, 4), jacobian=pzobo.PZOBO(1e-3, 3))
    argmin(x, ZERO, data).sum().backward()
    net.late = True
    y = argmin(x, ZERO, data)
    assert int(net.first.num_batches_tracked) == 4
    before = [b.clone() for b in net.buffers()]
    y.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


def test_buffers_of_another_thread_are_its_own() -> None:
    net, rows, stop = nn.BatchNorm1d(3).double(), normal(8, 3), threading.Event()
    calls = 0

    def train() -> None:
        nonlocal calls
        while not stop.is_set():
            net(rows)
            calls += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        x = leaf(3)
        argmin = make(pzobo.PZOBO(1e-3, 5, batching="loop"))
        for _ in range(20):
            argmin(x, ZERO).sum().backward()
    finally:
        stop.set()
        thread.join()
    assert int(net.num_batches_tracked) == calls


class Remembering(nn.Module):
    """It goes on with a running mean that it writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, y: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(y.detach(), alpha=0.5)
        return y * (1 + self.mean.clone().square())


AGAIN = {
    "checkpoint": pzobo.Unrolled(checkpoint=True),
    "forward": pzobo.Unrolled(products="forward"),
    "difference": pzobo.Unrolled(products="difference"),
    "implicit": pzobo.Implicit(pzobo.CG(5, damping=3.0)),
    "nudged": pzobo.Nudged(),
}


@pytest.mark.parametrize("jacobian", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("kind", ["mean", "spectral norm"])
def test_a_loss_that_reads_the_buffers_it_writes_is_refused_outside_of_its_path(jacobian: Any, kind: str) -> None:
    torch.manual_seed(0)
    net = Remembering() if kind == "mean" else spectral_norm(nn.Linear(3, 3, bias=False).double())
    weight = next(iter(dict(net.named_parameters())), "")

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        made = net(y) if kind == "mean" else functional_call(net, {weight: y.diag() + 0.1}, (ZERO + 1,))
        return (made - x).square().sum() + 0.1 * y.square().sum()

    x, y0 = leaf(3), ZERO + 0.5
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.05, 8), jacobian=jacobian)
    net.eval()
    with warnings.catch_warnings(action="ignore", category=AuditWarning):
        argmin(x, y0).sum().backward()
    net.train()
    before = [b.clone() for b in net.buffers()]
    y = argmin(x, y0)
    assert any(not torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))
    before = [b.clone() for b in net.buffers()]
    with pytest.raises(RequirementError, match=r"depends on buffers that it writes itself.*eval\(\)"):
        y.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


@pytest.mark.parametrize("jacobian", AGAIN.values(), ids=AGAIN)
def test_batch_norm_and_dropout_are_not_refused(jacobian: Any) -> None:
    """They write, or draw, but what they wrote does not change what they answer."""
    net, rows = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.2)).double(), normal(8, 3)
    x = leaf(3)

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (net(rows * (1 + x)) @ y - 1).square().mean() + 0.1 * y.square().sum()

    with warnings.catch_warnings(action="ignore", category=AuditWarning):
        pzobo.Argmin(loss, solver=pzobo.GD(0.05, 8), jacobian=jacobian)(x, ZERO).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
