"""What is the hypergradient, as exactly as a problem allows? Newton's method, and the implicit function theorem."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.diagnosis.flat import Flat, Function, curvature, slope
from pzobo.jacobians.implicit import CG, Implicit
from pzobo.solvers import ClosedForm


@dataclass(frozen=True)
class Reference:
    """The hypergradient at a solution of the inner problem, in its two parts (Eq. 2)."""

    y: Tensor
    residual: float
    """|dg/dy| at y, as a part of that at y0."""
    direct: Tensor
    v: Tensor
    indirect: Tensor

    @property
    def gradient(self) -> Tensor:
        return self.direct + self.indirect

    @property
    def norm(self) -> float:
        return length(self.gradient)

    @property
    def solved(self) -> bool:
        """Whether y is a solution as far as the dtype tells."""
        return self.residual <= math.sqrt(torch.finfo(self.y.dtype).eps)


def length(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t.double()))


def reference(
    flat: Flat, *, x: Tensor | None = None, start: Tensor | None = None, krylov: int = 500, damping: float = 0.0
) -> Reference:
    """grad Phi at x: y* by Newton's method from `start`, then df/dx - (d2g/dx dy)(d2g/dy2)^-1 df/dy by CG.

    Raises `CurvatureError` where the inner Hessian is not positive definite at y*.
    """
    x = flat.x if x is None else x
    size = length(slope(lambda y: flat.g(x, y), flat.y0))
    y = newton(lambda y: flat.g(x, y), flat.y0 if start is None else start, krylov=krylov)
    residual = length(slope(lambda y: flat.g(x, y), y)) / max(size, torch.finfo(y.dtype).tiny)
    direct, v = flat.parts(y, x)
    if length(v) == 0:
        return Reference(y, residual, direct, v, torch.zeros_like(x))
    fixed = ClosedForm(lambda z, batch: flat.inner_tree(y))
    tol = 10 * torch.finfo(y.dtype).eps
    answer = flat.estimator(fixed, Implicit(CG(steps=krylov, tol=tol, damping=damping)))(x)
    return Reference(y, residual, direct, v, answer - direct)


def newton(fn: Function, y: Tensor, *, iterations: int = 60, krylov: int = 500) -> Tensor:
    """A minimiser of fn near y: Newton steps by conjugate gradients, with backtracking.

    Where the curvature is not positive the step is what conjugate gradients had until then.
    """
    eps = torch.finfo(y.dtype).eps
    value, gradient = float(fn(y)), slope(fn, y)
    first = length(gradient)
    stalled = 0
    for _ in range(iterations):
        size = length(gradient)
        if not math.isfinite(size) or size <= 10 * eps * first or stalled > 2:
            break
        step = _conjugate(curvature(fn, y), -gradient, krylov, min(0.1, size / first) if first else 0.1)
        t = 1.0
        while t > 1e-10:
            new = y + t * step
            after = float(fn(new))
            fine = slope(fn, new) if math.isfinite(after) else gradient
            # Near the solution values agree to rounding, and only the gradient still tells.
            if after < value or (after <= value + 8 * eps * abs(value) and length(fine) < size):
                break
            t /= 2
        else:
            break
        stalled = stalled + 1 if length(fine) > 0.9 * size and value - after <= 8 * eps * abs(value) else 0
        y, value, gradient = new, after, fine
    return y


def _conjugate(product: Function, b: Tensor, steps: int, tol: float) -> Tensor:
    """About the solution q of H q = b, or the last one before H was not positive along a direction."""
    q, r = torch.zeros_like(b), b
    p, square = r, torch.dot(r, r)
    enough = tol**2 * square
    for k in range(steps):
        if square <= enough:
            break
        hp = product(p)
        bend = torch.dot(p, hp)
        if not bend > 0:
            return b if k == 0 else q
        q, r = q + square / bend * p, r - square / bend * hp
        after = torch.dot(r, r)
        p, square = r + after / square * p, after
    return q
