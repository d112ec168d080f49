"""What does a large problem take on a device: memory in copies of y, reads that wait for it, launches? By counting.

y has 4 x 1,000 x 1,000 numbers, x a fiftieth of them, N = 10. Tensors have no data, so the numbers are exact, and the
same for any size: a network on 20 rows, whose activations are a small part of y.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.jacobians.directional import COPIES
from tests.device import Device

WIDTH, LAYERS, ROWS = 1000, 4, 40
DIRECTIONS = pzobo.Gaussian(seed=0, portable=True)


def network(y: dict[str, Tensor], batch: Tensor) -> Tensor:
    for weight in y.values():
        batch = (batch @ weight).tanh()
    return batch


def inner_loss(x: Tensor, y: dict[str, Tensor], batch: Tensor) -> Tensor:
    return (network(y, batch) - x).square().mean()


def loop(solver: Any, jacobian: Any, steps: int = 3, **options: Any) -> Device:
    """What the last of some outer steps of the usual loop takes; not one that is looked at closely."""
    gc.collect()
    with Device() as device:
        train, val = (torch.empty(ROWS, WIDTH, device="meta") for _ in range(2))
        y0 = {f"layer {i}": torch.zeros(WIDTH, WIDTH, device="meta") for i in range(LAYERS)}
        x = torch.zeros(ROWS, WIDTH, device="meta", requires_grad=True)
        argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=jacobian, audit=False, **options)
        optimizer = torch.optim.SGD([x], lr=0.1)
        for step in range(steps):
            if step == steps - 1:
                device.reset()
            y = argmin(x, y0, train)
            loss = network(y, val).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return device


GD, HEAVY_BALL, ADAM = pzobo.GD(0.1, 10), pzobo.HeavyBall(0.1, 0.9, 10), pzobo.Adam(0.1, 10)
CG = pzobo.CG(20, tol=1e-6)

# (solver, Jacobian, copies of y, reads). What is above a whole number is data, activations, and parts of one tensor.
COSTS: dict[str, tuple[Any, Any, float, int]] = {
    "PZOBO, GD": (GD, pzobo.PZOBO(0.01, sampler=DIRECTIONS), 5.1, 2),
    "PZOBO, HeavyBall": (HEAVY_BALL, pzobo.PZOBO(0.01, sampler=DIRECTIONS), 7.1, 2),
    "PZOBO, Adam": (ADAM, pzobo.PZOBO(0.01, sampler=DIRECTIONS), 7.9, 2),
    "CG": (GD, pzobo.Implicit(CG), 7.5, 6),
    "CG, difference": (GD, pzobo.Implicit(CG, "difference"), 8.4, 6),
    "Neumann": (GD, pzobo.Implicit(pzobo.Neumann(0.1, 10)), 6.5, 1),
    "FixedPoint": (GD, pzobo.Implicit(pzobo.FixedPoint(10)), 7.5, 1),
    "Nudged": (GD, pzobo.Nudged(), 6.6, 1),
    "ForwardMode": (GD, pzobo.ForwardMode(sampler=DIRECTIONS), 7.9, 2),
    "Unrolled": (GD, pzobo.Unrolled(), 16.7, 1),
    "Unrolled(checkpoint)": (GD, pzobo.Unrolled(checkpoint=True), 15.5, 1),
    "Unrolled(offload)": (GD, pzobo.Unrolled(offload=True), 7.5, 1 + 10 * LAYERS),  # a copy is a read
    "Direct": (GD, pzobo.Direct(), 4.1, 1),
}


@pytest.mark.parametrize("name", COSTS)
def test_an_outer_step_takes_no_more_memory_and_reads_than_said(name: str) -> None:
    solver, jacobian, copies, reads = COSTS[name]
    device = loop(solver, jacobian)
    y = LAYERS * WIDTH**2 * 4
    assert device.peak / y <= copies, f"{device.peak / y:.2f} copies of y at {device.peak_at}"
    assert sum(device.reads.values()) <= reads, device.reads
    assert not device.waits


AT_ONCE: dict[str, Any] = {
    "GD": (GD, pzobo.PZOBO(0.01, 8, DIRECTIONS, batching=8), 3.1),
    "Adam": (ADAM, pzobo.PZOBO(0.01, 8, DIRECTIONS, batching=8), 7.7),
    "AdamW": (pzobo.AdamW(0.1, 10), pzobo.ForwardMode(8, DIRECTIONS, batching=8), 10.4),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_path_among_others_takes_no_more_than_there_is_room_made_for(name: str) -> None:
    solver, jacobian, copies = AT_ONCE[name]
    device = loop(solver, jacobian)
    taken = (device.peak / (LAYERS * WIDTH**2 * 4) - 3) / 8  # beside y0, y and its cotangent
    assert taken <= copies <= COPIES, f"{taken:.2f} copies of y"
    assert sum(device.reads.values()) == 2
    assert not device.waits


def test_a_retained_graph_keeps_what_the_pullback_needs() -> None:
    x = torch.ones(3, requires_grad=True)
    argmin = pzobo.Argmin(lambda x, y, batch: (y - x**2).square().sum(), solver=GD, jacobian=pzobo.Unrolled())
    y = argmin(x, torch.zeros(3))
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    second = torch.autograd.grad(y.sum(), x)[0]
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)


def test_a_backward_pass_frees_what_it_needed() -> None:
    """y lives on, as it does in a loop until the next one is there."""
    with Device() as device:
        x = torch.zeros(ROWS, WIDTH, device="meta", requires_grad=True)
        y0 = {"layer": torch.zeros(WIDTH, WIDTH, device="meta")}
        train = torch.zeros(ROWS, WIDTH, device="meta")
        argmin = pzobo.Argmin(inner_loss, solver=GD, jacobian=pzobo.Unrolled(), audit=False)
        before = device.live
        y = argmin(x, y0, train)
        held = device.live - before
        network(y, train).sum().backward()
        left = device.live - before
    size = WIDTH**2 * 4
    assert held > 10 * size
    assert left < 1.3 * size, f"{left / size:.1f} copies of y are left beside y itself"
    del y


UPDATES: dict[str, tuple[Any, int]] = {
    "GD": (GD, 1),
    "HeavyBall": (HEAVY_BALL, 2),
    "Adam": (ADAM, 20),
    "AdamW": (pzobo.AdamW(0.1, 10), 21),
    "GD, schedule": (pzobo.GD(pzobo.Schedule(lambda t: 0.1 * 0.9**t), 10), 1),
    "GD, function of x": (pzobo.GD(lambda x: x[0], 10), 3),
    "HeavyBall, functions of x": (pzobo.HeavyBall(lambda x: x[0], lambda x: x[0] / 2, 10), 5),
    "AdamW, functions of x": (pzobo.AdamW(lambda x: x[0], 10, weight_decay=lambda x: x[0]), 22),
    # What a weight decay adds to the gradient autograd adds tensor by tensor.
    "GD, weight decay": (pzobo.GD(0.1, 10, weight_decay=0.1), 64),
    "Adam, schedule, weight decay": (pzobo.Adam(pzobo.Schedule(lambda t: 0.1), 10, weight_decay=0.1), 83),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_sixty_tensors_is_few_launches(name: str) -> None:
    solver, expected = UPDATES[name]

    def launched(steps: int) -> int:
        with Device() as device, torch.no_grad():
            y0 = [torch.zeros(3, device="meta") for _ in range(60)]
            of_y = {"solver": solver.with_steps(steps), "jacobian": pzobo.Direct()}
            argmin = pzobo.Argmin(lambda x, y, batch: torch.stack(list(y)).sum(), **of_y, check=False)  # reads are 1
            x = (torch.ones((), device="meta"),)
            argmin(x, y0)
            device.reset()
            argmin(x, y0)
        return device.operations

    loss = 3  # stack, sum, and the 1 that its backward begins with
    assert (launched(6) - launched(4)) / 2 - loss == expected


BOTH: dict[str, Any] = {name: cost[:2] for name, cost in COSTS.items()} | {
    "Nudged, HeavyBall": (HEAVY_BALL, pzobo.Nudged()),
    "Unrolled, difference": (HEAVY_BALL, pzobo.Unrolled(products="difference")),
    "Unrolled, Adam": (ADAM, pzobo.Unrolled()),
    "PZOBO, numbers": (
        pzobo.HeavyBall(lambda x: x[0].mean() / 10, 0.5, 10, weight_decay=lambda x: x[1].mean()),
        pzobo.PZOBO(0.01, sampler=DIRECTIONS),
    ),
    "Unrolled, numbers": (pzobo.AdamW(pzobo.Schedule(lambda t: 0.1), 10), pzobo.Unrolled()),
    "CG, forward": (GD, pzobo.Implicit(CG, "forward")),
}


@pytest.mark.parametrize("name", BOTH)
def test_trees_over_two_devices(name: str) -> None:
    """y has a tensor on the host and one on the device, and so has x."""
    solver, jacobian = BOTH[name]

    def loss(x: list[Tensor], y: list[Tensor], batch: None) -> Tensor:
        near, far = ((t - s.tanh()).square().sum() for t, s in zip(y, x, strict=True))
        return near + far.to("cpu")

    with Device():
        x = [torch.ones(3, device=device, requires_grad=True) for device in ("cpu", "meta")]
        y0 = [torch.zeros(3, device=device) for device in ("cpu", "meta")]
        argmin = pzobo.Argmin(loss, solver=solver, jacobian=jacobian, audit=False, check=False)
        for _ in range(3):  # the third pass is an ordinary one
            y = argmin(x, y0)
            found = torch.autograd.grad(y[0].sum() + y[1].sum().to("cpu"), x, allow_unused=True, materialize_grads=True)
    assert [t.device.type for t in found] == [t.device.type for t in y] == ["cpu", "meta"]
