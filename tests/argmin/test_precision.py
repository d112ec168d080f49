"""What do half precisions, mixed ones and autocast change? Nothing but rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.inner.differences import probe_size
from pzobo.tensors import trees
from pzobo.zeroth_order.directions import Space
from tests.helpers import (
    leaf,
    make,
    normal,
    relative_error,
)

# Precision


def test_autocast_around_the_forward_pass_alone() -> None:
    """Perturbed paths run in the backward pass, outside of autocast, and still under the autocast of the forward."""
    A, x0 = normal(8, 6, dtype=torch.float32), normal(6, dtype=torch.float32)
    kinds = []

    def loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        product = batch @ (x * y).unsqueeze(1)
        kinds.append(product.dtype)
        return (product.float() - 1).square().mean() + 0.1 * y.square().sum()

    def gradient(autocast: bool, jacobian: Any) -> Tensor:
        x = x0.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = make(jacobian, loss)(x, torch.zeros(6), A)
        assert y.dtype == torch.float32
        y.sum().backward()
        assert x.grad.dtype == torch.float32
        return x.grad

    for jacobian in (
        lambda: pzobo.PZOBO(0.3, 6, pzobo.Orthogonal(seed=0), antithetic=True),
        lambda: pzobo.PZOBO(0.3, 12, pzobo.Orthogonal(seed=0), antithetic=True, batching="vmap"),
        pzobo.Unrolled,
    ):
        kinds.clear()
        mixed = gradient(True, jacobian())
        assert set(kinds) == {torch.bfloat16}
        assert relative_error(mixed, gradient(False, jacobian())) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_path_differences_of_half_precision_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    """y^1 = x exactly, so all the rounding there is, is in the estimate: <delta, v> has 5000 terms."""
    p, mu = 5000, 0.25
    x0 = normal(p, dtype=torch.float32).to(dtype)
    v = normal(p, seed=1, dtype=torch.float32).to(dtype)
    sampler = pzobo.Gaussian(seed=3)
    x = x0.clone().requires_grad_()
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - x).square().sum(dtype=torch.float32),
        solver=pzobo.GD(1.0, 1),
        jacobian=pzobo.PZOBO(mu, 1, sampler, shrink=False),
    )
    y = argmin(x, torch.zeros(p, dtype=dtype))
    assert y.dtype == dtype
    assert torch.equal(y.detach(), x0)
    found = torch.autograd.grad(y, x, v)[0]
    assert found.dtype == dtype
    other = pzobo.Gaussian(seed=3)
    u = other.draw(other.key(), 0, 1, Space.of([x0]))
    assert u.dtype == torch.float32
    delta = ((x0 + mu * u).to(dtype).float() - x0.float()) / mu
    expected = torch.dot(delta, v.float()) * u
    assert relative_error(found.float(), expected) < torch.finfo(dtype).eps
    exact = torch.dot(u, v.float()) * u
    assert relative_error(found.float(), exact) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.PZOBO(0.5, 6, pzobo.Orthogonal(seed=0), antithetic=True),
        pzobo.Unrolled(),
        pzobo.Unrolled(products="difference"),
        pzobo.Implicit(pzobo.CG(6, tol=1e-2)),
        pzobo.Implicit(pzobo.CG(6, tol=1e-2), products="difference"),
        pzobo.Nudged(0.5, 30),
    ],
    ids=["pzobo", "unrolled", "unrolled, difference", "implicit", "implicit, difference", "nudged"],
)
def test_half_precision_is_near_a_float32_run(jacobian: Any, dtype: torch.dtype) -> None:
    x0, v = normal(6, dtype=dtype), normal(6, seed=1, dtype=dtype)

    def gradient(dtype: torch.dtype) -> Tensor:
        x = x0.to(dtype).requires_grad_()
        argmin = pzobo.Argmin(
            lambda x, y, batch: (y - x).square().sum() + 0.5 * y.square().sum(),
            solver=pzobo.GD(0.25, 20),
            jacobian=jacobian,
        )
        y = argmin(x, torch.zeros(6, dtype=dtype))
        return torch.autograd.grad(y, x, v.to(dtype))[0].float()

    reference = gradient(torch.float32)
    torch.testing.assert_close(reference, v.float() * 2 / 3, rtol=1e-3, atol=1e-3)
    assert relative_error(gradient(dtype), reference) < 0.05


def test_tensors_of_several_precisions_at_once() -> None:
    x = {"a": leaf(3), "b": leaf(3, seed=1, dtype=torch.float32), "c": leaf(3, seed=2, dtype=torch.bfloat16)}
    y0 = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float32)]

    def loss(x: Any, y: Any, batch: None) -> Tensor:
        return 0.5 * (y[0] - x["a"]).square().sum() + 0.5 * (y[1] - x["b"] - x["c"]).square().sum()

    argmin = pzobo.Argmin(loss, solver=pzobo.GD(1.0, 1), jacobian=pzobo.PZOBO(0.5, 9, pzobo.Orthogonal(seed=0)))
    y = argmin(x, y0)
    (y[0].sum() + y[1].sum()).backward()
    for name, t in x.items():
        assert t.grad.dtype == t.dtype
        torch.testing.assert_close(t.grad.double(), torch.ones(3, dtype=torch.float64), rtol=0.02, atol=0.02, msg=name)


ROWS = normal(30, 8)
LABELS = ROWS @ normal(8, seed=1)


def regression(x: Tensor, y: Tensor, batch: None) -> Tensor:
    """In y's precision, but for the sums."""
    residuals = ROWS.to(y.dtype) @ y - LABELS.to(y.dtype)
    return 0.5 * residuals.square().float().mean() + 0.5 * (x.exp() * y.square()).float().mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**-10])
@pytest.mark.parametrize(
    ("solver", "jacobian"),
    [
        (pzobo.GD(0.5, 20), pzobo.PZOBO(0.3, 8, pzobo.Orthogonal(seed=0), antithetic=True, shrink=False)),
        (pzobo.GD(0.5, 20), pzobo.ForwardMode(8, pzobo.Orthogonal(seed=0), shrink=False)),
        (pzobo.GD(0.5, 20), pzobo.Implicit(pzobo.CG(8), "difference")),
        (pzobo.GD(0.5, 20), pzobo.Nudged()),
        (pzobo.HeavyBall(0.3, 0.5, 20), pzobo.Unrolled(products="difference")),
        (pzobo.Adam(0.1, 20, eps=1e-3), pzobo.Unrolled()),
    ],
    ids=["PZOBO", "ForwardMode", "CG", "Nudged", "HeavyBall", "Adam"],
)
def test_half_precisions_are_near_float64(solver: Any, jacobian: Any, scale: float, dtype: torch.dtype) -> None:
    """Within some roundings, whatever the cotangent is multiplied with, as by a gradient scaler."""

    def gradient(dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        x = torch.zeros(8, dtype=dtype, requires_grad=True)
        argmin = pzobo.Argmin(regression, solver=solver, jacobian=jacobian.at_start(), audit=False, check=False)
        v = (scale * normal(8, seed=2)).to(dtype)
        return torch.autograd.grad(argmin(x, torch.zeros(8, dtype=dtype)), x, v)[0].double() / scale

    assert relative_error(gradient(dtype, scale), gradient(torch.float64)) < 16 * torch.finfo(dtype).eps


INVERSES = {"CG": pzobo.CG(8), "FixedPoint": pzobo.FixedPoint(40), "Neumann": pzobo.Neumann(0.5, 40)}


@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", INVERSES)
def test_short_cotangents_of_implicit_in_half_precision(name: str, dtype: torch.dtype, products: Any) -> None:
    """Of the digits of v none are lost: the answer is rounded once more, to the numbers that float16 has there."""
    for scale in (2.0**-10, 2.0**-16):
        v = (scale * normal(8, seed=2)).to(dtype)

        def gradient(dtype: torch.dtype, v: Tensor = v) -> Tensor:
            x = torch.zeros(8, dtype=dtype, requires_grad=True)
            jacobian = pzobo.Implicit(INVERSES[name], products)
            argmin = pzobo.Argmin(regression, solver=pzobo.GD(0.5, 20), jacobian=jacobian, audit=False, check=False)
            return torch.autograd.grad(argmin(x, torch.zeros(8, dtype=dtype)), x, v.to(dtype))[0].double()

        found, expected = gradient(dtype), gradient(torch.float64)
        allowed = 16 * torch.finfo(dtype).eps * expected.norm() + 8**0.5 * torch.finfo(dtype).smallest_normal * (
            torch.finfo(dtype).eps / 2
        )
        assert (found - expected).norm() <= allowed


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conjugate_gradients_of_a_v_whose_square_is_no_number(dtype: torch.dtype, compile: bool) -> None:
    """The answer is linear in v, in the same bits where it is multiplied with a power of two."""
    x = torch.zeros(8, dtype=dtype, requires_grad=True)
    argmin = pzobo.Argmin(
        regression, solver=pzobo.GD(0.5, 20), jacobian=pzobo.Implicit(pzobo.CG(8)), audit=False, compile=compile
    )
    y, v = argmin(x, torch.zeros(8, dtype=dtype)), normal(8, seed=2).to(dtype)
    (expected,) = torch.autograd.grad(y, x, v, retain_graph=True)
    assert expected.norm() > 0.01
    for power in (-100, -70, -45, 70, 100) if dtype == torch.float32 else (-900, -600, 600, 900):
        (found,) = torch.autograd.grad(y, x, v * 2.0**power, retain_graph=True)
        assert torch.equal(found * 2.0**-power, expected), power
    assert not torch.autograd.grad(y, x, torch.zeros_like(v), retain_graph=True)[0].any()
    v[0] = torch.inf
    assert not torch.autograd.grad(y, x, v)[0].isfinite().all()


@pytest.mark.parametrize("size", [300.0, 1e-5])
def test_the_length_of_a_difference_neither_overflows_nor_vanishes_in_float16(size: float) -> None:
    """Products of two such numbers are not in float16."""
    y, q = ((size * normal(50, seed=seed, dtype=torch.float32)).half() for seed in (1, 2))
    expected = (y.double() * q).norm() / q.double().norm() / q.abs().max()
    torch.testing.assert_close(probe_size([y], [q]).double(), expected, rtol=1e-5, atol=0)
    up, down = torch.tensor([6e4], dtype=torch.float16), torch.tensor([-6e4], dtype=torch.float16)
    assert float(trees.slope(up, down, torch.tensor(1e-3))) == pytest.approx(120, rel=1e-3)


def test_a_look_for_numbers_that_are_not_finite_does_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sum tells, although it is larger than float16 can hold."""

    def refused(*_: Any) -> None:
        raise AssertionError("all numbers were looked at once more")

    monkeypatch.setattr(Tensor, "isfinite", refused)
    assert trees.is_finite([torch.full((100,), 6e4, dtype=torch.float16)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adam_moves_by_small_gradients_in_half_precision(dtype: torch.dtype) -> None:
    """(1 - beta2) g^2 is 1e-11 here, which float16 does not have; its moments are in float32."""
    slope = 1e-4 * torch.tensor([1.0, -3.0, 0.3], dtype=torch.float64)
    y = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([y], lr=0.1, eps=1e-6)
    for _ in range(5):
        y.grad = slope.clone()
        optimizer.step()
    solver = pzobo.Adam(0.1, 5, eps=1e-6)
    argmin = pzobo.Argmin(
        lambda x, y, batch: (slope.to(dtype) * y).sum(), solver=solver, jacobian=pzobo.Direct(), check=False
    )
    found = argmin((), torch.ones(3, dtype=dtype))
    assert found.dtype == dtype
    assert (found.double() - y.detach()).abs().max() < 4 * torch.finfo(dtype).eps
