"""Are many tasks in one call the tasks one by one, with data of their own, at x and at z?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import OptionError
from tests.helpers import normal, relative_error

TASKS, ROWS, WIDTH = 4, 8, 3
Tree = dict[str, Tensor]


def one_task(x: Tree, y: Tree, batch: Any) -> Tensor:
    """Softplus regression on features that x makes, with a penalty."""
    inputs, targets = batch
    return head(inputs @ x["features"], y, targets) + 0.5 * x["decay"].exp() * y["w"].square().sum()


def head(features: Tensor, y: Tree, targets: Tensor) -> Tensor:
    return torch.nn.functional.softplus((features @ y["w"] + y["b"]) * targets).mean()


def data() -> tuple[Tree, Tree, tuple[Tensor, Tensor]]:
    x = {"features": normal(5, WIDTH, seed=1).requires_grad_(), "decay": torch.tensor(-1.0).double().requires_grad_()}
    y0 = {"w": normal(WIDTH, seed=2), "b": torch.zeros(1, dtype=torch.float64)}
    return x, y0, (normal(TASKS, ROWS, 5, seed=3), normal(TASKS, ROWS, seed=4).sign())


def outer(y: Tree) -> Tensor:
    weights = torch.arange(1.0, TASKS + 1, dtype=torch.float64)
    return (weights[:, None] * y["w"].square()).sum() + (weights * y["b"].squeeze(-1)).sum()


SOLVERS = [pzobo.GD(0.5, 5), pzobo.HeavyBall(0.3, 0.6, 5, weight_decay=0.1), pzobo.Adam(0.1, 5, eps=1e-3)]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(), pzobo.Implicit(pzobo.Exact())], ids=["unrolled", "implicit"])
def test_in_one_call_as_one_by_one(solver: Any, jacobian: Any) -> None:
    x, y0, batch = data()
    one = pzobo.Argmin(one_task, solver=solver, jacobian=jacobian, audit=False)
    alone = [one(x, y0, (batch[0][i], batch[1][i])) for i in range(TASKS)]
    expected = {name: torch.stack([y[name] for y in alone]) for name in y0}
    many = pzobo.Argmin(pzobo.over_tasks(one_task), solver=solver, jacobian=jacobian, audit=False)
    y = many(x, pzobo.for_tasks(y0, TASKS), batch)
    for name in y0:
        torch.testing.assert_close(y[name].detach(), expected[name].detach(), rtol=1e-10, atol=1e-13)
    found, truth = (torch.autograd.grad(outer(t), list(x.values())) for t in (y, expected))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_through_features_of_each_task_with_pzobo_at_z(batching: str) -> None:
    """z = prepare(x, batch) has the features of each task; all its coordinates as directions are exact."""
    x, y0, batch = data()
    one = pzobo.Argmin(one_task, solver=SOLVERS[0], jacobian=pzobo.Unrolled())
    alone = [one(x, y0, (batch[0][i], batch[1][i])) for i in range(TASKS)]
    truth = torch.autograd.grad(outer({name: torch.stack([y[name] for y in alone]) for name in y0}), list(x.values()))

    def on_features(z: Any, y: Tree, batch: Any) -> Tensor:
        features, decay = z
        return head(features, y, batch[1]) + 0.5 * decay.exp() * y["w"].square().sum()

    size = TASKS * ROWS * WIDTH + TASKS
    jacobian = pzobo.PZOBO(
        1e-5, size, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True, at="z", batching=batching
    )
    argmin = pzobo.Argmin(
        pzobo.over_tasks(on_features, z="each"),
        solver=SOLVERS[0],
        jacobian=jacobian,
        prepare=lambda x, batch: (batch[0] @ x["features"], x["decay"].expand(TASKS) * 1),
    )
    y = argmin(x, pzobo.for_tasks(y0, TASKS), batch)
    found = torch.autograd.grad(outer(y), list(x.values()))
    for a, b in zip(found, truth, strict=True):
        assert relative_error(a, b) < 1e-6


def test_a_learned_start_gets_the_sum_over_tasks() -> None:
    x, y0, batch = data()
    y0 = {name: t.requires_grad_() for name, t in y0.items()}
    one = pzobo.Argmin(one_task, solver=SOLVERS[0], jacobian=pzobo.Unrolled())
    alone = [one(x, y0, (batch[0][i], batch[1][i])) for i in range(TASKS)]
    truth = torch.autograd.grad(outer({name: torch.stack([y[name] for y in alone]) for name in y0}), list(y0.values()))
    many = pzobo.Argmin(pzobo.over_tasks(one_task), solver=SOLVERS[0], jacobian=pzobo.Unrolled())
    found = torch.autograd.grad(outer(many(x, pzobo.for_tasks(y0, TASKS), batch)), list(y0.values()))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_each_task_has_a_dropout_mask_of_its_own_and_a_batch_may_hold_constants() -> None:
    def dropped(x: Any, y: Tensor, batch: Any) -> Tensor:
        rate, _ = batch
        return (torch.nn.functional.dropout(torch.ones(50, dtype=torch.float64), rate) * y).sum()

    argmin = pzobo.Argmin(pzobo.over_tasks(dropped), solver=pzobo.GD(1.0, 1), jacobian=pzobo.Direct())
    y = argmin((), pzobo.for_tasks(torch.zeros(50, dtype=torch.float64), 2), (0.5, torch.zeros(2)))
    assert (y[0] == 0).any()
    assert not torch.equal(y[0] == 0, y[1] == 0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(OptionError, match='"shared" or "each"'):
        pzobo.over_tasks(one_task, z="own")  # type: ignore[arg-type]
