"""How strong is the prior? The strength for which the data, as the Laplace approximation sees them, are most likely."""

from __future__ import annotations

import torch
from torch import Tensor


def log_evidence(alpha: Tensor, g: Tensor, B: Tensor, d: Tensor) -> Tensor:
    """log p(data | alpha) of a prior N(x0, I / alpha), up to a constant (MacKay, 1992).

    The negative log-likelihood near x is g s + s B s / 2 in nats. With the prior alpha |x + s - x0|^2 / 2 its least
    value is M(alpha), and the evidence is -M(alpha) + p/2 log alpha - 1/2 log det(B + alpha I).

    Args:
        alpha: strengths, of any shape.
        g: p numbers, the slope of the negative log-likelihood at x.
        B: p x p, its curvature, not negative.
        d: x - x0.
    """
    e, V = torch.linalg.eigh(B)
    e = e.clamp(min=0)
    a, slope, away = alpha[..., None], V.T @ g, V.T @ d
    least = 0.5 * a * away.square() - 0.5 * (slope + a * away).square() / (e + a)
    found: Tensor = (-least + 0.5 * (a / (e + a)).log()).sum(-1)
    return found


def strength(g: Tensor, B: Tensor, d: Tensor, least: float = 1e-6, most: float = 1e6) -> float:
    """The alpha in [least, most] of the highest evidence.

    Args:
        g: p numbers, the slope of the negative log-likelihood at x.
        B: p x p, its curvature.
        d: x - x0.
        least: the weakest prior that makes sense.
        most: the strongest.
    """
    bounds = torch.tensor([least, most], dtype=g.dtype, device=g.device).log()
    for _ in range(4):  # each look is 40 times finer than the one before
        grid = torch.linspace(float(bounds[0]), float(bounds[1]), 81, dtype=g.dtype)
        best = int(log_evidence(grid.exp(), g, B, d).argmax())
        bounds = grid[[max(best - 1, 0), min(best + 1, 80)]]
    return float(grid[best].exp())
