"""What does the theory say of PZOBO-S? Propositions 3 and 4, Lemma 9 and Theorem 2, one function each.

The inner step size is alpha = 2 / (L + mu_g) throughout, and every sample G is mu_g-strongly convex and L-smooth. As in
`deterministic`, `printed=True` computes a statement as it stands where it needed a repair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pzobo.errors import OptionError
from pzobo.theory.assumptions import Constants, check_settings
from pzobo.theory.deterministic import (
    P_3,
    P_4,
    Rate,
    Terms,
    hypergradient_bound,
    hypergradient_lipschitz,
    jacobian_lipschitz,
    theorem_mu,
)


@dataclass(frozen=True)
class Recursion:
    """The constants of Proposition 3: E|J_t - J*|^2 <= C_gamma E|J_{t-1} - J*|^2 + lambda q^(2(t-1)) + Gamma."""

    gamma: float
    C_gamma: float
    C_xy: float
    C_y: float
    Gamma: float
    lam: float


def recursion(c: Constants, *, S: int, gamma: float | None = None, printed: bool = False) -> Recursion:
    """Proposition 3's constants, for inner batches of S samples.

    C_gamma = q (q + alpha/gamma + alpha L/(gamma mu_g)), C_xy = alpha (alpha + gamma q + alpha L/mu_g),
    C_y = L/mu_g C_xy, lambda = 2 (tau^2 C_xy + rho^2 C_y) D^2 and
    Gamma = 2 (tau^2 C_xy + rho^2 C_y) sigma^2/(mu_g L S) + 2 L^2/S (min(p, d) C_xy + d C_y), with q = 1 - alpha mu_g.

    The printed Gamma lacks min(p, d) and d: Lemma 1 bounds Frobenius norms by an operator norm.

    Args:
        c: the constants of the problem.
        S: samples of an inner batch; at least 1.
        gamma: the free constant of Proposition 3, at least (L + mu_g)/mu_g^2; with that least value, the default,
            C_gamma = q.
        printed: as the paper has it, without min(p, d) and d in Gamma.

    Returns:
        The constants of the recursion, as a record.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> 0 < pzobo.theory.recursion(c, S=64).C_gamma < 1
        True
    """
    if S < 1:
        raise OptionError(f"S={S!r}: the inner batch size must be at least 1.")
    least = (c.L + c.mu_g) / c.mu_g**2
    gamma = least if gamma is None else gamma
    if gamma < least * (1 - 1e-9):
        raise OptionError(f"gamma={gamma!r}: must be at least (L + mu_g) / mu_g^2 = {least:.4g}.")
    alpha, q = c.alpha, c.contraction(c.alpha)
    C_xy = alpha * (alpha + gamma * q + alpha * c.kappa)
    C_y = c.kappa * C_xy
    drift = 2 * (c.tau**2 * C_xy + c.rho**2 * C_y)
    wide, deep = (1, 1) if printed else (c.rank, c.d)
    return Recursion(
        gamma=gamma,
        C_gamma=q * (q + alpha / gamma + alpha * c.kappa / gamma),
        C_xy=C_xy,
        C_y=C_y,
        Gamma=drift * c.sigma**2 / (c.mu_g * c.L * S) + 2 * c.L**2 / S * (wide * C_xy + deep * C_y),
        lam=drift * c.D**2,
    )


@dataclass(frozen=True)
class JacobianError(Terms):
    """The terms of Proposition 3."""

    start: float
    drift: float
    sampling: float


def jacobian_error_bound(
    c: Constants, *, N: int, S: int, gamma: float | None = None, printed: bool = False
) -> JacobianError:
    """Proposition 3: a bound of E |J_N - J*|_F^2 for N steps of SGD.

    C_gamma^N min(p, d) L^2/mu_g^2 + lambda C_gamma^N/(C_gamma - q^2) + Gamma/(1 - C_gamma), where q = 1 - alpha mu_g.

    Printed: without min(p, d) (see `response_bound`), and with q in place of C_gamma in the middle fraction,
    lambda q/(q - q^2) C_gamma^(N-1). Its proof divides by q where it should by C_gamma <= q, so it holds only at
    equality, for the least gamma.

    Args:
        c: the constants of the problem.
        N: inner steps; at least 1.
        S: samples of an inner batch; at least 1.
        gamma: the free constant of Proposition 3, at least (L + mu_g)/mu_g^2, which is the default.
        printed: as the paper has it.

    Returns:
        The terms of the bound, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> bound = pzobo.theory.jacobian_error_bound(c, N=20, S=64)
        >>> bound.total > pzobo.theory.jacobian_error_bound(c, N=40, S=64).total
        True
    """
    check_settings(N=N)
    r = recursion(c, S=S, gamma=gamma, printed=printed)
    q = c.contraction(c.alpha)
    if q == 0:
        geometric = 1.0 if N == 1 else 0.0
    elif printed:
        geometric = q / (q - q**2) * r.C_gamma ** (N - 1)
    else:
        geometric = r.C_gamma**N / (r.C_gamma - q**2)
    return JacobianError(
        start=r.C_gamma**N * c.kappa**2 * (1 if printed else c.rank),
        drift=r.lam * geometric,
        sampling=r.Gamma / (1 - r.C_gamma),
    )


def iterate_error_bound(c: Constants, *, N: int, S: int) -> float:
    """E |Y^N - y*|^2 <= q^(2N) D^2 + sigma^2/(mu_g L S), with q = (L - mu_g)/(L + mu_g) (in Propositions 3 and 4).

    Args:
        c: the constants of the problem.
        N: inner steps.
        S: samples of an inner batch; at least 1.

    Returns:
        The bound.

    Raises:
        OptionError: S is no whole number, or less than 1.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.iterate_error_bound(c, N=20, S=64) > pzobo.theory.iterate_error_bound(c, N=40, S=64)
        True
    """
    check_settings(S=S)
    q = c.contraction(c.alpha)
    return q ** (2 * N) * c.D**2 + c.sigma**2 / (c.mu_g * c.L * S)


@dataclass(frozen=True)
class StochasticBias(Terms):
    """The terms of Lemma 9."""

    jacobian: float
    smoothing: float
    iterate: float


def stochastic_bias_bound(
    c: Constants, *, N: int, S: int, mu: float, gamma: float | None = None, printed: bool = False
) -> StochasticBias:
    """Lemma 9: B_1, a bound of E |E_k estimate - grad Phi|^2.

    8 M^2 (E|J_N - J*|^2 + mu^2/2 L_J^2 d (p + 3)^3) + 2 L^2 (1 + 2 L^2/mu_g^2) E|Y^N - y*|^2.

    Args:
        c: the constants of the problem.
        N: inner steps; at least 1.
        S: samples of an inner batch; at least 1.
        mu: the length of the perturbation; 0 for no smoothing.
        gamma: the free constant of Proposition 3, at least (L + mu_g)/mu_g^2, which is the default.
        printed: with Proposition 3 as the paper has it.

    Returns:
        The terms of the bound, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> bound = pzobo.theory.stochastic_bias_bound(c, N=20, S=64, mu=0.01)
        >>> bound.total > pzobo.theory.stochastic_bias_bound(c, N=40, S=64, mu=0.01).total
        True
    """
    smoothing = mu**2 * jacobian_lipschitz(c) ** 2 * c.d * P_3(c.p)
    return StochasticBias(
        jacobian=8 * c.M**2 * jacobian_error_bound(c, N=N, S=S, gamma=gamma, printed=printed).total,
        smoothing=8 * c.M**2 * smoothing,
        iterate=2 * c.L**2 * (1 + 2 * c.kappa**2) * iterate_error_bound(c, N=N, S=S),
    )


@dataclass(frozen=True)
class StochasticVariance(Terms):
    """The terms of Proposition 4: Delta, in four parts, and B_1."""

    directions: float
    outer_batch: float
    smoothing_noise: float
    smoothing_outer: float
    bias: float

    @property
    def delta(self) -> float:
        """Delta: all but B_1."""
        return self.total - self.bias


def stochastic_variance_bound(
    c: Constants,
    *,
    N: int,
    Q: int,
    mu: float,
    S: int,
    D_f: int,
    gamma: float | None = None,
    printed: bool = False,
) -> StochasticVariance:
    """Proposition 4: Delta + B_1, a bound of E |estimate - grad Phi|^2 for PZOBO-S.

    Delta = 8 M^2 ((1 + 1/D_f)(4p + 15)/Q + 1/D_f) L^2/mu_g^2 + 2 M^2/D_f + (1 + 1/D_f) 4 M^2/Q mu^2 d L_J^2 P_4(p)
    + 4 M^2/D_f mu^2 d L_J^2 P_3(p), for outer batches of D_f samples.

    Args:
        c: the constants of the problem.
        N: inner steps; at least 1.
        Q: directions; at least 1.
        mu: the length of the perturbation; 0 for no smoothing.
        S: samples of an inner batch; at least 1.
        D_f: samples of an outer batch; at least 1.
        gamma: the free constant of Proposition 3, at least (L + mu_g)/mu_g^2, which is the default.
        printed: with Proposition 3 as the paper has it.

    Returns:
        The terms of the bound, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> bound = pzobo.theory.stochastic_variance_bound(c, N=20, Q=4, mu=0.01, S=64, D_f=64)
        >>> bound.total > 0
        True
    """
    if D_f < 1:
        raise OptionError(f"D_f={D_f!r}: the outer batch size must be at least 1.")
    check_settings(Q=Q, mu=mu)
    smoothing = 4 * c.M**2 * mu**2 * c.d * jacobian_lipschitz(c) ** 2
    return StochasticVariance(
        directions=8 * c.M**2 * (1 + 1 / D_f) * (4 * c.p + 15) / Q * c.kappa**2,
        outer_batch=8 * c.M**2 / D_f * c.kappa**2 + 2 * c.M**2 / D_f,
        smoothing_noise=(1 + 1 / D_f) / Q * smoothing * P_4(c.p),
        smoothing_outer=smoothing * P_3(c.p) / D_f,
        bias=stochastic_bias_bound(c, N=N, S=S, mu=mu, gamma=gamma, printed=printed).total,
    )


def theorem_2(
    c: Constants,
    *,
    K: int,
    N: int,
    gap: float,
    S: int,
    D_f: int = 1,
    Q: int = 1,
    mu: float | None = None,
    gamma: float | None = None,
    L_Phi: float | None = None,
) -> Rate:
    """Theorem 2: (Phi(x_0) - Phi*) L_Phi/sqrt(K) + M_Phi sqrt(B_1) + (B_1 + Delta)/sqrt(K).

    As in Theorem 1, beta = 1 / (L_Phi sqrt(K)); in orders, (1 - alpha mu_g)^(N/2) and not the printed power N.

    Args:
        c: the constants of the problem.
        K: outer steps.
        N: inner steps; at least 1.
        gap: Phi(x_0) - inf Phi.
        S: samples of an inner batch; at least 1.
        D_f: samples of an outer batch; at least 1.
        Q: directions; at least 1.
        mu: the length of the perturbation; `theorem_mu(c, K)` by default.
        gamma: the free constant of Proposition 3, at least (L + mu_g)/mu_g^2, which is the default.
        L_Phi: a smoothness constant of Phi, where a smaller one than Lemma 2's, the default, is known.

    Returns:
        The terms of the rate, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> rate = pzobo.theory.theorem_2(c, K=100, N=50, gap=1.0, S=64)
        >>> rate.total > pzobo.theory.theorem_2(c, K=400, N=50, gap=1.0, S=64).total
        True
    """
    mu = theorem_mu(c, K) if mu is None else mu
    L_Phi = hypergradient_lipschitz(c) if L_Phi is None else L_Phi
    error = stochastic_variance_bound(c, N=N, Q=Q, mu=mu, S=S, D_f=D_f, gamma=gamma)
    return Rate(
        descent=L_Phi * gap / math.sqrt(K),
        bias=hypergradient_bound(c) * math.sqrt(error.bias),
        noise=error.total / math.sqrt(K),
    )
