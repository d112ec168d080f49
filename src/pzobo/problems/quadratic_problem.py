"""What is the simplest problem whose hypergradient is known? A strongly convex quadratic."""

from __future__ import annotations

import torch
from torch import Tensor

from pzobo.options import positive
from pzobo.outer.problem import Problem


def quadratic(
    p: int = 30,
    d: int = 20,
    *,
    mu_g: float = 1.0,
    L_g: float = 4.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """g = y^T A y / 2 - y^T B x and f = |y - c|^2 / 2 + |x|^2 / 20, with the eigenvalues of A from mu_g to L_g.

    y*(x) = A^-1 B x, so the hypergradient is x / 10 + B^T A^-1 (y*(x) - c). The batch is (A, B) and the outer batch c.

    Args:
        p: how many outer variables there are: x of p numbers, B of d x p.
        d: how many inner variables there are: y and c of d numbers, A of d x d.
        mu_g: the least eigenvalue of A, positive: the strong convexity of g in y.
        L_g: the largest eigenvalue of A. The others lie between at equal distances.
        seed: of A, B, c and x0. y0 is 0.
        dtype: of all tensors; they are drawn as float64 and then rounded.

    Returns:
        A `Problem` with x of p numbers, y of d, and the exact `hypergradient` and `solution`.

    Raises:
        OptionError: mu_g or L_g is not positive.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> problem.x0.shape, problem.y0.shape, problem.hypergradient(problem.x0).shape
        (torch.Size([3]), torch.Size([2]), torch.Size([3]))
    """
    for name, eigenvalue in (("mu_g", mu_g), ("L_g", L_g)):
        positive(name, eigenvalue)
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    A = (basis * torch.linspace(mu_g, L_g, d, dtype=torch.float64)) @ basis.T
    B = torch.randn(d, p, generator=generator, dtype=torch.float64) / p**0.5
    c = torch.randn(d, generator=generator, dtype=torch.float64)
    x0 = torch.randn(p, generator=generator, dtype=torch.float64)

    def inner_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        A, B = batch
        return 0.5 * y @ (A @ y) - y @ (B @ x)

    def outer_loss(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        return 0.5 * (y - c).square().sum() + 0.05 * x.square().sum()

    def hypergradient(x: Tensor) -> Tensor:
        x = x.detach().double()
        y = torch.linalg.solve(A, B @ x)
        exact: Tensor = 0.1 * x + B.T @ torch.linalg.solve(A, y - c)
        return exact.to(dtype)

    return Problem(
        inner_loss,
        outer_loss,
        x0.to(dtype),
        torch.zeros(d, dtype=dtype),
        train=(A.to(dtype), B.to(dtype)),
        val=c.to(dtype),
        hypergradient=hypergradient,
        solution=lambda x, batch: torch.linalg.solve(batch[0], batch[1] @ x),
    )
