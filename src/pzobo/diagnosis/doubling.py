"""How many inner steps are enough? Twice as many until the error is small, or until more of them do not help."""

from __future__ import annotations

import math
from collections.abc import Callable

TIMES = 20
"""Gradient descent makes an error e^20 times smaller in this many times 1 / (lr * least curvature) steps."""

MANY = 1000
"""From so many steps on, the search ends when doubling them twice leaves the error nearly as it was."""


def doubled(
    error: Callable[[int], float], steps: int, allowed: float, most: int, contraction: float
) -> tuple[int, float]:
    """The first of N = steps, 2 steps, 4 steps, ... whose error is allowed, or the last that is worth trying.

    Args:
        error: of N inner steps.
        steps: the first N.
        allowed: the error to reach.
        most: the largest N.
        contraction: lr * least curvature, by which a step of gradient descent makes an error smaller. Where the error
            is still there after `TIMES` / contraction steps, g is not what its curvature says: it has kinks, or the
            lr is too large.

    Returns:
        N, and its error.
    """
    most = min(most, max(64, math.ceil(TIMES / contraction))) if contraction > 0 else most
    left, stalled = error(steps), 0
    while left > allowed and steps < most and stalled < 2:
        steps, before = min(2 * steps, most), left
        left = error(steps)
        stalled = stalled + 1 if steps > MANY and not left < 0.9 * before else 0
    return steps, left
