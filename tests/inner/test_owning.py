"""Is a step that writes into y the same as one that does not, bit for bit? And is a solver's own step the one taken?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from tests.helpers import normal

SOLVERS: dict[str, Any] = {
    "GD": pzobo.GD(0.1, 5),
    "HeavyBall": pzobo.HeavyBall(0.1, 0.9, 5),
    "Nesterov": pzobo.HeavyBall(0.1, 0.9, 5, nesterov=True),
    "Adam": pzobo.Adam(0.1, 5),
    "AdamW": pzobo.AdamW(0.1, 5, weight_decay=0.1),
}
RATE = torch.tensor(0.07, dtype=torch.float64)
SOLVERS |= {  # as they are where a number is a function of x
    "GD, tensor": SOLVERS["GD"].alike(lr=RATE),
    "HeavyBall, tensor": SOLVERS["HeavyBall"].alike(momentum=RATE),
    "Nesterov, tensors": SOLVERS["Nesterov"].alike(lr=RATE, momentum=10 * RATE),
    "Adam, tensors": SOLVERS["Adam"].alike(lr=RATE, eps=RATE / 100),
    "Adam, betas": SOLVERS["Adam"].alike(betas=(RATE, 0.9)),
    "AdamW, tensors": SOLVERS["AdamW"].alike(lr=RATE, weight_decay=RATE),
}
SHAPES = ((3, 2), (4,), ())


def leaves(seed: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    found = tuple(normal(*shape, seed=seed + i).to(dtype) for i, shape in enumerate(SHAPES))
    found[0][0] = 0.0  # coordinates without a gradient
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_in_place_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    solver = SOLVERS[name]
    y = leaves(1, dtype)
    mine, state, own_state = tuple(t.clone() for t in y), solver.init(y), solver.init(y)
    for step in range(6):
        gradient = leaves(10 * step + 3, dtype)
        y, state = solver.update(gradient, y, state)
        mine, own_state = solver.update_(gradient, mine, own_state)
    for a, b in zip((*y, *state), (*mine, *own_state), strict=True):
        assert torch.equal(a, b)


def quadratic(x: Tensor, y: Tensor, batch: None) -> Tensor:
    return 0.5 * (y - x).square().sum()


def test_the_start_and_a_given_state_stay_as_they_are() -> None:
    x, y0 = normal(3, seed=1), normal(3, seed=2)
    argmin = pzobo.Argmin(quadratic, solver=SOLVERS["Adam"], jacobian=pzobo.Direct())
    argmin(x, y0)
    state = argmin.last.state
    before = [t.clone() for t in (y0, *state)]
    argmin(x, y0, state=state)
    assert all(torch.equal(a, b) for a, b in zip(before, (y0, *state), strict=True))


def test_a_solver_that_inherits_has_its_own_step() -> None:
    """Only `update` is its own: what GD writes in place is not what it does."""

    @dataclass(frozen=True, repr=False)
    class Half(pzobo.GD):
        def update(self, gradient: Any, y: Any, state: Any) -> Any:
            return tuple(t - 0.5 * self.lr * g for t, g in zip(y, gradient, strict=True)), state

    x, y0 = normal(3, seed=1), normal(3, seed=2)
    found = pzobo.Argmin(quadratic, solver=Half(0.2, 7), jacobian=pzobo.Direct())(x, y0)
    torch.testing.assert_close(found, x + 0.9**7 * (y0 - x))


def halved(t: int) -> float:
    return 0.1 * 0.5**t


def rate(x: dict[str, Tensor]) -> Tensor:
    return x["rate"].exp()


NUMBERS: dict[str, Any] = {
    "weight decay": pzobo.GD(0.1, 5, weight_decay=0.3),
    "Adam, weight decay": pzobo.Adam(0.1, 5, weight_decay=0.3),
    "schedule": pzobo.HeavyBall(pzobo.Schedule(halved), 0.9, 5),
    "Adam, schedules": pzobo.Adam(pzobo.Schedule(halved), 5, weight_decay=pzobo.Schedule(halved)),
    "functions of x": pzobo.HeavyBall(rate, rate, 5, weight_decay=rate, nesterov=True),
    "AdamW, functions of x": pzobo.AdamW(rate, 5, weight_decay=rate),
    "parts": pzobo.GD(
        {"a": 0.1, "b": rate, "c": pzobo.Schedule(halved)}, 5, weight_decay={"a": 0.0, "b": 0.2, "c": rate}
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_path_with_numbers_that_are_no_constants_has_the_bits_of_its_steps(name: str, dtype: torch.dtype) -> None:
    """Unrolled makes one step after the other, with the penalty of a weight decay as a part of the loss."""
    x = {"to": normal(4, seed=1).to(dtype), "rate": torch.tensor(-2.0, dtype=dtype)}
    y0 = {key: normal(4, seed=2 + i).to(dtype) for i, key in enumerate("abc")}

    def loss(x: Any, y: Any, batch: None) -> Tensor:
        """a has a gradient of three parts, whose order counts, and c none."""
        return ((y["a"] - x["to"]).square() * y["b"]).sum() + y["a"].cos().sum() + (y["a"] * x["to"]).exp().sum()

    x["to"].requires_grad_()
    found = [
        pzobo.Argmin(loss, solver=NUMBERS[name], jacobian=jacobian)(x, y0)
        for jacobian in (pzobo.Direct(), pzobo.Unrolled(checkpoint=True))
    ]
    for key in y0:
        assert torch.equal(found[0][key], found[1][key])
        assert torch.equal(found[0][key], y0[key]) == (key == "c" and NUMBERS[name].weight_decay == 0.0)


def test_a_weight_decay_alone_moves_y() -> None:
    argmin = pzobo.Argmin(
        lambda x, y, batch: x.sum() + 0 * y.sum(), solver=pzobo.GD(0.1, 3, weight_decay=0.5), jacobian=pzobo.Direct()
    )
    torch.testing.assert_close(argmin(torch.ones(2), torch.ones(2)), torch.full((2,), 0.95**3))
