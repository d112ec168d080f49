"""Is the slope of a gradient right, whatever memory autograd gives the gradient in?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pzobo.inner.differences import central
from pzobo.inner.kernel import nothing
from pzobo.tensors import trees


def shared(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The gradient of a and b is one tensor, that of c one number in many places; d has none."""
    return (a + b).exp().sum() + c.sum().square()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_slope_is_that_of_the_closed_form_and_of_two_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    at, q = (tuple(torch.randn(3, 4, generator=generator).to(dtype) for _ in range(4)) for _ in range(2))
    e = torch.tensor(2.0**-4, dtype=torch.float64)
    found = central(shared, lambda e: trees.add(at, q, e), e, nothing)

    def gradient(e: Tensor) -> tuple[Any, ...]:
        leaves = [t.detach().requires_grad_() for t in trees.add(at, q, e)]
        return torch.autograd.grad(shared(*leaves), leaves, materialize_grads=True)

    for slope, up, down in zip(found, gradient(e), gradient(-e), strict=True):
        assert torch.equal(slope, trees.slope(up, down, 0.5 / e))
    if dtype == torch.float64:
        a, b, c, _ = at
        curved = (a + b).exp() * (q[0] + q[1])
        for slope, expected in zip(found, (curved, curved, torch.full_like(c, 2 * float(q[2].sum()))), strict=False):
            torch.testing.assert_close(slope, expected, rtol=2e-2, atol=0)
        assert not found[3].any()


def test_a_leaf_that_only_one_of_the_two_points_uses() -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum() if float(a.detach().sum()) > 0 else a.sum()

    at = torch.zeros(2), torch.full((2,), 3.0)
    found = central(loss, lambda e: (at[0] + e, at[1]), torch.tensor(0.5), nothing)
    torch.testing.assert_close(found, (torch.full((2,), 2.0), torch.full((2,), 0.5)))


def test_both_gradients_draw_the_same_random_numbers() -> None:
    y, state = torch.ones(1000), torch.get_rng_state()

    def loss(y: Tensor) -> Tensor:
        return torch.nn.functional.dropout(y.square(), 0.5).sum()

    (found,) = central(loss, lambda e: (y + e,), torch.tensor(0.25), lambda: torch.set_rng_state(state))
    assert set(found.tolist()) == {0.0, 4.0}
