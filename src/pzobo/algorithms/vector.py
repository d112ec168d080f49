"""How are y, v and momenta added up? The tensors of a tree as one vector, so that a step reads as in its paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves


@dataclass(frozen=True, eq=False, slots=True)
class Vector:
    """The tensors of a tree, as a vector: a + b, a - b, 2 * a, a / 2, a @ b. Nothing is changed in place.

    Args:
        leaves: the tensors, in the tree's order.
    """

    leaves: Leaves

    def __add__(self, other: Vector) -> Vector:
        return Vector(trees.add(self.leaves, other.leaves))

    def __sub__(self, other: Vector) -> Vector:
        return Vector(trees.add(self.leaves, other.leaves, -1.0))

    def __mul__(self, scale: float | Tensor) -> Vector:
        return Vector(trees.mul(self.leaves, scale))

    __rmul__ = __mul__

    def __truediv__(self, scale: float | Tensor) -> Vector:
        return self * (1.0 / scale)

    def __neg__(self) -> Vector:
        return Vector(tuple(-t for t in self.leaves))

    def __matmul__(self, other: Vector) -> Tensor:
        """<a, b>."""
        return trees.dot(self.leaves, other.leaves)

    def norm(self) -> Tensor:
        """|a|."""
        return trees.norm(self.leaves)

    def zeros(self) -> Vector:
        """0, of the same shapes."""
        return Vector(trees.zeros(self.leaves))

    def clone(self) -> Vector:
        """A copy."""
        return Vector(tuple(t.clone() for t in self.leaves))

    def within(self, radius: float) -> Vector:
        """The nearest vector whose norm is at most `radius`."""
        if radius == float("inf"):
            return self
        norm = self.norm()
        return self * torch.where(norm > radius, radius / norm, 1.0)

    def flat(self) -> Tensor:
        """All numbers in one tensor of one dimension."""
        return torch.cat([t.reshape(-1) for t in self.leaves])

    def shaped(self, flat: Tensor) -> Vector:
        """The numbers of `flat` in the shapes of this vector."""
        parts = flat.split([t.numel() for t in self.leaves])
        return Vector(tuple(p.view(t.shape).to(t.dtype) for p, t in zip(parts, self.leaves, strict=True)))
