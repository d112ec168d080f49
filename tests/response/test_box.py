"""Is the least point in a box the one that other solvers find, and is it one at all?"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from torch import Tensor

from pzobo.response.box import newton, positive, quadratic
from tests.helpers import normal


def held_right(slope: Tensor, s: Tensor, low: Tensor, high: Tensor, tol: float) -> bool:
    """Whether no coordinate can move and make it less."""
    down = (slope > tol) & (s > low)
    up = (slope < -tol) & (s < high)
    return not bool((down | up).any())


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.0, 4.0))
@settings(max_examples=60, deadline=None)
def test_quadratic_agrees_with_scipy(seed: int, p: int, bad: float) -> None:
    A = normal(p + 5, p, seed=seed) * torch.logspace(-bad, 0, p, dtype=torch.float64)
    b = normal(p + 5, seed=seed + 1)
    low, high = -normal(p, seed=seed + 2).abs(), normal(p, seed=seed + 3).abs() + 1e-3
    s = quadratic(-A.T @ b, A.T @ A, low, high)
    assert bool(((s >= low) & (s <= high)).all())
    expected = lsq_linear(A.numpy(), b.numpy(), (low.numpy(), high.numpy()), method="bvls", tol=1e-14).x
    value, best = (float((A @ torch.as_tensor(v) - b).square().sum()) for v in (s, expected))
    assert value <= best * (1 + 1e-9)
    assert held_right(A.T @ (A @ s - b), s, low, high, 1e-8)


def test_quadratic_without_bounds_is_a_solve() -> None:
    B, g = normal(6, 6), normal(6, seed=1)
    B, free = B @ B.T + torch.eye(6), torch.full((6,), torch.inf, dtype=torch.float64)
    assert torch.allclose(quadratic(g, B, -free, free), -torch.linalg.solve(B, g), atol=1e-12)


def test_newton_ends_where_nothing_can_move() -> None:
    """Logistic regression with a small penalty, in a box that holds some of its weights."""
    X, t = normal(50, 8), (normal(50, seed=1) > 0).double()

    def loss(w: Tensor) -> Tensor:
        return torch.nn.functional.softplus(X @ w).sum() - t @ (X @ w) + 0.05 * w.square().sum()

    low, high = torch.full((8,), -0.2, dtype=torch.float64), torch.full((8,), 0.1, dtype=torch.float64)
    w = newton(loss, torch.zeros(8, dtype=torch.float64), low, high, turns=50, tol=1e-12)
    assert held_right(torch.func.grad(loss)(w), w, low, high, 1e-5)
    assert 0 < int(((w == low) | (w == high)).sum()) < 8


def test_a_saddle_is_left() -> None:
    """Where the curvature is negative, its absolute value is taken."""
    low, high = torch.full((2,), -3.0).double(), torch.full((2,), 3.0).double()
    s = newton(lambda v: v[0] ** 2 - v[1] ** 2 + 0.1 * v[1], torch.zeros(2).double(), low, high, turns=50)
    assert s.tolist() == [0.0, -3.0]


def test_positive_keeps_what_is_positive() -> None:
    B = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    assert positive(B) is B
    e = torch.linalg.eigvalsh(positive(torch.diag(torch.tensor([3.0, -2.0, 0.0], dtype=torch.float64))))
    assert np.allclose(e.numpy(), [0, 2, 3])
    assert e[0] > 0
