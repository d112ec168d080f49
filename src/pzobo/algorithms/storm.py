"""How does STORM correct a momentum? By the change of the direction on the same batch (Cutkosky, Orabona, 2019)."""

from __future__ import annotations

from pzobo.algorithms.vector import Vector


def storm(m: Vector, new: Vector, old: Vector, weight: float) -> Vector:
    """new + (1 - weight) (m - old): `new` and `old` are the direction now and before, on the same batch.

    With weight 1 it is the new direction alone; with weight 0 it is SARAH's m + new - old.
    """
    return new + (m - old).times(1 - weight)
