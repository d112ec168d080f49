"""What is a problem to which every assumption applies? Logistic regression around a learned centre."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from pzobo.options import positive
from pzobo.outer.problem import Problem


def logistic(
    p: int = 4,
    d: int = 6,
    n: int = 40,
    *,
    gamma: float = 0.5,
    scale: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """g = mean_i log(1 + exp(-t_i <a_i, y>)) + gamma/2 |y - B x|^2, and f the same loss on other samples.

    The outer level learns the centre B x that the weights y are drawn to (biased regularisation, as in meta-learning).
    g is gamma-strongly convex, and all of L_f, L_g, rho, tau and M hold everywhere; only D needs |x| to be bounded.
    `train` is (rows t_i a_i, B, gamma), and `val` other rows.

    Args:
        p: how many outer variables there are: x of p numbers, B of d x p.
        d: how many inner variables there are: y of d numbers.
        n: rows of `train`, n x d, and as many of `val`.
        gamma: how strongly y is drawn to B x; the strong convexity of g.
        scale: the root mean square length of a_i.
        seed: of the rows, of B and of x0. y0 is 0.
        dtype: of all tensors; they are drawn as float64 and then rounded.

    Returns:
        A `Problem` with x of p numbers and y of d.

    Raises:
        OptionError: gamma or scale is not positive.

    Examples:
        >>> problem = pzobo.theory.logistic(p=2, d=3, n=10)
        >>> problem.x0.shape, problem.y0.shape, problem.train[0].shape
        (torch.Size([2]), torch.Size([3]), torch.Size([10, 3]))
    """
    for name, number in (("gamma", gamma), ("scale", scale)):
        positive(name, number)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    truth = normal(d)

    def rows() -> Tensor:
        features = normal(n, d) * scale / math.sqrt(d)
        labels = torch.sign(features @ truth + 0.7 * scale * normal(n))
        return (labels[:, None] * features).to(dtype)

    B = (1.5 * normal(d, p) / (math.sqrt(d) + math.sqrt(p))).to(dtype)  # of norm about 1.5, whatever p and d
    x0 = normal(p).to(dtype)

    def inner_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor, float]) -> Tensor:
        rows, B, gamma = batch
        return F.softplus(-(rows @ y)).mean() + 0.5 * gamma * (y - B @ x).square().sum()

    def outer_loss(x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return F.softplus(-(rows @ y)).mean()

    inner, outer = rows(), rows()

    def hypergradient(x: Tensor) -> Tensor:
        """J*^T df/dy with J* = gamma H^-1 B, y* by Newton's method on the written-out Hessian H."""
        A, A_val, B_ = inner.double(), outer.double(), B.double()
        centre = B_ @ x.detach().double()

        def value(y: Tensor) -> Tensor:
            return F.softplus(-(A @ y)).mean() + 0.5 * gamma * (y - centre).square().sum()

        y = centre
        for _ in range(50):
            s = torch.sigmoid(-(A @ y))
            H = (A.T * (s * (1 - s))) @ A / len(A) + gamma * torch.eye(len(y), dtype=torch.float64)
            step = torch.linalg.solve(H, gamma * (y - centre) - A.T @ s / len(A))
            while value(y - step) > value(y) + 1e-14:  # far away Newton's step can overshoot
                step = step / 2
            y = y - step
            if float(step.abs().max()) < 1e-12:
                break
        v = -A_val.T @ torch.sigmoid(-(A_val @ y)) / len(A_val)
        answer: Tensor = gamma * B_.T @ torch.linalg.solve(H, v)
        return answer.to(dtype)

    return Problem(
        inner_loss,
        outer_loss,
        x0,
        torch.zeros(d, dtype=dtype),
        train=(inner, B, gamma),
        val=outer,
        hypergradient=hypergradient,
    )
