"""How small can the bounds of Propositions 1 and 2 be made? The same assumptions, with no constant given away.

Three changes, derived in docs/theory.md: the estimate only ever uses J^T v, so it is the zeroth-order gradient of one
scalar function <v, y^N> (no factor d); Gaussian moments are taken exactly (p + 1 for 4p + 15, p^3 for p^4); and an
inner step shrinks a distance by q, so its square by q^2 (not q).
"""

from __future__ import annotations

import math

from pzobo.options import in_range
from pzobo.theory.assumptions import Constants, check_settings
from pzobo.zeroth_order.needed import directions_needed as directions_needed
from pzobo.zeroth_order.needed import linear_error as linear_error


def gaussian_moment(p: int, k: int) -> float:
    """E |u|^k = 2^(k/2) Gamma((p + k)/2) / Gamma(p/2) for u ~ N(0, I) in p dimensions."""
    check_settings(p=p)
    in_range("k", k, 0, math.inf)
    return math.exp(k / 2 * math.log(2) + math.lgamma((p + k) / 2) - math.lgamma(p / 2))


def jacobian_lipschitz(c: Constants) -> float:
    """Proposition 1 with |(x, y(x))| changing by sqrt(1 + kappa^2) in place of 1 + kappa."""
    return math.sqrt(1 + c.kappa**2) * (c.tau / c.mu_g + c.rho * c.L / c.mu_g**2)


def jacobian_error(c: Constants, *, N: int, alpha: float | None = None) -> float:
    """|J_N - J*| <= q^N kappa + N q^(N-1) alpha (tau + rho kappa) D, in the operator norm."""
    check_settings(N=N)
    alpha = 1 / c.L if alpha is None else alpha
    q = c.contraction(alpha)
    return q**N * c.kappa + N * q ** (N - 1) * alpha * (c.tau + c.rho * c.kappa) * c.D


def path_error(c: Constants, *, N: int, alpha: float | None = None) -> float:
    """What N inner steps leave of the hypergradient's error, without any smoothing or noise.

    sqrt(1 + kappa^2) L_f q^N D + M |J_N - J*|.
    """
    check_settings(N=N)
    q = c.contraction(1 / c.L if alpha is None else alpha)
    return math.sqrt(1 + c.kappa**2) * c.L_f * q**N * c.D + c.M * jacobian_error(c, N=N, alpha=alpha)


def zeroth_order_error(p: int, Q: int, mu: float, *, slope: float, curvature: float) -> float:
    """The root mean square error of (1/Q) sum_j (h(x + mu u_j) - h(x))/mu u_j as an estimate of the gradient of h.

    At most sqrt((p + 1)/Q) |grad h| + mu/2 L_h sqrt(E|u|^6/Q + (1 - 1/Q) (E|u|^3)^2), for Gaussian directions; the
    first part is exact for a linear h.

    Args:
        slope: |grad h|, or a bound of it.
        curvature: L_h, the Lipschitz constant of the gradient of h.
    """
    check_settings(p=p, Q=Q, mu=mu)
    in_range("slope", slope, 0, math.inf)
    in_range("curvature", curvature, 0, math.inf)
    sixth, third = gaussian_moment(p, 6), gaussian_moment(p, 3)
    smoothing = mu / 2 * curvature * math.sqrt(sixth / Q + (1 - 1 / Q) * third**2)
    return math.sqrt((p + 1) / Q) * slope + smoothing


def variance_bound(c: Constants, *, N: int, Q: int, mu: float, alpha: float | None = None) -> float:
    """Proposition 2: E |estimate - grad Phi|^2 <= (path_error + zeroth_order_error)^2."""
    check_settings(N=N, Q=Q, mu=mu)
    noise = zeroth_order_error(c.p, Q, mu, slope=c.kappa * c.M, curvature=jacobian_lipschitz(c) * c.M)
    return (path_error(c, N=N, alpha=alpha) + noise) ** 2


def bias_bound(c: Constants, *, N: int, mu: float, alpha: float | None = None) -> float:
    """Lemma 8: |E estimate - grad Phi| <= path_error + mu/2 L_J M E|u|^3."""
    check_settings(N=N, mu=mu)
    smoothing = mu / 2 * jacobian_lipschitz(c) * c.M * gaussian_moment(c.p, 3)
    return path_error(c, N=N, alpha=alpha) + smoothing


def hypergradient_lipschitz(c: Constants) -> float:
    """Lemma 2: (1 + kappa^2) L_f + M L_J, with L_J from this file."""
    return (1 + c.kappa**2) * c.L_f + c.M * jacobian_lipschitz(c)
