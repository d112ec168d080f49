"""What is STABLE? Running estimates of H and J, and a y that follows x (Chen, Sun, Xiao, Yin, 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate, check_share
from pzobo.algorithms.vector import Vector
from pzobo.errors import TooLargeError
from pzobo.options import positive
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree

MOST = 4000
"""Inner variables: H has their square many numbers, and one product for each is taken at every step."""


@dataclass(frozen=True)
class STABLEState:
    """y before it follows x, the point before, and the estimates of H (d x d) and of J^T (p x d)."""

    y: Vector
    x_before: Vector
    y_before: Vector
    h: Tensor
    j: Tensor


def _matrices(at: Oracles, x: Vector, y: Vector, batch: Tree) -> tuple[Tensor, Tensor]:
    """H (d x d) and J^T (p x d) on a batch, by a product for each inner variable."""
    product, dtype = at.both(x, y, batch), trees.accumulator((*x.leaves, *y.leaves))
    units = torch.eye(y.flat().numel(), dtype=dtype, device=y.leaves[0].device)
    columns = [product(y.shaped(unit)) for unit in units]
    h, j = (torch.stack([v.flat().to(dtype) for v in part], 1) for part in zip(*columns, strict=True))
    return h, j


def _above(h: Tensor, least: float) -> Tensor:
    """The nearest symmetric matrix whose eigenvalues are at least `least`."""
    values, vectors = torch.linalg.eigh((h + h.T) / 2)
    raised: Tensor = (vectors * values.clamp(min=least)) @ vectors.T
    return raised


@dataclass(frozen=True)
class STABLE(SecondOrder[STABLEState]):
    """STABLE, a `SecondOrder` algorithm with a single loop, for few inner variables.

        h <- H + (1 - average) (h - H of the step before)   its eigenvalues raised to `least`; both H on the same batch
        j <- J^T + (1 - average) (j - J^T of the step before)
        D  = df/dx - j h^-1 df/dy
        y <- y - lr dg/dy - h^-1 j^T (x' - x)               where x' is x after the outer step

    At the first step h = H and j = J^T. The last term needs x', which the optimizer of `fit` finds between two calls:
    it is the first thing that the next step does. A step costs a gradient of each, and two products for each of the d
    inner variables; it carries y, the point before, and d (d + p) numbers. More than 4,000 inner variables are
    refused.

    Chen, Sun, Xiao, Yin, "A single-timescale method for stochastic bilevel optimization", AISTATS 2022, Algorithm 1.

    Checked against the baseline of MRBO's authors (read), which starts h and j at 0 and has no `least`.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        average: the weight of the new matrices, in (0, 1], or a function of the outer step.
        least: the smallest eigenvalue of h, the strong convexity of g.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.STABLE(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.09, 0.07]
    """

    lr: Rate = 0.1
    average: Rate = 0.5
    least: float = 1e-3

    def __post_init__(self) -> None:
        check_share("STABLE: average", self.average)
        positive("STABLE: least", self.least)
        super().__post_init__()

    def begin(self, at: Oracles) -> STABLEState:
        flat, x = at.y0.flat(), at.x.flat()
        d = flat.numel()
        if d > MOST:
            raise TooLargeError(
                f"STABLE keeps the Hessian of the inner loss as a matrix, and takes a product for each of its rows at "
                f"every step: y has {d} numbers, and {MOST} is the most. SOBA does the same without a matrix."
            )
        dtype = trees.accumulator((*at.x.leaves, *at.y0.leaves))
        h, j = flat.new_zeros(d, d, dtype=dtype), x.new_zeros(x.numel(), d, dtype=dtype)
        return STABLEState(at.y0, at.x, at.y0, h, j)

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: STABLEState) -> Step[STABLEState]:
        x, y, inner = at.x, now.y, at.inner_batch()
        if at.k == 0:
            h, j = _matrices(at, x, y, inner)
        else:
            y = y - y.shaped(torch.linalg.solve(now.h, now.j.T @ (x - now.x_before).flat().to(now.j.dtype)))
            new, old = at.twice(_matrices, (at, x, y, inner), (at, now.x_before, now.y_before, inner))
            keep = 1 - at.rate(self.average, most=1.0)
            h, j = (n + keep * (was - o) for n, o, was in zip(new, old, (now.h, now.j), strict=True))
        h = _above(h, self.least)
        f = at.f(x, y, at.outer_batch())
        d = f.x - f.x.shaped(j @ torch.linalg.solve(h, f.y.flat().to(h.dtype)))
        moved = y.step(at.rate(self.lr), at.g_y(x, y, inner))
        return Step(STABLEState(moved, x, y, h, j), f.value, d)
