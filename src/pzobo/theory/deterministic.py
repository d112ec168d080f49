"""What does the theory say of PZOBO? Propositions 1 and 2, Lemmas 2 to 5 and 8, and Theorem 1, one function each.

Each function computes a statement that is true. Where the printed one is not, or leaves something open, the docstring
says so, `printed=True` computes it as it stands, and docs/theory.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from pzobo.theory.assumptions import Constants, check_settings


class Terms:
    """A bound as the sum of its terms."""

    @property
    def total(self) -> float:
        return float(sum(getattr(self, f.name) for f in fields(self)))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, float]:
        names: Any = fields(self)  # type: ignore[arg-type]
        return {f.name: float(getattr(self, f.name)) for f in names}


def P_3(p: int) -> float:
    """(p + 3)^3 / 2: what smoothing adds to |dy_mu/dx|^2, from Lemma 3 twice squared.

    Args:
        p: how many outer variables there are.

    Returns:
        The number.

    Examples:
        >>> pzobo.theory.P_3(1)
        32.0
    """
    return (p + 3) ** 3 / 2


def P_4(p: int) -> float:
    """(4p + 15) (p + 3)^3 / 2 + 3/2 (p + 5)^3: what smoothing adds to the noise of one direction.

    The paper leaves it open ("a polynomial of degree 4"). It follows from Lemma 3's last item, less its mean, with
    |dy_mu|^2 <= 2 |dy|^2 + mu^2 L_J^2 (p + 3)^3 / 2. Going through dy_mu and back makes the degree 4: `sharp` has 3.

    Args:
        p: how many outer variables there are.

    Returns:
        The number.

    Examples:
        >>> pzobo.theory.P_4(1)
        932.0
    """
    return (4 * p + 15) * P_3(p) + 1.5 * (p + 5) ** 3


def response_bound(c: Constants, *, frobenius: bool = False) -> float:
    """Lemmas 4 to 6: |dy*/dx| <= L / mu_g, and the same for dy^N/dx.

    True for the operator norm. The paper states it for the Frobenius norm, where it needs the factor sqrt(min(p, d)):
    for g = |y - x|^2 / 2 it says |I|_F = sqrt(d) <= 2.

    Args:
        c: the constants of the problem.
        frobenius: bound the Frobenius norm in place of the operator norm, by the factor sqrt(min(p, d)).

    Returns:
        The bound.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.response_bound(c) == c.L / c.mu_g
        True
    """
    return c.kappa * (math.sqrt(c.rank) if frobenius else 1.0)


def jacobian_lipschitz(c: Constants) -> float:
    """Proposition 1: L_J = (1 + L/mu_g) (tau/mu_g + rho L/mu_g^2), the Lipschitz constant of dy^N/dx (any norm).

    Args:
        c: the constants of the problem.

    Returns:
        The Lipschitz constant.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.jacobian_lipschitz(c)          # of a quadratic problem
        0.0
    """
    return (1 + c.kappa) * (c.tau / c.mu_g + c.rho * c.L / c.mu_g**2)


def hypergradient_lipschitz(c: Constants, *, printed: bool = False) -> float:
    """Lemma 2: L_Phi = L + (2 L^2 + tau M)/mu_g + (rho L M + L^3 + tau M L)/mu_g^2 + rho L^2 M/mu_g^3.

    The paper has tau M^2 in place of tau M, which is too small where M < 1 and has the wrong unit.

    Args:
        c: the constants of the problem.
        printed: as the paper has it, with tau M^2.

    Returns:
        The Lipschitz constant of the gradient of Phi.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.hypergradient_lipschitz(c) > 0
        True
    """
    M2 = c.M**2 if printed else c.M
    first = (2 * c.L**2 + c.tau * M2) / c.mu_g
    second = (c.rho * c.L * c.M + c.L**3 + c.tau * c.M * c.L) / c.mu_g**2
    return c.L + first + second + c.rho * c.L**2 * c.M / c.mu_g**3


def hypergradient_bound(c: Constants) -> float:
    """Theorem 1: M_Phi = (1 + L_g/mu_g) M, which bounds the gradient of Phi.

    Args:
        c: the constants of the problem.

    Returns:
        The bound.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.hypergradient_bound(c) == (1 + c.L_g / c.mu_g) * c.M
        True
    """
    return (1 + c.L_g / c.mu_g) * c.M


@dataclass(frozen=True)
class Variance(Terms):
    """The terms of Proposition 2, in the order of its formal statement."""

    direct: float
    outer_gradient: float
    directions: float
    smoothing_noise: float
    path_response: float
    smoothing_bias: float
    path_curvature: float


def variance_bound(
    c: Constants, *, N: int, Q: int, mu: float, alpha: float | None = None, printed: bool = False
) -> Variance:
    """Proposition 2: D_var, a bound of E |estimate - grad Phi|^2 (a mean squared error, not only a variance).

    2 L^2 D^2 q^N + 4 L^4/mu_g^2 D^2 q^N + 24 (4p + 15) L^2 M^2/(Q mu_g^2) + 12 mu^2/Q L_J^2 M^2 d P_4(p)
    + 24 L^2 M^2 q^2N/mu_g^2 + 6 mu^2 L_J^2 M^2 d (p + 3)^3 + 48 M^2 (tau mu_g + L rho)^2/mu_g^4 q^(N-1) D^2,
    with q = 1 - alpha mu_g. The printed statement has P_4 without the factor 12 = 4 * 3 that its own proof gives it,
    and that Proposition 4 keeps outside of P_4.

    Args:
        c: the constants of the problem.
        N: inner steps; at least 1.
        Q: directions; at least 1.
        mu: the length of the perturbation; 0 for no smoothing.
        alpha: the inner step size, at most 2 / (L + mu_g); 1 / L by default.
        printed: as the paper has it, with P_4 without the factor 12.

    Returns:
        The terms of the bound, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> bound = pzobo.theory.variance_bound(c, N=20, Q=1, mu=0.01)
        >>> bound.total > pzobo.theory.variance_bound(c, N=20, Q=4, mu=0.01).total
        True
    """
    check_settings(N=N, Q=Q, mu=mu)
    q = c.contraction(1 / c.L if alpha is None else alpha)
    L_J = jacobian_lipschitz(c)
    smoothing = mu**2 * L_J**2 * c.M**2 * c.d
    return Variance(
        direct=2 * c.L**2 * c.D**2 * q**N,
        outer_gradient=4 * c.L**2 * c.kappa**2 * c.D**2 * q**N,
        directions=24 * (4 * c.p + 15) * c.kappa**2 * c.M**2 / Q,
        smoothing_noise=(1 if printed else 12) * smoothing * P_4(c.p) / Q,
        path_response=24 * c.kappa**2 * c.M**2 * q ** (2 * N),
        smoothing_bias=6 * smoothing * (c.p + 3) ** 3,
        path_curvature=48 * c.M**2 * (c.tau * c.mu_g + c.L * c.rho) ** 2 / c.mu_g**4 * q ** (N - 1) * c.D**2,
    )


@dataclass(frozen=True)
class Bias(Terms):
    """The terms of Lemma 8."""

    direct: float
    smoothing: float
    path_response: float
    path_curvature: float
    outer_gradient: float


def bias_bound(c: Constants, *, N: int, mu: float, alpha: float | None = None) -> Bias:
    """Lemma 8: D_bias, a bound of |E estimate - grad Phi|.

    L D q^(N/2) + mu/2 L_J M d^(1/2) (p + 3)^(3/2) + L M q^N/mu_g + 2 M D (tau mu_g + L rho)/mu_g^2 q^((N-1)/2)
    + L^2 D/mu_g q^(N/2), with q = 1 - alpha mu_g.

    Args:
        c: the constants of the problem.
        N: inner steps; at least 1.
        mu: the length of the perturbation; 0 for no smoothing.
        alpha: the inner step size, at most 2 / (L + mu_g); 1 / L by default.

    Returns:
        The terms of the bound, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> bound = pzobo.theory.bias_bound(c, N=20, mu=0.01)
        >>> bound.total > pzobo.theory.bias_bound(c, N=40, mu=0.01).total
        True
    """
    check_settings(N=N, Q=1, mu=mu)
    q = c.contraction(1 / c.L if alpha is None else alpha)
    return Bias(
        direct=c.L * c.D * q ** (N / 2),
        smoothing=mu / 2 * jacobian_lipschitz(c) * c.M * math.sqrt(c.d) * (c.p + 3) ** 1.5,
        path_response=c.kappa * c.M * q**N,
        path_curvature=2 * c.M * c.D * (c.tau * c.mu_g + c.L * c.rho) / c.mu_g**2 * q ** ((N - 1) / 2),
        outer_gradient=c.L * c.kappa * c.D * q ** (N / 2),
    )


@dataclass(frozen=True)
class Rate(Terms):
    """The terms of Theorems 1 and 2: what bounds (1 - 1/sqrt(K)) / K sum_k E |grad Phi(x_k)|^2."""

    descent: float
    bias: float
    noise: float


def theorem_mu(c: Constants, K: int) -> float:
    """Theorems 1 and 2: mu = 1 / sqrt(K d p^3).

    Args:
        c: the constants of the problem. Only p and d are used.
        K: outer steps.

    Returns:
        mu.

    Raises:
        OptionError: K is no whole number, or less than 1.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> round(pzobo.theory.theorem_mu(c, K=100), 4)
        0.0136
    """
    check_settings(K=K)
    return 1 / math.sqrt(K * c.d * c.p**3)


def theorem_beta(c: Constants, K: int, *, L_Phi: float | None = None) -> float:
    """Theorems 1 and 2: beta = 1 / (L_Phi sqrt(K)), the outer step size.

    Args:
        c: the constants of the problem.
        K: outer steps.
        L_Phi: a smoothness constant of Phi, where a smaller one than Lemma 2's, the default, is known.

    Returns:
        beta.

    Raises:
        OptionError: K is no whole number, or less than 1.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> pzobo.theory.theorem_beta(c, K=400) / pzobo.theory.theorem_beta(c, K=100)
        0.5
    """
    check_settings(K=K)
    return 1 / ((hypergradient_lipschitz(c) if L_Phi is None else L_Phi) * math.sqrt(K))


def theorem_1(
    c: Constants,
    *,
    K: int,
    N: int,
    gap: float,
    Q: int = 1,
    mu: float | None = None,
    alpha: float | None = None,
    L_Phi: float | None = None,
) -> Rate:
    """Theorem 1: L_Phi (Phi(x_0) - Phi*)/sqrt(K) + M_Phi D_bias + D_var/sqrt(K), for beta = `theorem_beta(c, K)`.

    In the order of its terms the printed O((1 - alpha mu_g)^N) is O((1 - alpha mu_g)^(N/2)): it enters through D_bias.

    Args:
        c: the constants of the problem.
        K: outer steps.
        N: inner steps; at least 1.
        gap: Phi(x_0) - inf Phi.
        Q: directions; at least 1.
        mu: the length of the perturbation; `theorem_mu(c, K)` by default.
        alpha: the inner step size; 1 / L by default, which is the largest in Theorem 1.
        L_Phi: a smoothness constant of Phi, where a smaller one than Lemma 2's, the default, is known.

    Returns:
        The terms of the rate, and their sum `total`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> rate = pzobo.theory.theorem_1(c, K=100, N=50, gap=1.0)
        >>> rate.total > pzobo.theory.theorem_1(c, K=400, N=50, gap=1.0).total
        True
    """
    mu = theorem_mu(c, K) if mu is None else mu
    L_Phi = hypergradient_lipschitz(c) if L_Phi is None else L_Phi
    return Rate(
        descent=L_Phi * gap / math.sqrt(K),
        bias=hypergradient_bound(c) * bias_bound(c, N=N, mu=mu, alpha=alpha).total,
        noise=variance_bound(c, N=N, Q=Q, mu=mu, alpha=alpha).total / math.sqrt(K),
    )
