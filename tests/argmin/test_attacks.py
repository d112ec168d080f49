"""Does what attacks found stay mended? Silent wrong values, each with the answer that it must have, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import (
    AuditWarning,
    DivergenceError,
    SmoothingError,
    StaleError,
)
from tests.helpers import ZERO, bowl, leaf, make, normal

GD = pzobo.GD(0.1, 20)


def whole(p: int) -> pzobo.PZOBO:
    """PZOBO with all directions: as exact as differences are."""
    return pzobo.PZOBO(1e-5, p, pzobo.Orthogonal(seed=0), antithetic=True, at="x")


def quadratic(a: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - a.square()).square().sum() + 0.05 * y.pow(4).sum()


# 1. Outer variables that a first look does not see


@torch.jit.script
def scripted(a: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - a * a).square().sum() + 0.05 * y.pow(4).sum()


def hidden(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    with torch._C.DisableTorchFunction():
        return quadratic(x["a"], y)


def inside(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    return torch.func.vjp(lambda a: quadratic(a, y), x["a"])[0]


def of_a_gradient(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    slope = torch.func.grad(lambda a: (a.pow(3) * y).sum())(x["a"])
    return 0.5 * (y - 1 - slope.sum() / 10).square().sum() + 0.5 * y.square().sum()


def behind_a_branch_on_y(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    """At y0 = 0 the branch is not taken."""
    far = bool(y.detach().abs().sum() > 1e-3)
    return (y - 1).square().sum() + ((x["a"] * y).square().sum() if far else 0.0)


LOOKS: dict[str, Callable[..., Tensor]] = {
    "jit.script": lambda x, y, batch: scripted(x["a"], y),
    "DisableTorchFunction": hidden,
    "func.vjp": inside,
    "func.grad": of_a_gradient,
    "a branch on y": behind_a_branch_on_y,
}


@pytest.mark.parametrize("loss", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("jacobian", [whole(3), pzobo.Unrolled(products="difference")], ids=["pzobo", "difference"])
def test_variables_that_a_first_look_does_not_see(loss: Any, jacobian: Any) -> None:
    def gradient(jacobian: Any) -> Tensor:
        x = {"a": leaf(3)}
        pzobo.Argmin(loss, solver=GD, jacobian=jacobian)(x, ZERO).sum().backward()
        found = x["a"].grad
        assert found is not None
        return found

    x = {"a": leaf(3)}
    y = ZERO.clone().requires_grad_()
    for _ in range(GD.steps):
        y = y - GD.lr * torch.autograd.grad(loss(x, y, None), y, create_graph=True)[0]
    expected = torch.autograd.grad(y.sum(), x["a"])[0]
    assert expected.abs().min() > 1e-4
    torch.testing.assert_close(gradient(jacobian), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jacobian", [whole(4), pzobo.Unrolled()], ids=["pzobo", "unrolled"])
def test_an_index_and_a_flag_that_differ_from_batch_to_batch(jacobian: Any) -> None:
    def loss(x: list[Tensor], y: Tensor, batch: Any) -> Tensor:
        chosen = x[batch["i"]] if batch["use"] else torch.zeros((), dtype=torch.float64)
        return 0.5 * (y - chosen.exp()).square().sum()

    x = [leaf(seed=i) for i in range(4)]
    batches = [{"i": i % 4, "use": i != 0} for i in range(8)]
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.3, 8), jacobian=jacobian)
    argmin(x, ZERO, batches=batches).sum().backward()
    other = [t.detach().clone().requires_grad_() for t in x]
    y = ZERO
    for batch in batches:
        chosen = other[batch["i"]] if batch["use"] else torch.zeros((), dtype=torch.float64)
        y = y - 0.3 * (y - chosen.exp())
    for found, expected in zip(x, torch.autograd.grad(y.sum(), other), strict=True):
        torch.testing.assert_close(found.grad, expected, rtol=1e-6, atol=1e-8)


# 5. Nudged follows the size of y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 2.0, 1e4, 1e6])
def test_nudged_at_solutions_of_any_size(size: float, dtype: torch.dtype) -> None:
    """y* = size x^2, so that d sum(y*)/dx = 2 size x; the inner problem is not quadratic in y."""

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        r = y / size - x.square()
        return size * (0.5 * r.square() + 0.1 * r.pow(4)).sum() * size

    x = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=dtype, requires_grad=True)
    y0 = size * x.detach().square() * 1.1
    (pzobo.Argmin(loss, solver=pzobo.GD(0.5, 60), jacobian=pzobo.Nudged())(x, y0).float().sum() / size).backward()
    assert x.grad is not None
    tolerance = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=tolerance, atol=0)


def test_a_nudge_that_is_rounding_is_refused() -> None:
    x = torch.ones(9, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, b: 0.5 * (y - 1e4 * x).square().sum(), solver=pzobo.GD(0.5, 40), jacobian=pzobo.Nudged(eps=1e-7)
    )
    with pytest.raises(SmoothingError, match="eps is too small for this precision"):
        argmin(x, torch.zeros(9)).sum().backward()


LEAVES = {
    "small": lambda y: y["small"].sum() / 1e-3,
    "big": lambda y: y["big"].sum() / 1e4,
    "both": lambda y: y["big"].sum() + y["small"].sum(),
    "both, scaled": lambda y: y["big"].sum() / 1e4 + y["small"].sum() / 1e-3,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("outer", LEAVES)
def test_nudged_with_leaves_of_very_different_sizes_is_right_or_told(outer: str, dtype: torch.dtype) -> None:
    """y* = (1e4 x^2, 1e-3 sin x), of a g that is not quadratic. One length serves the leaves that v is in."""

    def loss(x: Tensor, y: dict[str, Tensor], batch: Any) -> Tensor:
        r, s = y["big"] / 1e4 - x.square(), y["small"] / 1e-3 - x.sin()
        return 1e8 * (0.5 * r.square() + 0.1 * r.pow(4)).sum() + 1e-6 * (0.5 * s.square() + 0.1 * s.pow(4)).sum()

    x = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=dtype, requires_grad=True)
    solution = {"big": 1e4 * x.square(), "small": 1e-3 * x.sin()}
    expected = torch.autograd.grad(LEAVES[outer](solution), x)[0]
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.5, 60), jacobian=pzobo.Nudged())
    with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as said:
        try:
            LEAVES[outer](argmin(x, {name: 1.1 * y.detach() for name, y in solution.items()})).backward()
        except (SmoothingError, DivergenceError):
            assert outer != "big"
            assert (outer, dtype) != ("small", torch.float64)
            return
    if not any(w.category is AuditWarning for w in said):
        torch.testing.assert_close(x.grad, expected, rtol=1e-3 if dtype == torch.float32 else 1e-6, atol=0)
    else:
        assert outer.startswith("both")


# 6. Code that writes into what it is given


def in_place(x: Tensor) -> Tensor:
    y = 2 * x
    x.detach().mul_(100)
    return y


def in_numpy(x: Tensor) -> Tensor:
    y = 2 * x.detach()
    x.detach().numpy()[:] *= 100
    return y


@pytest.mark.parametrize("write", [in_place, in_numpy])
def test_a_function_may_write_into_its_x(write: Callable[[Tensor], Tensor]) -> None:
    for run in (
        lambda x: pzobo.Argmin(None, solver=pzobo.BlackBox(lambda x, y0, b: write(x)), jacobian=whole(3))(x, ZERO),
        lambda x: pzobo.smooth(write, x, mu=1e-4, directions=3, sampler=pzobo.Orthogonal(seed=0)),
    ):
        x = leaf(3)
        before = x.detach().clone()
        run(x).sum().backward()
        assert torch.equal(x.detach(), before)
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["black box", "closed form", "smooth"])
def test_a_function_may_give_the_same_memory_each_time(kind: str) -> None:
    memory = torch.empty(3, dtype=torch.float64)

    def fill(x: Tensor, *_: Any) -> Tensor:
        return memory.copy_(x.detach().sin())

    x = leaf(3)
    if kind == "smooth":
        y = pzobo.smooth(fill, x, mu=1e-6, directions=3, sampler=pzobo.Orthogonal(seed=0))
    else:
        solver = pzobo.BlackBox(fill) if kind == "black box" else pzobo.ClosedForm(fill)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=pzobo.PZOBO(1e-6, 3, pzobo.Orthogonal(seed=0)))(x, ZERO)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_numpy", [False, True])
def test_a_black_box_that_writes_into_its_batch_is_refused(by_numpy: bool) -> None:
    def fit(x: Tensor, y0: Tensor, batch: Tensor) -> Tensor:
        answer = x.detach() * batch.sum()
        if by_numpy:
            np.random.default_rng(0).shuffle(batch.numpy())
        else:
            batch.sub_(batch.mean())
        return answer

    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(fit), jacobian=pzobo.PZOBO())
    with pytest.raises(StaleError, match=r"wrote into its batch.*clone"):
        argmin(leaf(3), ZERO, torch.arange(20.0))


# 8. A sampler's directions are its own


@dataclass(frozen=True)
class Kept(pzobo.Sampler):
    """One direction for all, kept."""

    direction: Tensor | None = None

    def draw(self, key: int, j: int, count: int, space: Any) -> Tensor:
        assert self.direction is not None
        return self.direction


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_a_sampler_that_keeps_its_directions(batching: str) -> None:
    u = normal(3, seed=4)
    kept = u.clone()
    argmin = make(pzobo.PZOBO(1e-4, 2, Kept(direction=kept), shrink=False, batching=batching, antithetic=True))
    found = []
    for _ in range(2):
        x = leaf(3)
        argmin(x, ZERO).sum().backward()
        found.append(x.grad)
    assert torch.equal(kept, u)
    assert torch.equal(*found)


@dataclass(frozen=True)
class Refilled(Kept):
    """The directions of another sampler, always in the same memory."""

    def draw(self, key: int, j: int, count: int, space: Any) -> Tensor:
        assert self.direction is not None
        return self.direction.copy_(pzobo.Gaussian(seed=3).draw(key, j, count, space))


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_a_sampler_that_gives_the_same_memory_each_time(batching: str) -> None:
    found = []
    for sampler in (pzobo.Gaussian(seed=3), Refilled(direction=torch.empty(3, dtype=torch.float64))):
        x = leaf(3)
        key = pzobo.Gaussian(seed=3).key() if isinstance(sampler, Refilled) else None
        if key is not None:
            object.__setattr__(sampler, "key", lambda key=key: key)
        make(pzobo.PZOBO(1e-4, 4, sampler, shrink=False, batching=batching))(x, ZERO).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
