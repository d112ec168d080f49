"""What do several test files share? A call counter, a small smooth problem, and the exact response of its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo

STEPS, LR = 4, 0.1


class Counted:
    """A function that counts its calls."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.calls = fn, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.fn(*args)


def bowl(x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
    """A strongly convex inner loss of x, y of shape (3,), not quadratic, whose response depends on x."""
    return (0.5 * (1 + x.square()) * y.square() - x.sin() * y + 0.1 * y.pow(4)).sum()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(*shape, seed=seed, dtype=dtype).requires_grad_()


def descend(loss: Callable[[Tensor], Tensor], y: Tensor, lr: float = LR, steps: int = STEPS) -> Tensor:
    """Plain gradient descent with its graph: what autograd says of it is exact."""
    y = y.detach().requires_grad_()
    for _ in range(steps):
        y = y - lr * torch.autograd.grad(loss(y), y, create_graph=True)[0]
    return y


def attempt(run: Callable[[], Any], refusal: type[Exception]) -> tuple[Any, str]:
    """The result of run(), or None and what the refusal said."""
    try:
        return run(), ""
    except refusal as error:
        return None, str(error)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected))


# The Jacobians that must all behave alike

JACOBIANS = {
    "pzobo": pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0)),
    "pzobo, vmap": pzobo.PZOBO(1e-4, 9, pzobo.Orthogonal(seed=0)),
    "forward": pzobo.ForwardMode(1, pzobo.Gaussian(seed=0)),
    "unrolled": pzobo.Unrolled(),
    "unrolled, difference": pzobo.Unrolled(products="difference"),
    "implicit": pzobo.Implicit(pzobo.CG(5)),
    "implicit, difference": pzobo.Implicit(pzobo.CG(5), products="difference"),
    "nudged": pzobo.Nudged(1e-3),
}
EXACT = [pzobo.Unrolled(), pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), antithetic=True)]
each = pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
exact = pytest.mark.parametrize("jacobian", EXACT, ids=["unrolled", "pzobo"])


def make(jacobian: Any, loss: Any = bowl, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian, **options)


def truth(x: Tensor, y0: Tensor, v: Tensor | None = None) -> Tensor:
    y = descend(lambda y: bowl(x, y), y0)
    return torch.autograd.grad(y, x, torch.ones_like(y) if v is None else v)[0]


ZERO = torch.zeros(3, dtype=torch.float64)
