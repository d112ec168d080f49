"""What is a finite sum whose constants are known? Both test problems with samples to draw batches from (Eq. 6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.outer.problem import Problem
from pzobo.tensors.trees import Tree
from pzobo.theory.assumptions import Constants
from pzobo.theory.closed_form import logistic_constants, quadratic_constants

Draw = Callable[[int, torch.Generator], Tree]
"""A batch of so many samples, drawn with replacement."""


@dataclass(frozen=True)
class FiniteSum:
    """A problem whose full batches are means of samples; its constants hold for every single sample."""

    problem: Problem
    constants: Constants
    inner: Draw
    outer: Draw


def _pick(data: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return data[torch.randint(len(data), (size,), generator=generator)]


def logistic_sum(problem: Problem, radius: float) -> FiniteSum:
    """The rows of `logistic` as samples."""
    rows, B, gamma = problem.train
    return FiniteSum(
        problem,
        logistic_constants(problem, radius, per_sample=True),
        inner=lambda size, generator: (_pick(rows, size, generator), B, gamma),
        outer=lambda size, generator: _pick(problem.val, size, generator),
    )


def quadratic_sum(problem: Problem, radius: float, *, scale: float = 0.3, pairs: int = 20, seed: int = 0) -> FiniteSum:
    """Samples A ± E_i, B ± E'_i and c ± e_i with |E_i| = |E'_i| = scale and |e_i| = |c|, whose means are A, B and c."""
    generator = torch.Generator().manual_seed(seed)
    A, B = problem.train
    c = problem.val
    d, p = B.shape

    def around(mean: Tensor, noise: Tensor, size: float) -> Tensor:
        flat = noise.dim() == 2
        norms = torch.linalg.vector_norm(noise, dim=1) if flat else torch.linalg.matrix_norm(noise, 2)
        noise = size * noise / norms.reshape(-1, *[1] * mean.dim())
        return torch.cat([mean + noise, mean - noise])

    def normal(*shape: int) -> Tensor:
        return torch.randn(pairs, *shape, generator=generator, dtype=A.dtype)

    E = normal(d, d)
    As, Bs = around(A, E + E.mT, scale), around(B, normal(d, p), scale)
    cs = around(c, normal(d), float(torch.linalg.vector_norm(c)))

    def inner(size: int, generator: torch.Generator) -> Tree:
        index = torch.randint(len(As), (size,), generator=generator)
        return As[index].mean(0), Bs[index].mean(0)

    zero = torch.zeros(len(As), p, p, dtype=A.dtype)
    hessians = torch.cat([torch.cat([zero, -Bs.mT], 2), torch.cat([-Bs, As], 2)], 1)
    deviations = hessians - hessians.mean(0)
    mu_g = float(torch.linalg.eigvalsh(As).min())
    reach = float(torch.linalg.matrix_norm(Bs, 2).max()) * radius / mu_g  # no step of any sample leaves this ball
    deviation = float(torch.linalg.eigvalsh((deviations @ deviations).mean(0))[-1]) ** 0.5
    furthest = float(torch.linalg.vector_norm(cs, dim=1).max())
    constants = dataclasses.replace(
        quadratic_constants(problem, radius),
        L_g=float(torch.linalg.matrix_norm(hessians, 2).max()),
        mu_g=mu_g,
        M=((0.1 * radius) ** 2 + (reach + furthest) ** 2) ** 0.5,
        sigma=deviation * (radius**2 + reach**2) ** 0.5,
        region=f"for every sample; M, D and sigma for |x| <= {radius:.3g}",
    )
    return FiniteSum(problem, constants, inner, lambda size, generator: _pick(cs, size, generator).mean(0))
