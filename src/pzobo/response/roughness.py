"""Is a response smooth enough to be measured by differences? Two fits along a direction tell, and the scale to use."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

from torch import Tensor

from pzobo.errors import NoResponseWarning, RoughResponseError

ROUGH = 0.75
"""From here on a difference shows roughness: steps have 1 and more, smooth models .02 to .07. It is less than 1 because
the least of several widths counts, and steps have less than 1 by chance."""
BENT = 0.3
"""Above this, a difference has one digit at most."""


def kappa(at: Tensor, once: Tensor, twice: Tensor) -> float:
    """|r(x + 2h) - 2 r(x + h) + r(x)| / |r(x + 2h) - r(x)|: the curvature or noise of a difference, beside itself.

    0 is a line. Steps have 1 (one of the two differences is nothing) or more. NaN where nothing responds, and infinity
    where r is not finite.

    Args:
        at: r(x).
        once: r(x + h).
        twice: r(x + 2h).
    """
    bent, change = float((twice - 2 * once + at).norm()), float((twice - at).norm())
    if change > 0:
        return bent / change
    return float("nan") if bent == 0 else float("inf")


@dataclass
class Smoothness:
    """What two fits tell, or a few more: kappa for some widths of differences.

    Attributes:
        found: kappa by width.
    """

    found: dict[float, float] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """The width of the smallest kappa."""
        return min(self.found, key=lambda w: (math.isnan(self.found[w]), self.found[w]))

    @property
    def kappa(self) -> float:
        return self.found[self.width]

    @property
    def noisy(self) -> bool:
        """Whether narrower differences are rougher: then it is noise, and not curvature, that bends them."""
        narrower = [k for w, k in self.found.items() if w < self.width]
        return self.kappa > BENT and bool(narrower) and min(narrower) > self.kappa

    def check(self) -> None:
        """Refuse a response that is no function to take differences of; say so if nothing responds."""
        if math.isnan(self.kappa):
            warnings.warn(
                "The predictions do not change when the hyperparameters change a little: they do not respond (trees do "
                "not see the scale of a feature, for one), or by jumps further away, as to counts and shares of "
                "features. The start is kept. For jumps use Optuna.",
                NoResponseWarning,
                stacklevel=2,
            )
        if self.kappa >= ROUGH:
            raise RoughResponseError(
                f"The predictions change by jumps: kappa = {self.kappa:.2g}, where .02 to .07 is smooth and 1 is a "
                "step. Trees are like that, what is drawn anew at each fit (set random_state), and fits that stop long "
                "before they converge. Use Optuna."
            )
