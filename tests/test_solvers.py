"""Do the solvers take the steps they say, and can every Jacobian that takes one differentiate it?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.errors import RequirementError
from tests.helpers import bowl, leaf, normal

DTYPES = [torch.float32, torch.float64]


def optimize(loss: Any, y0: Tensor, make: Any, steps: int) -> Tensor:
    """The same path by torch.optim."""
    y = y0.clone().requires_grad_()
    optimizer = make([y])
    for _ in range(steps):
        optimizer.zero_grad()
        loss(y).backward()
        optimizer.step()
    return y.detach()


def path(solver: pzobo.GD | pzobo.HeavyBall | pzobo.Adam, loss: Any, y0: Tensor) -> Tensor:
    return pzobo.Argmin(lambda x, y, batch: loss(y), solver=solver, jacobian=pzobo.Direct())((), y0, None)


PAIRS = {
    "gd": (lambda n: pzobo.GD(0.05, n), lambda p: torch.optim.SGD(p, 0.05)),
    "heavy ball": (lambda n: pzobo.HeavyBall(0.03, 0.9, n), lambda p: torch.optim.SGD(p, 0.03, momentum=0.9)),
    "adam": (lambda n: pzobo.Adam(0.02, n), lambda p: torch.optim.Adam(p, 0.02)),
    "adam, other betas": (
        lambda n: pzobo.Adam(0.01, n, betas=(0.5, 0.9), eps=1e-4),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.5, 0.9), eps=1e-4),
    ),
    "gd, decay": (lambda n: pzobo.GD(0.05, n, weight_decay=0.3), lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.3)),
    "nesterov": (
        lambda n: pzobo.HeavyBall(0.03, 0.9, n, weight_decay=0.1, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.03, momentum=0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam, decay": (
        lambda n: pzobo.Adam(0.02, n, weight_decay=0.3),
        lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.3),
    ),
    "adamw": (lambda n: pzobo.AdamW(0.02, n), lambda p: torch.optim.AdamW(p, 0.02)),
    "adamw, other numbers": (
        lambda n: pzobo.AdamW(0.01, n, weight_decay=2.0, betas=(0.5, 0.9), eps=1e-4),
        lambda p: torch.optim.AdamW(p, 0.01, betas=(0.5, 0.9), eps=1e-4, weight_decay=2.0),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [1, 2, 100])
@pytest.mark.parametrize("name", PAIRS)
def test_a_path_is_that_of_torch_optim(name: str, steps: int, dtype: torch.dtype) -> None:
    A, y0 = normal(12, 7, dtype=dtype), normal(7, seed=1, dtype=dtype)
    ours, theirs = PAIRS[name]

    def loss(y: Tensor) -> Tensor:
        return (A @ y - 1).square().mean() + y.cos().sum() / 4

    found, expected = path(ours(steps), loss, y0), optimize(loss, y0, theirs, steps)
    torch.testing.assert_close(found, expected, rtol=200 * torch.finfo(dtype).eps, atol=100 * torch.finfo(dtype).eps)


@given(
    gradients=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30),
    zeros=st.integers(0, 5),
    name=st.sampled_from(sorted(PAIRS)),
)
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_gradients_also_zeros(gradients: list[float], zeros: int, name: str) -> None:
    """The gradients of each step are given; some coordinates have zero gradient all the time, or at first."""
    slopes = torch.zeros(len(gradients) + zeros, 3, dtype=torch.float64)
    slopes[zeros:, 0] = torch.tensor(gradients)
    slopes[: len(gradients), 1] = torch.tensor(gradients)
    ours, theirs = PAIRS[name]
    solver = ours(len(slopes))
    argmin = pzobo.Argmin(lambda x, y, slope: slope @ y, solver=solver, jacobian=pzobo.Direct())
    found = argmin((), torch.ones(3, dtype=torch.float64), batches=list(slopes))
    rest = iter(slopes)
    expected = optimize(lambda y: next(rest) @ y, torch.ones(3, dtype=torch.float64), theirs, len(slopes))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * max(1.0, float(slopes.abs().max())))
    assert (found[2] == 1) == (solver.weight_decay == 0), "only a weight decay moves what has no gradient"


@pytest.mark.parametrize("dtype", DTYPES)
def test_adam_with_several_tensors_of_several_shapes(dtype: torch.dtype) -> None:
    y0 = {"a": normal(2, 3, dtype=dtype), "b": [normal(4, seed=1, dtype=dtype), normal(seed=2, dtype=dtype)]}

    def loss(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a.square().sum() * c.square() + (b - a.sum()).square().sum()

    argmin = pzobo.Argmin(
        lambda x, y, batch: loss(y["a"], *y["b"]), solver=pzobo.Adam(0.05, 20), jacobian=pzobo.Direct()
    )
    found = argmin((), y0)
    ys = [t.clone().requires_grad_() for t in (y0["a"], *y0["b"])]
    optimizer = torch.optim.Adam(ys, 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        loss(*ys).backward()
        optimizer.step()
    for ours, theirs in zip((found["a"], *found["b"]), ys, strict=True):
        torch.testing.assert_close(
            ours, theirs.detach(), rtol=100 * torch.finfo(dtype).eps, atol=50 * torch.finfo(dtype).eps
        )


# Derivatives of Adam


def response(jacobian: Any, solver: Any, loss: Any, x: Tensor, y0: Tensor) -> Tensor:
    y = pzobo.Argmin(loss, solver=solver, jacobian=jacobian)(x, y0)
    return torch.autograd.grad(y @ torch.arange(1.0, len(y) + 1, dtype=y.dtype), x)[0]


@pytest.mark.parametrize("products", ["autodiff", "difference"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_through_adam_equals_finite_differences(products: Any, checkpoint: bool) -> None:
    x, y0, solver = leaf(3), normal(3, seed=1), pzobo.Adam(0.1, 6)
    found = response(pzobo.Unrolled(products=products, checkpoint=checkpoint), solver, bowl, x, y0)
    weights, h = torch.arange(1.0, 4, dtype=torch.float64), 1e-5

    def value(x: Tensor) -> float:
        return float(path(solver, lambda y: bowl(x, y), y0) @ weights)

    steps = h * torch.eye(3, dtype=torch.float64)
    expected = torch.tensor([(value(x.detach() + e) - value(x.detach() - e)) / (2 * h) for e in steps])
    torch.testing.assert_close(found, expected.double(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.Unrolled(),
        pzobo.Unrolled(checkpoint=True),
        pzobo.Unrolled(products="difference"),
        pzobo.ForwardMode(3, pzobo.Coordinate()),
    ],
    ids=repr,
)
def test_a_zero_gradient_in_adam_does_no_harm(jacobian: Any, start: float, dtype: torch.dtype) -> None:
    """The first coordinate never has a gradient, the second none at first if it starts at 0.5; the third has."""

    def loss(x: Tensor, y: Tensor, batch: None) -> Tensor:
        return 0.5 * (y[1] - x[1]).square() + 0.5 * (y[2] - x[2]).square() + 0 * (y[0] * x[0])

    x = torch.tensor([1.0, 0.5, 0.2], dtype=dtype, requires_grad=True)
    found = response(jacobian, pzobo.Adam(0.1, 4), loss, x, torch.tensor([0.0, start, 0.0], dtype=dtype))
    assert torch.isfinite(found).all()
    assert found[0] == 0
    alone = torch.tensor([0.2], dtype=torch.float64, requires_grad=True)
    expected = response(
        pzobo.Unrolled(),
        pzobo.Adam(0.1, 4),
        lambda x, y, batch: 0.5 * (y - x).square().sum(),
        alone,
        torch.zeros(1, dtype=torch.float64),
    )
    torch.testing.assert_close(found[2:], 3 * expected.to(dtype), rtol=1e-2, atol=0)


# ClosedForm

CLOSED = [
    pzobo.Unrolled(),
    pzobo.ForwardMode(3, pzobo.Orthogonal(seed=0)),
    pzobo.ForwardMode(9, pzobo.Orthogonal(seed=0), batching="vmap"),
    pzobo.PZOBO(1e-6, 3, pzobo.Orthogonal(seed=0), antithetic=True),
    pzobo.PZOBO(1e-6, 3, pzobo.Orthogonal(seed=0), antithetic=True, batching="vmap"),
    pzobo.Implicit(pzobo.CG()),
    pzobo.Implicit(pzobo.CG(), products="difference"),
    pzobo.Implicit(pzobo.Exact()),
    pzobo.Implicit(pzobo.Neumann(0.2, 200)),
    pzobo.Implicit(pzobo.FixedPoint(200, lr=0.2)),
]


def ridge(z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    A, b = batch
    return torch.linalg.solve(A.T @ A + torch.diag(z), A.T @ b)


def ridge_loss(z: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    A, b = batch
    return 0.5 * (A @ y - b).square().sum() + 0.5 * (z * y.square()).sum()


@pytest.mark.parametrize("jacobian", CLOSED, ids=repr)
@pytest.mark.parametrize("at", ["x", "prepared"])
def test_a_closed_form_with_every_jacobian_that_takes_it(jacobian: Any, at: str) -> None:
    A, b, x, v = normal(6, 3) / 2, normal(6, seed=1), leaf(3, seed=2), normal(3, seed=3)
    prepare = (lambda x, batch: x.exp()) if at == "prepared" else None
    start = x if at == "prepared" else x.detach().exp().requires_grad_()
    argmin = pzobo.Argmin(ridge_loss, solver=pzobo.ClosedForm(ridge), jacobian=jacobian, prepare=prepare)
    y = argmin(start, torch.zeros(3, dtype=torch.float64), (A, b))
    torch.testing.assert_close(y.detach(), ridge(x.detach().exp(), (A, b)))
    found = torch.autograd.grad(y, start, v)[0]
    z = start.exp() if at == "prepared" else start
    expected = torch.autograd.grad(ridge(z, (A, b)), start, v)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_direct_takes_a_closed_form_too() -> None:
    x = leaf(3).detach().exp().requires_grad_()
    batch = (normal(6, 3), normal(6, seed=1))
    argmin = pzobo.Argmin(ridge_loss, solver=pzobo.ClosedForm(ridge), jacobian=pzobo.Direct())
    y = argmin(x, torch.zeros(3, dtype=torch.float64), batch)
    (y.sum() + x.sum()).backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


@pytest.mark.parametrize(
    "jacobian", [pzobo.Unrolled(), pzobo.ForwardMode(3, pzobo.Coordinate()), pzobo.PZOBO(1e-5, 3, pzobo.Coordinate())]
)
def test_a_closed_form_of_which_a_part_is_constant(jacobian: Any) -> None:
    """One tensor of y depends on x and one does not."""
    x = leaf(3)
    y0 = {"free": torch.zeros(3, dtype=torch.float64), "fixed": torch.zeros(2, dtype=torch.float64)}
    formula = pzobo.ClosedForm(lambda z, batch: {"free": 2 * z, "fixed": torch.ones(2, dtype=torch.float64)})
    argmin = pzobo.Argmin(
        lambda z, y, batch: (y["free"] - 2 * z).square().sum() + (y["fixed"] - 1).square().sum(),
        solver=formula,
        jacobian=jacobian,
    )
    y = argmin(x, y0)
    (y["free"].sum() + y["fixed"].sum()).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0), rtol=1e-8, atol=1e-8)


# Refusals


@pytest.mark.parametrize(
    ("solver", "jacobian"),
    [
        (pzobo.ClosedForm(ridge), pzobo.Nudged()),
        (pzobo.ClosedForm(ridge), pzobo.Unrolled(products="difference")),
        (pzobo.ClosedForm(ridge), pzobo.Implicit(pzobo.FixedPoint())),
        (pzobo.Adam(0.1, 3), pzobo.Implicit(pzobo.FixedPoint())),
    ],
    ids=lambda option: type(option).__name__,
)
def test_what_is_named_in_a_refusal_works(solver: Any, jacobian: Any) -> None:
    with pytest.raises(RequirementError, match=type(solver).__name__) as caught:
        pzobo.Argmin(ridge_loss, solver=solver, jacobian=jacobian)
    works = {
        "Unrolled": pzobo.Unrolled(),
        "ForwardMode": pzobo.ForwardMode(),
        "Implicit(CG)": pzobo.Implicit(pzobo.CG()),
        "PZOBO": pzobo.PZOBO(),
        "Nudged": pzobo.Nudged(),
    }
    named = [name for name in works if name in str(caught.value).split(". ", 1)[1]]
    assert len(named) >= 3
    for name in named:
        pzobo.Argmin(ridge_loss, solver=solver, jacobian=works[name])
