"""How are y, v and momenta added up? The tensors of a tree as one vector, so that a step reads as in its paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves


@dataclass(frozen=True, eq=False, slots=True)
class Vector:
    """The tensors of a tree, as a vector: a + b, a - b, a * 2, a / 2, a @ b. Nothing is changed in place.

    In a step that is to be compiled rates are tensors, which torch.compile multiplies with no vector by `*`: there it
    is `a.times(rate)`, `a.over(rate)` and `a.step(rate, b)`, for a - rate * b. And a @ b is `a.dot(b)`.

    Args:
        leaves: the tensors of a tree, in its order.

    Examples:
        >>> a = pzobo.algorithms.Vector((torch.ones(2), torch.ones(3, 1)))
        >>> (2 * a - a) @ a
        tensor(5.)
        >>> a.norm()
        tensor(2.2361)
    """

    leaves: Leaves

    def __add__(self, other: Vector) -> Vector:
        return Vector(trees.add(self.leaves, other.leaves))

    def __sub__(self, other: Vector) -> Vector:
        return Vector(trees.add(self.leaves, other.leaves, -1.0))

    def __mul__(self, scale: float | Tensor) -> Vector:
        return self.times(scale)

    __rmul__ = __mul__

    def __truediv__(self, scale: float | Tensor) -> Vector:
        return self.over(scale)

    def __neg__(self) -> Vector:
        return Vector(tuple(-t for t in self.leaves))

    def __matmul__(self, other: Vector) -> Tensor:
        return self.dot(other)

    def dot(self, other: Vector) -> Tensor:
        """<a, b>."""
        return trees.dot(self.leaves, other.leaves)

    def norm(self) -> Tensor:
        """|a|."""
        return trees.norm(self.leaves)

    def times(self, scale: float | Tensor) -> Vector:
        """a * scale."""
        return Vector(trees.mul(self.leaves, scale))

    def over(self, scale: float | Tensor) -> Vector:
        """a / scale."""
        return self.times(1.0 / scale)

    def step(self, lr: float | Tensor, direction: Vector) -> Vector:
        """a - lr d: a step of the length lr against a direction d."""
        return Vector(trees.add(self.leaves, direction.leaves, -lr))

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
        return self.times(torch.where(norm > radius, radius / norm, 1.0))

    def where(self, condition: Tensor, other: Vector) -> Vector:
        """This vector where the condition, one truth value, holds; the other else."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return Vector(tuple([torch.where(condition, a, b) for a, b in pairs]))

    def flat(self) -> Tensor:
        """All numbers in one tensor of one dimension."""
        return torch.cat([t.reshape(-1) for t in self.leaves])

    def shaped(self, flat: Tensor) -> Vector:
        """The numbers of `flat` in the shapes of this vector."""
        parts = flat.split([t.numel() for t in self.leaves])
        return Vector(tuple(p.view(t.shape).to(t.dtype) for p, t in zip(parts, self.leaves, strict=True)))
