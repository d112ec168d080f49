"""Does a Jacobian refuse what it cannot work with, and name what it can?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pzobo
from pzobo.errors import (
    CompileError,
    RequirementError,
)
from tests.helpers import bowl, leaf, normal

ZERO = torch.zeros(3, dtype=torch.float64)


def make(loss: Any = bowl, jacobian: Any = None, solver: Any = None, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=solver or pzobo.GD(0.1, 4), jacobian=jacobian or pzobo.Unrolled(), **options)


# Requirements


def test_a_black_box_has_no_z() -> None:
    box = pzobo.BlackBox(lambda x, y0, b: x)
    with pytest.raises(RequirementError, match="drop prepare="):
        make(solver=box, jacobian=pzobo.PZOBO(), prepare=lambda x, b: x)
    with pytest.raises(RequirementError, match='at="x"'):
        make(solver=box, jacobian=pzobo.PZOBO(at="z"))


class Square(torch.autograd.Function):
    """y^2 as a fused kernel would have it: one derivative, and the old form that torch.func refuses."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * v


def fused(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    return (x.exp() * Square.apply(y) + 0.1 * Square.apply(Square.apply(y - x))).sum()


def plain(x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
    return (x.exp() * y.square() + 0.1 * (y - x).pow(4)).sum()


@pytest.mark.parametrize(
    "jacobian",
    [
        lambda p: pzobo.Unrolled(products=p),
        lambda p: pzobo.Unrolled(checkpoint=True, products=p),
        lambda p: pzobo.Implicit(pzobo.CG(), products=p),
        lambda p: pzobo.Implicit(pzobo.Exact(), products=p),
        lambda p: pzobo.Implicit(pzobo.FixedPoint(40), products=p),
        lambda p: pzobo.Implicit(pzobo.Neumann(0.1, 40), products=p),
    ],
    ids=["unrolled", "checkpoint", "cg", "exact", "fixed point", "neumann"],
)
def test_a_loss_without_a_double_backward(jacobian: Any) -> None:
    x, y0 = leaf(3), normal(3, seed=1)
    argmin = make(fused, jacobian("autodiff"))
    with pytest.raises(RequirementError, match=r'differentiated twice.*products="difference"'):
        argmin(x, y0).sum().backward()
    found = torch.autograd.grad(make(fused, jacobian("difference"))(x, y0).sum(), x)[0]
    expected = torch.autograd.grad(make(plain, jacobian("autodiff"))(x, y0).sum(), x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jacobian", [pzobo.Unrolled, lambda **o: pzobo.Implicit(pzobo.CG(), **o)])
def test_attention_without_a_double_backward(jacobian: Any) -> None:
    """PyTorch's fused attention is such an operation; its plain form has the same values, and both derivatives."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    data, y0 = normal(1, 1, 5, 4, seed=1), normal(4, seed=2)

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        with sdpa_kernel(backend):
            seen = torch.nn.functional.scaled_dot_product_attention(data * y, data * x, data)
        return (seen - 1).square().mean() + y.square().sum()

    x = leaf(4)
    backend = SDPBackend.FLASH_ATTENTION
    with pytest.raises(RequirementError, match=r'differentiated twice.*products="difference"'):
        make(loss, jacobian())(x, y0).sum().backward()
    found = torch.autograd.grad(make(loss, jacobian(products="difference"))(x, y0).sum(), x)[0]
    backend = SDPBackend.MATH
    expected = torch.autograd.grad(make(loss, jacobian())(x, y0).sum(), x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("directions", [2, 9])
def test_pzobo_takes_such_a_loss_as_it_is(directions: int) -> None:
    x, y0 = leaf(3), normal(3, seed=1)
    results = [
        torch.autograd.grad(make(loss, pzobo.PZOBO(1e-4, directions, pzobo.Gaussian(seed=0)))(x, y0).sum(), x)[0]
        for loss in (fused, plain)
    ]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


def test_nudged_takes_such_a_loss_as_it_is() -> None:
    x, y0 = leaf(3), normal(3, seed=1)
    results = [torch.autograd.grad(make(loss, pzobo.Nudged())(x, y0).sum(), x)[0] for loss in (fused, plain)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("jacobian", "advice"),
    [
        (pzobo.ForwardMode(), "PZOBO"),
        (pzobo.ForwardMode(9), "PZOBO"),
        (pzobo.PZOBO(1e-4, 2, batching="vmap"), 'batching="loop"'),
    ],
    ids=["forward", "forward, vmap", "vmap"],
)
def test_what_needs_torch_func_says_so(jacobian: Any, advice: str) -> None:
    """An autograd.Function of the old form has no forward-mode derivative and no batching rule."""
    y = make(fused, jacobian)(leaf(3), normal(3, seed=1))
    with pytest.raises(RequirementError, match=advice):
        y.sum().backward()


def test_a_loss_that_cannot_be_compiled() -> None:
    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return bowl(x, y) * (2.0 if y.detach().sum().item() > 1e9 else 1.0)

    with pytest.raises(CompileError, match=r"compile=False"):
        make(loss, pzobo.PZOBO(), compile=True)(leaf(3), ZERO)
    assert torch.isfinite(make(loss, pzobo.PZOBO())(leaf(3), ZERO)).all()
