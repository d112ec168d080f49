"""How long is the probe of a central difference? Where truncation and rounding are about equal: found by trying.

A difference over the length e errs by truncation, which grows as e^2, and by rounding, which falls as 1/e. On a ladder
of lengths, what neighbours differ by shows both laws, and so the best length, on the problem itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves

RUNG = 4.0
"""The ratio of neighbouring lengths."""
LOWEST, LONGEST = -4, 4.0
"""The ladder: from this rung below the length to start with, up to a length of so many times the size of y."""
CONTENT = 1e-3
"""An error that is no reason to spend more."""

Difference = Callable[[float], tuple[Leaves, Leaves]]
"""The products along one q, by y and by z, from differences of this relative length."""


class Probe:
    """The lengths of one kind of difference, relative to the size of y, and the error to be expected of them.

    One length serves the products by y and by z, which then cost two gradients together, unless it serves one of them
    badly: a derivative by few outer variables is a long sum, whose rounding wants a longer probe.
    """

    def __init__(self) -> None:
        self.factors = (1.0, 1.0)
        """For the products by y and by z, times the length to start with."""
        self.error = math.inf
        """The relative error to be expected of the products; unknown at first."""
        self._looked = 0

    @property
    def split(self) -> bool:
        return self.factors[0] != self.factors[1]

    def lengths(self, eps: float) -> tuple[float, float]:
        """2 eps^(1/3) to start with, which is best where a function bends on the scale of y; and as found."""
        return _start(eps) * self.factors[0], _start(eps) * self.factors[1]

    def adjust(self, asked: int, eps: float, difference: Difference) -> None:
        """Look for the lengths, once in the `asked`-th backward pass: everywhere at first, later only if they moved."""
        if self._looked == asked:
            return
        self._looked = asked
        if self.error < math.inf and not self.split:
            there = [difference(_start(eps) * self.factors[0] * RUNG**k) for k in (-1, 0, 1)]
            if sum(_gaps([products[part] for products in there])[0] for part in (0, 1)) <= max(CONTENT, 8 * self.error):
                return
        top = int(math.log(LONGEST / _start(eps), RUNG))
        factors = [RUNG**k for k in range(LOWEST, top + 1)]
        found = [(difference(_start(eps) * factor), factor) for factor in factors]
        finite = [(products, factor) for products, factor in found if trees.is_finite((*products[0], *products[1]))]
        if len(finite) > 2:
            by_y, by_z = (expected_errors([products[part] for products, _ in finite]) for part in (0, 1))
            self._choose([factor for _, factor in finite], by_y, by_z)

    def _choose(self, factors: Sequence[float], by_y: list[float], by_z: list[float]) -> None:
        self.error, common = min((a + b, factor) for a, b, factor in zip(by_y, by_z, factors, strict=True))
        self.factors = common, common
        apart = min(by_y) + min(by_z)
        if self.error > CONTENT and apart < self.error / 2:
            self.error = apart
            self.factors = factors[by_y.index(min(by_y))], factors[by_z.index(min(by_z))]

    def state_dict(self) -> dict[str, Any]:
        return {"factors": list(self.factors), "error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factors, self.error = (state["factors"][0], state["factors"][1]), state["error"]


def _start(eps: float) -> float:
    return 2.0 * math.cbrt(eps)


def _gaps(ladder: list[Leaves]) -> list[float]:
    """What neighbours on a ladder differ by, of the length that is usual on it."""
    sizes = sorted(float(trees.norm(leaves)) for leaves in ladder) if ladder[0] else [0.0]
    size = sizes[len(sizes) // 2] or sizes[-1] or 1.0
    return [float(trees.norm(trees.add(a, b, -1.0))) / size if a else 0.0 for a, b in itertools.pairwise(ladder)]


def expected_errors(ladder: list[Leaves]) -> list[float]:
    """The relative error to be expected of each of these differences, made with growing lengths.

    A gap is r 4^-k, the rounding of the shorter one, below some rung, and t 16^(k+1), the truncation of the longer one,
    from there on. r, t and that rung are fitted to all gaps, so that no two that agree by luck are taken for exact.
    """
    gaps = [(k, math.log(gap)) for k, gap in enumerate(_gaps(ladder)) if gap > 0]
    step = math.log(RUNG)
    best, rounding, truncation = math.inf, -math.inf, -math.inf
    for edge in range(len(ladder)):
        r = [gap + k * step for k, gap in gaps if k < edge]
        t = [gap - 2 * (k + 1) * step for k, gap in gaps if k >= edge]
        misfit = sum(_spread(part) for part in (r, t))
        if misfit < best:
            best, rounding, truncation = misfit, _mean(r), _mean(t)
    return [math.exp(rounding - k * step) + math.exp(truncation + 2 * k * step) for k in range(len(ladder))]


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else -math.inf


def _spread(numbers: list[float]) -> float:
    mean = _mean(numbers)
    return sum((number - mean) ** 2 for number in numbers)
