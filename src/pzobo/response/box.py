"""Where is a convex function least inside of a box? Newton steps whose free variables are found anew each time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def quadratic(g: Tensor, B: Tensor, low: Tensor, high: Tensor, turns: int = 100) -> Tensor:
    """The s in [low, high] that makes g s + s B s / 2 least, for a positive definite B.

    Projected Newton steps (Bertsekas, 1982): a variable that stands at a bound and would go on beyond it is held, the
    others make a Newton step, which ends at the bounds. Where bounds are in its way, one coordinate after the other is
    made exact as well: that alone converges for every convex quadratic.

    Args:
        g: p numbers, the slope at 0.
        B: p x p, the curvature.
        low: p bounds from below, -inf for none.
        high: p bounds from above.
        turns: how many steps at most.
    """
    s = torch.zeros_like(g).clamp(low, high)
    small = 1e-12 * (1 + g.abs().max())
    for _ in range(turns):
        slope = g + B @ s
        free = ~(((s <= low) & (slope >= 0)) | ((s >= high) & (slope <= 0)))
        if not bool((slope[free].abs() > small).any()):
            break
        d = torch.zeros_like(s)
        d[free] = -torch.linalg.solve(B[free][:, free], slope[free])
        bent = (s + d).clamp(low, high)
        inside, lower = torch.equal(bent, s + d), bool(_lower(g, B, s, bent))
        s = bent if lower else s
        if not (inside and lower):
            s = _by_coordinates(g, B, s, low, high)
    return s


def _lower(g: Tensor, B: Tensor, s: Tensor, other: Tensor) -> Tensor:
    """Whether the quadratic is lower at `other`, by its change: the values themselves would round it away."""
    d = other - s
    return d @ (g + B @ s + 0.5 * (B @ d)) < 0


def _by_coordinates(g: Tensor, B: Tensor, s: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """One coordinate after the other goes to its best place."""
    s = s.clone()
    for i in range(len(s)):
        s[i] = (s[i] - (g[i] + B[i] @ s) / B[i, i]).clamp(low[i], high[i])
    return s


def newton(fn: Function, start: Tensor, low: Tensor, high: Tensor, turns: int = 15, tol: float = 1e-7) -> Tensor:
    """The s in [low, high] that makes a smooth function least, from `start` on.

    Each step makes its second-order expansion least in the box, and goes as far along as the function falls. Curvature
    that is not positive is taken by its absolute value. A quadratic is done after one step.

    Args:
        fn: of p numbers, as one number.
        start: p numbers in the box.
        low: p bounds from below.
        high: p bounds from above.
        turns: how many steps at most.
        tol: when a step promises less than this, it is the last.
    """
    s = start
    value, slope, curvature = _expansion(fn, s)
    for _ in range(turns):
        d = quadratic(slope, curvature, low - s, high - s)
        promised = -float(slope @ d + 0.5 * d @ curvature @ d)
        if not promised > 0.1 * tol:
            break
        length = 1.0
        while length > 1e-4 and not fn(s + length * d) <= value - 0.1 * length * promised:
            length /= 3
        if length <= 1e-4:
            break
        s = (s + length * d).clamp(low, high)
        if promised < tol:
            break
        value, slope, curvature = _expansion(fn, s)
    return s


def _expansion(fn: Function, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, gradient and a positive definite curvature."""
    found = torch.func.grad_and_value(fn)(s)
    slope, value = found
    return value, slope, positive(hessian(fn, s))


def hessian(fn: Function, s: Tensor) -> Tensor:
    """The second derivative, forward over reverse; over reverse alone where an operation has no forward derivative."""
    try:
        found: Tensor = torch.func.jacfwd(torch.func.grad(fn))(s)
    except (NotImplementedError, RuntimeError):
        found = torch.func.jacrev(torch.func.grad(fn))(s)
    return 0.5 * (found + found.T)


def positive(B: Tensor) -> Tensor:
    """A symmetric matrix with the absolute values of its eigenvalues, none of them below rounding."""
    e, V = torch.linalg.eigh(B)
    least = 1e-12 * e.abs().max().clamp(min=1e-300)
    if bool(e[0] > least):
        return B
    found: Tensor = (V * e.abs().clamp(min=least)) @ V.T
    return found
