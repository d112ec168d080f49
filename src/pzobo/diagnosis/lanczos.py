"""How curved is a loss? Extreme eigenvalues of a Hessian from products with it (Lanczos: power iteration, all kept)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """The smallest and largest eigenvalue found, and how far each can be from a true one (the residual)."""

    low: float
    high: float
    low_error: float
    high_error: float

    @property
    def norm(self) -> float:
        """The largest absolute eigenvalue."""
        return max(abs(self.low), abs(self.high))

    @property
    def error(self) -> float:
        return max(self.low_error, self.high_error)


def spectrum(
    product: Callable[[Tensor], Tensor], like: Tensor, *, steps: int = 40, generator: torch.Generator | None = None
) -> Spectrum:
    """Extreme eigenvalues of the symmetric operator q -> product(q).

    `steps` steps of the Lanczos method with full orthogonalisation, from a random start: exact with as many steps as
    there are dimensions. The found values lie inside the true range, so `low` is never too low.
    """
    n = like.numel()
    q = torch.randn(n, generator=generator, dtype=torch.float64).to(like.device)
    basis = [q / torch.linalg.vector_norm(q)]
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    scale = 0.0
    for _ in range(min(steps, n)):
        w = product(basis[-1].to(like.dtype)).double()
        diagonal.append(torch.dot(w, basis[-1]))
        for _ in range(2):  # once loses orthogonality in the last digits
            kept = torch.stack(basis)
            w = w - kept.T @ (kept @ w)
        off.append(torch.linalg.vector_norm(w))
        scale = max(scale, float(diagonal[-1].abs()), float(off[-1]))
        if float(off[-1]) <= 1e-12 * scale or scale == 0:
            off[-1] = torch.zeros_like(off[-1])
            break
        basis.append(w / off[-1])
    small = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        beside = torch.stack(off[: len(diagonal) - 1])
        small = small + torch.diag(beside, 1) + torch.diag(beside, -1)
    if not bool(torch.isfinite(small).all()):
        return Spectrum(float("nan"), float("nan"), float("inf"), float("inf"))
    values, vectors = torch.linalg.eigh(small)
    residual = off[len(diagonal) - 1] * vectors[-1].abs()
    if len(diagonal) == n:
        residual = torch.zeros_like(residual)
    return Spectrum(float(values[0]), float(values[-1]), float(residual[0]), float(residual[-1]))
