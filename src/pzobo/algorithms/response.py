"""How is a linear response y = w + T x kept? T as one tensor for each leaf of y, with a first dimension for x."""

from __future__ import annotations

import torch
from torch import Tensor

from pzobo.algorithms.vector import Vector
from pzobo.errors import TooLargeError

MOST = 2**28
"""Numbers of T: 1 GB in float32."""


def zeros(name: str, x: Vector, y: Vector) -> Vector:
    """T = 0, for p outer and d inner variables; p d numbers must be few enough."""
    p, d = (sum(t.numel() for t in v.leaves) for v in (x, y))
    if p * d > MOST:
        raise TooLargeError(
            f"{name} keeps dy/dx as a matrix: {d} inner times {p} outer variables are {p * d} numbers, and {MOST} is "
            "the most. For many outer variables use SOBA, F2SA, or a Jacobian such as Implicit."
        )
    return Vector(tuple(t.new_zeros((p, *t.shape)) for t in y.leaves))


def apply(response: Vector, x: Vector) -> Vector:
    """T x."""
    flat = x.flat()
    return Vector(tuple(torch.tensordot(flat.to(t.dtype), t, 1) for t in response.leaves))


def transposed(response: Vector, v: Vector, like: Vector) -> Vector:
    """T^T v, in the shapes of x."""
    pairs = zip(response.leaves, v.leaves, strict=True)
    parts: list[Tensor] = [t.reshape(len(t), -1) @ s.reshape(-1) for t, s in pairs]
    return like.shaped(torch.stack(parts).sum(0))


def product(v: Vector, x: Vector) -> Vector:
    """v x^T, in the shape of T."""
    flat = x.flat()
    return Vector(tuple(flat.to(t.dtype).view(-1, *[1] * t.dim()) * t for t in v.leaves))
