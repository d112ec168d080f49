"""How is H^-1 applied by stochastic products? By a Neumann series, summed or drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.vector import Vector
from pzobo.tensors.trees import Tree

Used = tuple[Tree, Tensor | None]
"""A batch, and whether it counts: always, for None."""

Inverse = Callable[["Hessians", Sequence[Used], Vector], Vector]
"""An approximation of H^-1 q, from products on these batches."""


class Hessians:
    """Products with H at one point on many batches; where the batch is the same as before, it is not read again."""

    def __init__(self, at: Oracles, x: Vector, y: Vector) -> None:
        self.at, self.x, self.y = at, x, y
        self._last: tuple[Tree, Callable[[Vector], Vector]] | None = None

    def times(self, batch: Tree, v: Vector) -> Vector:
        """H v on a batch."""
        if torch.compiler.is_compiling():
            return self.at.hessian(self.x, self.y, batch)(v)
        if self._last is None or self._last[0] is not batch:
            self._last = batch, self.at.hessian(self.x, self.y, batch)
        return self._last[1](v)


def summed(lr: float) -> Inverse:
    """lr sum_{j=0}^{Q} prod_{i<=j} (I - lr H_i) q on Q batches (Ji, Yang, Liang, 2021, Algorithm 3)."""

    def inverse(hessians: Hessians, batches: Sequence[Used], q: Vector) -> Vector:
        total = q
        for batch, _ in batches:
            q = q.step(lr, hessians.times(batch, q))
            total = total + q
        return total.times(lr)

    return inverse


def drawn(lr: float, terms: int) -> Inverse:
    """terms lr prod_{i=1}^{p} (I - lr H_i) q on p batches, p drawn from 0 to terms - 1 (Ghadimi, Wang, 2018).

    Over p its mean is lr sum_{j=0}^{terms-1} (I - lr H)^j q.
    """

    def inverse(hessians: Hessians, batches: Sequence[Used], q: Vector) -> Vector:
        for batch, counts in batches:
            new = q.step(lr, hessians.times(batch, q))
            q = new if counts is None else new.where(counts, q)
        return q.times(terms * lr)

    return inverse


def hypergradient(
    at: Oracles, x: Vector, y: Vector, outer: Tree, mixed: Tree, batches: Sequence[Used], inverse: Inverse
) -> tuple[Tensor, Vector]:
    """f, and df/dx - J^T H^-1 df/dy: f on `outer`, J^T on `mixed`, H^-1 by `inverse` on `batches`."""
    f = at.f(x, y, outer)
    v = inverse(Hessians(at, x, y), batches, f.y)
    return f.value, f.x - at.mixed(x, y, mixed, v)
