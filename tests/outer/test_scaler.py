"""What does a GradScaler do in `fit`? What it does in a loop by hand: scaled losses, skipped steps, the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import NonFiniteError, OptionError, RunFolderError
from tests.helpers import normal

ROWS = normal(12, 3).float()
LABELS = ROWS @ torch.tensor([1.0, -2.0, 0.5])


def inner_loss(x: Tensor, y: Tensor, batch: None) -> Tensor:
    return (ROWS @ y - LABELS).square().mean() + (x.exp() * y.square()).mean()


def outer_loss(x: Tensor, y: Tensor, batch: None) -> Tensor:
    """In float16: the cotangent of the residuals overflows where the scale is above 2^10 or so."""
    return (64 * (ROWS.half() @ y.half() - LABELS.half())).abs().mean().float()


def problem() -> pzobo.Problem:
    return pzobo.Problem(inner_loss, outer_loss, torch.zeros(3), torch.zeros(3))


GD = pzobo.GD(0.1, 5)
JACOBIANS = {
    "unrolled": pzobo.Unrolled(),
    "cg": pzobo.Implicit(pzobo.CG(5)),
    "nudged": pzobo.Nudged(),
    "pzobo": pzobo.PZOBO(1e-2, 3, pzobo.Gaussian(seed=0)),
}


def scaler(scale: float = 2.0**16, **options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def fitted(jacobian: Any, steps: int, **options: Any) -> pzobo.Fit:
    method = pzobo.Method(GD, jacobian, audit=False)
    return pzobo.fit(problem(), method, steps, optimizer=torch.optim.SGD, lr=1e-3, **options)


@pytest.mark.parametrize("name", JACOBIANS)
def test_it_is_the_loop_by_hand(name: str) -> None:
    """Overflows at the start, the same steps skipped, the same x in the end."""
    steps, by_hand = 14, scaler(growth_interval=3)
    found = fitted(JACOBIANS[name], steps, scaler=scaler(growth_interval=3))
    x = torch.zeros(3, requires_grad=True)
    argmin = pzobo.Argmin(inner_loss, solver=GD, jacobian=JACOBIANS[name].at_start(), audit=False)
    optimizer, skipped = torch.optim.SGD([x], lr=1e-3), []
    for _ in range(steps):
        optimizer.zero_grad()
        by_hand.scale(outer_loss(x, argmin(x, torch.zeros(3)), None)).backward()
        before = by_hand.get_scale()
        by_hand.step(optimizer)
        by_hand.update()
        skipped.append(by_hand.get_scale() < before)
    assert skipped[:3] == [True] * 3
    assert 3 < sum(skipped) < steps - 3
    assert [row.hypergradient_norm is None for row in found.history[:-1]] == skipped
    assert torch.equal(found.x, x)


def test_the_norm_is_that_of_the_hypergradient_itself() -> None:
    plain = fitted(pzobo.Unrolled(), 3)
    scaled = fitted(pzobo.Unrolled(), 3, scaler=scaler(64.0))
    assert [row.outer_loss for row in scaled.history] == pytest.approx([row.outer_loss for row in plain.history])
    norms = [row.hypergradient_norm for row in plain.history[:-1]]
    assert [row.hypergradient_norm for row in scaled.history[:-1]] == pytest.approx(norms, rel=1e-3)


def test_an_evaluation_sees_the_hypergradient_itself() -> None:
    seen: dict[str, list[Tensor]] = {"plain": [], "scaled": []}
    for name, options in (("plain", {}), ("scaled", {"scaler": scaler(64.0)})):

        def evaluate(objective: pzobo.Objective, name: str = name) -> dict[str, float]:
            seen[name].append(objective.x.grad.clone())
            return {}

        fitted(pzobo.Unrolled(), 1, evaluate=evaluate, evaluate_at_end=lambda objective: {}, **options)
    torch.testing.assert_close(seen["scaled"], seen["plain"], rtol=1e-3, atol=0)


def test_the_one_that_is_given_is_left_alone() -> None:
    given = scaler()
    first, second = (fitted(pzobo.Unrolled(), 8, scaler=given) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert given.get_scale() == 2.0**16


def test_one_that_is_switched_off_changes_nothing() -> None:
    off = fitted(pzobo.Unrolled(), 4, scaler=scaler(enabled=False))
    assert torch.equal(off.x, fitted(pzobo.Unrolled(), 4).x)


def test_a_schedule_counts_the_steps_that_are_made() -> None:
    rates: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, *args: Any, **options: Any) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **options)

    method = pzobo.Method(GD, pzobo.Unrolled(), audit=False)
    pzobo.fit(
        problem(),
        method,
        12,
        optimizer=Watched,
        lr=1.0 / 1024,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        scaler=scaler(),
    )
    assert len(rates) < 10
    assert rates == [2.0 ** -(10 + k) for k in range(len(rates))]


@pytest.mark.parametrize("stop", [2, 7, 11])
def test_a_resumed_run_ends_in_the_same_bits(stop: int, tmp_path: Path) -> None:
    """Stopped at a row whose step is not made yet: one that overflowed, one that did not, and one after growth."""
    options: dict[str, Any] = {"evaluate_every": 1, "scaler": scaler(growth_interval=3)}
    whole = fitted(pzobo.Unrolled(), 14, out=tmp_path / "whole", **options)
    target = lambda row: row.step == stop  # noqa: E731
    part = fitted(pzobo.Unrolled(), 14, out=tmp_path / "part", target=target, **options)
    assert (part.stopped, part.steps) == ("target", stop)
    ended = fitted(pzobo.Unrolled(), 14, out=tmp_path / "part", resume=True, **options)
    assert torch.equal(ended.x, whole.x)
    own = ("step", "outer_loss", "hypergradient_norm")
    assert [[row[key] for key in own] for row in ended.history] == [[row[key] for key in own] for row in whole.history]


def test_a_run_with_one_is_not_one_without(tmp_path: Path) -> None:
    fitted(pzobo.Unrolled(), 2, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="scaler"):
        fitted(pzobo.Unrolled(), 4, out=tmp_path / "run", resume=True, scaler=scaler())


def test_gradients_that_no_scale_makes_finite_end_the_run() -> None:
    def loss(x: Tensor, y: Tensor, batch: None) -> Tensor:
        return (0 * y).abs().sum().sqrt()  # 0 * infinity

    method = pzobo.Method(GD, pzobo.Unrolled(), audit=False)
    wrong = pzobo.Problem(inner_loss, loss, torch.zeros(3), torch.zeros(3))
    with pytest.raises(NonFiniteError, match="hypergradient holds NaN"):
        pzobo.fit(wrong, method, 100, scaler=scaler())


def test_what_it_cannot_take_is_refused() -> None:
    with pytest.raises(OptionError, match="GradScaler"):
        fitted(pzobo.Unrolled(), 2, scaler=2.0)
    half = pzobo.Problem(inner_loss, outer_loss, torch.zeros(3, dtype=torch.float16), torch.zeros(3))
    with pytest.raises(OptionError, match="keep x in float32"):
        pzobo.fit(half, pzobo.Method(GD, pzobo.Unrolled()), 2, scaler=scaler())


def test_algorithms_with_a_memory_take_one() -> None:
    algorithm = pzobo.algorithms.SOBA(lr=0.1)
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "lr": 1e-3}
    plain, scaled = (
        pzobo.fit(problem(), algorithm, 6, **options, **more) for more in ({}, {"scaler": scaler(2.0**10)})
    )
    torch.testing.assert_close(scaled.x, plain.x)
