"""Is rounding judged by the precision in which a function is really computed?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import SmoothingError
from pzobo.tensors.precision import working_eps

F32, BF16 = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps


@pytest.fixture
def tf32() -> Iterator[None]:
    """TF32 allowed for products of matrices, on whatever device has it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_coarsest_counts() -> None:
    x, wide = torch.ones(2), torch.ones(2, dtype=torch.float64)
    assert working_eps([x]) == F32
    assert working_eps([wide]) == torch.finfo(torch.float64).eps
    assert working_eps([wide, x]) == F32
    assert working_eps([x.bfloat16()]) == BF16
    with torch.autocast("cpu", torch.bfloat16):
        assert working_eps([x]) == BF16
    assert working_eps([x]) == F32


def test_tf32_counts_for_float32_alone(tf32: None) -> None:
    assert working_eps([torch.ones(2)]) == 2.0**-10
    assert working_eps([torch.ones(2, dtype=torch.float64)]) == torch.finfo(torch.float64).eps


def hypergradient(mu: float) -> Tensor:
    torch.manual_seed(0)
    X, t = torch.randn(60, 30), torch.randn(60)
    x = torch.zeros(30, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, batch: ((X @ y).float() - t).square().mean() + (x.exp() * y.square()).mean(),
        solver=pzobo.GD(0.1, 20),
        jacobian=pzobo.PZOBO(mu=mu, directions=30, sampler=pzobo.Orthogonal(seed=0)),
        audit=False,
    )
    ((X @ argmin(x, torch.zeros(30))) - t).square().mean().backward()
    assert x.grad is not None
    return x.grad


def test_a_mu_that_autocast_drowns_is_refused() -> None:
    assert torch.isfinite(hypergradient(1e-3)).all()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SmoothingError, match="roundings"):
        hypergradient(1e-3)


def test_a_mu_that_tf32_drowns_is_refused(tf32: None) -> None:
    with pytest.raises(SmoothingError, match="roundings"):
        hypergradient(1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nudge_goes_by_the_precision_of_g(dtype: torch.dtype) -> None:
    """y* = x, so the truth is v; in bfloat16 the nudge of float32 was 24 to 33 times too short for what it divided."""
    x = torch.linspace(1, 2, 8).requires_grad_()
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y.float() - x).square().sum(),
        solver=pzobo.GD(0.5, 30),
        jacobian=pzobo.Nudged(),
        check=False,
        audit=False,
    )
    argmin(x, torch.ones(8, dtype=dtype)).float().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.ones(8), atol=0.1 if dtype == torch.bfloat16 else 1e-4, rtol=0)
