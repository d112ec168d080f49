"""What may a black box be, and what does PZOBO make of it?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

import pzobo
from pzobo.errors import RequirementError
from tests.helpers import bowl, descend, leaf, normal, relative_error

EXACT = {"directions": 3, "sampler": pzobo.Orthogonal(seed=0)}


def test_a_black_box_in_numpy() -> None:
    A, b = normal(6, 3).numpy(), normal(6, seed=1).numpy()

    def solve(x: Tensor, y0: Tensor, batch: Any) -> np.ndarray:
        A, b = batch
        return np.linalg.solve(A.T @ A + np.diag(np.exp(x.numpy())), A.T @ b)

    x = leaf(3, seed=2)
    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(solve), jacobian=pzobo.PZOBO(1e-5, **EXACT, antithetic=True))
    y = argmin(x, torch.zeros(3, dtype=torch.float64), (A, b))
    found = torch.autograd.grad(y.sum(), x)[0]
    A_, b_ = torch.as_tensor(A), torch.as_tensor(b)
    exact = torch.linalg.solve(A_.T @ A_ + torch.diag(x.exp()), A_.T @ b_)
    torch.testing.assert_close(y.detach(), exact.detach())
    torch.testing.assert_close(found, torch.autograd.grad(exact.sum(), x)[0], rtol=1e-6, atol=1e-9)


def test_a_black_box_in_scikit_learn() -> None:
    """Ridge regression with one learned penalty; y is a dict of what the model learned."""
    A, b = normal(30, 4).numpy(), normal(30, seed=1).numpy()

    def solve(x: Tensor, y0: Any, batch: Any) -> dict[str, Any]:
        model = Ridge(alpha=float(x.exp()), tol=1e-12).fit(*batch)
        return {"coef": model.coef_, "intercept": model.intercept_}

    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    y0 = {"coef": torch.zeros(4, dtype=torch.float64), "intercept": torch.zeros((), dtype=torch.float64)}
    argmin = pzobo.Argmin(
        None, solver=pzobo.BlackBox(solve), jacobian=pzobo.PZOBO(1e-4, 1, pzobo.Coordinate(), antithetic=True)
    )
    y = argmin(x, y0, (A, b))
    found = torch.autograd.grad(y["coef"].sum() + y["intercept"], x)[0]
    A_, b_ = torch.as_tensor(A), torch.as_tensor(b)
    centred = A_ - A_.mean(0)
    coef = torch.linalg.solve(
        centred.T @ centred + x.exp() * torch.eye(4, dtype=torch.float64), centred.T @ (b_ - b_.mean())
    )
    expected = torch.autograd.grad(coef.sum() + b_.mean() - A_.mean(0) @ coef, x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def sgd_inside(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    """What users have: a training loop of their own, here on a fresh copy of y0."""
    y = y0.clone().requires_grad_()
    optimizer = torch.optim.SGD([y], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        bowl(x, y).backward()
        optimizer.step()
    return y


def sgd_in_place(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    """The same loop on y0 itself."""
    y = y0.requires_grad_()
    optimizer = torch.optim.SGD([y], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        bowl(x, y).backward()
        optimizer.step()
    return y.detach()


BUFFER = np.zeros(3)


def reused_buffer(x: Tensor, y0: Tensor, batch: Any) -> np.ndarray:
    """The same loop, its answer always in the same memory."""
    BUFFER[:] = sgd_inside(x, y0, batch).detach().numpy()
    return BUFFER


@pytest.mark.parametrize("train", [sgd_inside, sgd_in_place, reused_buffer])
def test_a_black_box_that_calls_backward(train: Any) -> None:
    x, y0, v = leaf(3), normal(3, seed=1), normal(3, seed=2)
    start = y0.clone()
    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(train), jacobian=pzobo.PZOBO(1e-5, **EXACT, antithetic=False))
    y = argmin(x, y0)
    found = torch.autograd.grad(y, x, v)[0]
    exact = descend(lambda y: bowl(x, y), start)
    torch.testing.assert_close(y.detach(), exact.detach())
    torch.testing.assert_close(found, torch.autograd.grad(exact, x, v)[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(y0, start)
    assert not y0.requires_grad


def test_a_black_box_gets_all_batches_and_its_answer_carries_no_graph() -> None:
    seen = []

    def solve(x: Tensor, y0: Tensor, batches: list[Tensor]) -> Tensor:
        seen.append(batches)
        return (y0.clone().requires_grad_() + sum(batches)) * 1.0

    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(solve), jacobian=pzobo.Direct())
    with torch.no_grad():
        y = argmin(leaf(3), torch.zeros(3), batches=[torch.ones(3), 2 * torch.ones(3)])
    assert len(seen) == 1
    assert torch.equal(y.detach(), 3 * torch.ones(3))
    assert not y.requires_grad


@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.Unrolled(),
        pzobo.Unrolled(products="difference"),
        pzobo.ForwardMode(),
        pzobo.Nudged(),
        pzobo.Implicit(pzobo.CG()),
        pzobo.Implicit(pzobo.CG(), products="difference"),
        pzobo.Implicit(pzobo.FixedPoint()),
        pzobo.Implicit(pzobo.Neumann(0.1)),
        pzobo.Implicit(pzobo.Exact()),
    ],
    ids=repr,
)
def test_a_black_box_refuses_and_names_what_works(jacobian: Any) -> None:
    with pytest.raises(RequirementError, match=r"BlackBox.*PZOBO.*Direct.*smooth") as caught:
        pzobo.Argmin(bowl, solver=pzobo.BlackBox(sgd_inside), jacobian=jacobian)
    assert type(jacobian).__name__ in str(caught.value)


def test_relative_error_of_a_black_box_with_few_directions_follows_the_sampler() -> None:
    """The same estimator as for any solver: one of three coordinates of a linear map has relative error 2."""
    A, x, v = normal(3, 3), leaf(3), normal(3, seed=1)
    argmin = pzobo.Argmin(
        None,
        solver=pzobo.BlackBox(lambda x, y0, batch: A @ x),
        jacobian=pzobo.PZOBO(0.1, 1, pzobo.Coordinate(seed=0), shrink=False),
    )
    errors = []
    for _ in range(300):
        found = torch.autograd.grad(argmin(x, torch.zeros(3, dtype=torch.float64)), x, v)[0]
        errors.append(relative_error(found, A.T @ v) ** 2)
    assert np.mean(errors) == pytest.approx(2.0, abs=4 * np.std(errors) / np.sqrt(len(errors)))
