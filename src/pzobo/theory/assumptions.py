"""Which numbers does the theory know of a problem? The constants of Assumptions 1 to 4, checked, and what follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pzobo.errors import OptionError
from pzobo.options import in_range, whole


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1 to 4 and of the appendix's first lines.

    Args:
        L_f: Lipschitz constant of the gradient of f in (x, y).
        L_g: Lipschitz constant of the gradient of g in (x, y).
        mu_g: strong convexity of g in y.
        rho: Lipschitz constant of d2g/dy2 (Frobenius norm).
        tau: Lipschitz constant of d2g/dx dy (Frobenius norm).
        M: Lipschitz constant of f.
        D: bound of |y0 - y*(x)|. The paper bounds |y*(x)|, which is the same for y0 = 0.
        sigma: standard deviation of the gradient of one sample G; 0 for the full-batch problem.
        p: how many outer variables there are.
        d: how many inner variables there are.
        uncertainty: for estimates, the spread of each estimated constant; empty where all are exact.
        region: where they hold.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> c.p, c.d, c.estimated
        (3, 2, False)
    """

    L_f: float
    L_g: float
    mu_g: float
    rho: float
    tau: float
    M: float
    D: float
    sigma: float
    p: int
    d: int
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    region: str = "everywhere"

    def __post_init__(self) -> None:
        for name in ("L_f", "L_g", "mu_g", "rho", "tau", "M", "D", "sigma"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise OptionError(f"Constants({name}={value!r}): must be a finite number, at least 0.")
        for name in ("p", "d"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"Constants({name}={value!r}): must be a whole number, at least 1.")
        if self.mu_g == 0:
            raise OptionError(
                "Constants(mu_g=0): the theory needs a strongly convex inner problem. Add a term such as "
                "gamma/2 |y|^2 to the inner loss, with which mu_g is at least gamma."
            )
        if self.L_g < self.mu_g * (1 - 1e-9):
            raise OptionError(
                f"Constants(L_g={self.L_g!r}, mu_g={self.mu_g!r}): L_g bounds all curvature of g, so it cannot be "
                "smaller than mu_g."
            )
        names = {f.name for f in fields(self)}
        unknown = sorted(set(self.uncertainty) - names)
        if unknown:
            raise OptionError(f"Constants(uncertainty=...): {', '.join(unknown)} is no constant.")

    @property
    def estimated(self) -> bool:
        """Whether any of the constants is an estimate, and not a proven bound."""
        return bool(self.uncertainty)

    @property
    def L(self) -> float:
        """max(L_f, L_g), the one smoothness constant that the paper's bounds use."""
        return max(self.L_f, self.L_g)

    @property
    def kappa(self) -> float:
        """L / mu_g: bounds the operator norm of dy*/dx and of dy^N/dx (Lemmas 4 to 6)."""
        return self.L / self.mu_g

    @property
    def rank(self) -> int:
        """min(p, d): a Frobenius norm of dy/dx is at most sqrt(rank) times its operator norm."""
        return min(self.p, self.d)

    @property
    def alpha(self) -> float:
        """2 / (L + mu_g), the inner step size of Propositions 3 and 4 and of Theorem 2."""
        return 2 / (self.L + self.mu_g)

    def contraction(self, alpha: float) -> float:
        """q = 1 - alpha mu_g: what one inner step leaves of a distance, for alpha up to 2 / (L + mu_g)."""
        if not 0 < alpha <= self.alpha * (1 + 1e-9):
            raise OptionError(
                f"alpha={alpha!r}: an inner step size must be positive and at most 2 / (L + mu_g) = {self.alpha:.3g} "
                "for the theory (at most 1 / L in Theorem 1)."
            )
        return max(0.0, 1 - alpha * self.mu_g)

    def __str__(self) -> str:
        def show(name: str) -> str:
            spread = self.uncertainty.get(name)
            return f"{name} = {getattr(self, name):.4g}" + ("" if spread is None else f" ± {spread:.1g}")

        names = ("L_f", "L_g", "mu_g", "rho", "tau", "M", "D", "sigma")
        kind = "estimated" if self.estimated else "exact"
        return f"{', '.join(map(show, names))}, p = {self.p}, d = {self.d} ({kind}; {self.region})"


def check_settings(*, mu: float = 0.0, **counts: int) -> None:
    """Refuse an N, Q, p, ... that is not a whole number of at least 1, and a mu that is not a number of at least 0."""
    for name, value in counts.items():
        whole(name, value)
    in_range("mu", mu, 0, math.inf)
