"""Propositions 1 and 2, Lemmas 2 and 8 and Theorem 1, put together again from the steps of their proofs."""

import math
from dataclasses import fields

import pytest
import torch

import pzobo
from pzobo.diagnosis.flat import Flat
from pzobo.errors import OptionError
from pzobo.problems import quadratic
from pzobo.theory import (
    P_3,
    P_4,
    Constants,
    bias_bound,
    constants,
    hypergradient_bound,
    hypergradient_lipschitz,
    jacobian_lipschitz,
    logistic,
    response_bound,
    theorem_1,
    theorem_beta,
    theorem_mu,
    variance_bound,
)

sympy = pytest.importorskip("sympy")

C = Constants(L_f=0.7, L_g=3.0, mu_g=0.8, rho=0.4, tau=0.3, M=0.5, D=2.0, sigma=0.0, p=5, d=4)


def test_the_polynomials_from_the_moments():
    """E|g|^2 - |h_mu'|^2 with Lemma 3, where |h_mu'|^2 <= 2 |h'|^2 + 2 (mu/2 L (p + 3)^(3/2))^2."""
    p, s = sympy.symbols("p s")  # s = mu^2 L^2
    slope2 = sympy.Symbol("slope2")
    smoothed = 2 * slope2 + 2 * s / 4 * (p + 3) ** 3
    one = sympy.expand((4 * (p + 4) - 1) * smoothed + sympy.Rational(3, 2) * s * (p + 5) ** 3)
    four = one.coeff(s)
    assert sympy.Poly(four, p).degree() == 4
    assert sympy.simplify(one.coeff(slope2) - 2 * (4 * p + 15)) == 0
    for n in (1, 2, 7, 100):
        assert P_4(n) == pytest.approx(float(four.subs(p, n)))
        assert P_3(n) == pytest.approx(float(smoothed.coeff(s).subs(p, n)))


@pytest.mark.parametrize(("N", "Q", "mu", "alpha"), [(1, 1, 0.0, 0.3), (7, 3, 0.1, 0.2), (40, 20, 1e-3, 1 / 3)])
def test_proposition_2_is_the_sum_of_its_parts(N, Q, mu, alpha):
    """The proof's own inequalities, one after another, in place of its last line."""
    q, L_J = 1 - alpha * C.mu_g, jacobian_lipschitz(C)
    apart = q**N * C.D**2  # |y^N - y*|^2
    noise = (2 * (4 * C.p + 15) * C.kappa**2 + mu**2 * L_J**2 * C.d * P_4(C.p)) / Q
    jacobian = (
        2 * C.kappa**2 * q ** (2 * N) + 4 * (C.tau * C.mu_g + C.L * C.rho) ** 2 / C.mu_g**4 * q ** (N - 1) * C.D**2
    )
    smoothing = mu**2 / 2 * L_J**2 * C.d * (C.p + 3) ** 3
    indirect = 2 * C.kappa**2 * C.L**2 * apart + 2 * C.M**2 * 3 * (noise + jacobian + smoothing)
    expected = 2 * C.L**2 * apart + 2 * indirect
    found = variance_bound(C, N=N, Q=Q, mu=mu, alpha=alpha)
    assert found.total == pytest.approx(expected, rel=1e-12)
    assert found.total == pytest.approx(sum(found.as_dict().values()))
    printed = variance_bound(C, N=N, Q=Q, mu=mu, alpha=alpha, printed=True)
    assert printed.smoothing_noise * 12 == pytest.approx(found.smoothing_noise)


def test_the_terms_scale_as_the_proposition_says():
    base = variance_bound(C, N=10, Q=2, mu=0.1)
    twice = {
        "Q": variance_bound(C, N=10, Q=4, mu=0.1),
        "mu": variance_bound(C, N=10, Q=2, mu=0.2),
    }
    assert base.directions / twice["Q"].directions == pytest.approx(2)
    assert twice["mu"].smoothing_bias / base.smoothing_bias == pytest.approx(4)
    assert len(fields(base)) == 7


def test_lemma_2_by_the_product_rule():
    """grad Phi = f_x + J^T f_y along x -> (x, y*(x)), which moves by 1 + kappa; and J* by L_J."""
    L, m, rho, tau, M = sympy.symbols("L mu rho tau M", positive=True)
    move = 1 + L / m
    expanded = sympy.expand(L * move + L / m * L * move + M * move * (tau / m + rho * L / m**2))
    values = {L: C.L, m: C.mu_g, rho: C.rho, tau: C.tau, M: C.M}
    assert hypergradient_lipschitz(C) == pytest.approx(float(expanded.subs(values)))
    short = hypergradient_lipschitz(C) - hypergradient_lipschitz(C, printed=True)
    assert short == pytest.approx(C.tau * (C.M - C.M**2) / C.mu_g)
    assert short > 0  # what is printed is too small for M < 1


def test_proposition_1_sums_its_series():
    """alpha^2 L rho (1 + kappa) sum m q^(m-1) + alpha tau (1 + kappa) sum q^m, for ever."""
    alpha = 0.25
    q = 1 - alpha * C.mu_g
    series = sum(alpha**2 * C.L * C.rho * m * q ** (m - 1) + alpha * C.tau * q**m for m in range(500))
    assert jacobian_lipschitz(C) == pytest.approx((1 + C.kappa) * series, rel=1e-9)


def test_the_frobenius_slip():
    """g = |y - x|^2 / 2: the Frobenius norm of dy*/dx = I outgrows L / mu_g, the operator norm does not."""
    d = 9
    A, B = torch.eye(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)
    H = torch.cat([torch.cat([A, -B], 1), torch.cat([-B, A], 1)])
    L = float(torch.linalg.matrix_norm(H, 2))
    c = Constants(L_f=1.0, L_g=L, mu_g=1.0, rho=0.0, tau=0.0, M=1.0, D=1.0, sigma=0.0, p=d, d=d)
    J = torch.linalg.solve(A, B)
    assert J.norm() > response_bound(c)
    assert J.norm() <= response_bound(c, frobenius=True)
    assert torch.linalg.matrix_norm(J, 2) <= response_bound(c)


def test_lemma_8_by_its_triangle():
    N, mu, alpha = 6, 0.02, 0.3
    q = 1 - alpha * C.mu_g
    apart = q ** (N / 2) * C.D
    jacobian = q**N * C.kappa + 2 * (C.tau * C.mu_g + C.L * C.rho) / C.mu_g**2 * q ** ((N - 1) / 2) * C.D
    smoothing = mu / 2 * jacobian_lipschitz(C) * math.sqrt(C.d) * (C.p + 3) ** 1.5
    expected = C.L * apart + C.M * (jacobian + smoothing) + C.kappa * C.L * apart
    assert bias_bound(C, N=N, mu=mu, alpha=alpha).total == pytest.approx(expected)


def test_theorem_1_solves_its_own_recursion():
    """Sum E_{k+1} = E_k - beta (1 - L beta) G + beta M_Phi b + beta^2 L v over K steps down to Phi*, solved for G."""
    G, K, L, gap, bias, var = sympy.symbols("G K L gap bias var", positive=True)
    beta = 1 / (L * sympy.sqrt(K))
    (solved,) = sympy.solve(gap - K * beta * (1 - L * beta) * G + K * beta * bias + K * beta**2 * L * var, G)
    left = sympy.simplify((1 - 1 / sympy.sqrt(K)) * solved)
    k, N, phi_gap = 400, 30, 1.7
    L_Phi, mu = hypergradient_lipschitz(C), theorem_mu(C, k)
    b = hypergradient_bound(C) * bias_bound(C, N=N, mu=mu).total
    v = variance_bound(C, N=N, Q=3, mu=mu).total
    expected = float(left.subs({K: k, L: L_Phi, gap: phi_gap, bias: b, var: v}))
    assert theorem_1(C, K=k, N=N, gap=phi_gap, Q=3).total == pytest.approx(expected, rel=1e-9)
    assert theorem_beta(C, k) == pytest.approx(1 / (L_Phi * 20))


@pytest.mark.parametrize(
    "problem", [quadratic(3, 4), logistic(3, 4, gamma=0.4, scale=2.0)], ids=["quadratic", "logistic"]
)
def test_norms_of_the_path_are_within_the_lemmas(problem):
    c, flat = constants(problem), Flat(problem)
    for N in (1, 5, 30):
        J = flat.response(pzobo.GD(lr=1 / c.L, steps=N), pzobo.Unrolled())
        assert torch.linalg.matrix_norm(J, 2) <= response_bound(c)
    assert problem.hypergradient(flat.x).norm() <= hypergradient_bound(c)


def test_bad_arguments():
    for bad in ({"N": 0}, {"Q": 0}, {"mu": -1.0}):
        with pytest.raises(OptionError):
            variance_bound(C, **({"N": 1, "Q": 1, "mu": 0.1} | bad))
