"""How many directions are needed? The least Q, by the exact error of each sampler for a linear response."""

from __future__ import annotations

import math

from pzobo.options import in_range, whole
from pzobo.zeroth_order.directions import Sampler
from pzobo.zeroth_order.estimate import check_sampler


def linear_error(sampler: Sampler, p: int, Q: int, *, shrink: bool | float = False) -> float:
    """E |s estimate - J^T v|^2 / |J^T v|^2 for a response that is linear in x: exact, for each sampler.

    s^2 r + (1 - s)^2, where r = `sampler.relative_error(p, Q)` is that of the unbiased estimate: (p + 1)/Q for Gaussian
    directions, (p - 1)/Q for Sphere and Rademacher, p/Q - 1 (Q <= p) for Orthogonal and Coordinate. Least at
    s = 1/(1 + r), the default shrinkage, where it is r/(1 + r): never more than 1. (`UnitPerTensor` is biased: for one
    tensor and shrink=False only.)
    """
    whole("p", p)
    whole("Q", Q)
    check_sampler(sampler, shrink)
    r = sampler.relative_error(p, Q)
    s = sampler.shrinkage(p, Q) if shrink is True else 1.0 if shrink is False else float(shrink)
    return s**2 * r + (1 - s) ** 2


def directions_needed(sampler: Sampler, p: int, error: float, *, shrink: bool = True, most: int | None = None) -> int:
    """The least Q whose `linear_error` is at most `error` (a relative squared error), found by bisection."""
    in_range("error", error, 0, math.inf)
    if most is not None:
        whole("most", most)
    most = 10**9 if most is None else most
    if linear_error(sampler, p, p, shrink=shrink) <= error:
        most = min(most, p)
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if linear_error(sampler, p, middle, shrink=shrink) <= error:
            high = middle
        else:
            low = middle + 1
    return low
