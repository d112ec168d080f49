"""Is the evidence that of the marginal likelihood, where that has a formula?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from torch import Tensor

from pzobo.response.evidence import log_evidence, strength
from tests.helpers import normal


def linear(seed: int, size: float) -> tuple[Tensor, Tensor, Tensor]:
    """t = A x + noise of variance 1, with x of a known deviation around x0 = 1."""
    A, x0 = normal(40, 6, seed=seed), torch.ones(6, dtype=torch.float64)
    return A, x0, A @ (x0 + size * normal(6, seed=seed + 1)) + normal(40, seed=seed + 2)


def direct(alpha: float, A: Tensor, x0: Tensor, t: Tensor) -> float:
    """log N(t; A x0, I + A A^T / alpha)."""
    covariance = torch.eye(len(t), dtype=torch.float64) + A @ A.T / alpha
    return float(multivariate_normal.logpdf(t.numpy(), (A @ x0).numpy(), covariance.numpy()))


@pytest.mark.parametrize("where", [0.0, 1.0])
def test_log_evidence_is_the_marginal_likelihood(where: float) -> None:
    """Up to a constant, and wherever the likelihood is expanded."""
    A, x0, t = linear(0, 0.5)
    x = x0 + where * normal(6, seed=9)
    g, B, alphas = A.T @ (A @ x - t), A.T @ A, torch.logspace(-3, 4, 8, dtype=torch.float64)
    found = log_evidence(alphas, g, B, x - x0)
    wanted = torch.tensor([direct(float(a), A, x0, t) for a in alphas], dtype=torch.float64)
    assert torch.allclose(found - found[0], wanted - wanted[0], atol=1e-8)


@pytest.mark.parametrize("size", [0.2, 1.0, 5.0])
def test_strength_is_the_most_likely_one(size: float) -> None:
    A, x0, t = linear(3, size)
    g, B = A.T @ (A @ x0 - t), A.T @ A
    best = minimize_scalar(lambda a: -direct(np.exp(a), A, x0, t), bounds=(-10, 13), method="bounded")
    assert strength(g, B, torch.zeros_like(x0)) == pytest.approx(np.exp(best.x), rel=1e-3)


def test_strength_stays_between_its_bounds() -> None:
    A, x0, t = linear(3, 1.0)
    g, B, d = A.T @ (A @ x0 - t), A.T @ A, torch.zeros(6, dtype=torch.float64)
    assert strength(g, B, d, least=30.0) == pytest.approx(30.0)
    assert strength(torch.zeros_like(g), B, d) == pytest.approx(1e6)
