"""Propositions 3 and 4, Lemma 9 and Theorem 2: their recursions run, and the slips of the printed ones shown."""

import math

import pytest
import torch

import pzobo
from pzobo.diagnosis.flat import Flat
from pzobo.errors import OptionError
from pzobo.theory import (
    P_3,
    P_4,
    Constants,
    hypergradient_bound,
    hypergradient_lipschitz,
    iterate_error_bound,
    jacobian_error_bound,
    jacobian_lipschitz,
    recursion,
    stochastic_bias_bound,
    stochastic_variance_bound,
    theorem_2,
    theorem_mu,
)

sympy = pytest.importorskip("sympy")

C = Constants(L_f=0.7, L_g=3.0, mu_g=0.8, rho=0.4, tau=0.3, M=0.5, D=2.0, sigma=0.6, p=5, d=4)


def test_the_constants_by_expanding_the_square():
    """(q a + alpha b + alpha kappa c)^2 with ab <= a^2/2g + g b^2/2, ac alike, and bc <= (b^2 + c^2)/2."""
    a, b, c, q, alpha, k, g = sympy.symbols("a b c q alpha kappa gamma", positive=True)
    square = sympy.Poly(sympy.expand((q * a + alpha * b + alpha * k * c) ** 2), a, b, c)
    of = square.coeff_monomial
    ab, ac, bc = of(a * b), of(a * c), of(b * c)
    bound = {
        "C_gamma": of(a**2) + (ab + ac) / (2 * g),
        "C_xy": of(b**2) + ab * g / 2 + bc / 2,
        "C_y": of(c**2) + ac * g / 2 + bc / 2,
    }
    found = recursion(C, S=3, gamma=9.0)
    values = {q: 1 - C.alpha * C.mu_g, alpha: C.alpha, k: C.kappa, g: 9.0}
    for name, expression in bound.items():
        assert getattr(found, name) == pytest.approx(float(expression.subs(values)), rel=1e-12)


def test_the_least_gamma_makes_the_contraction_q():
    assert recursion(C, S=1).C_gamma == pytest.approx(1 - C.alpha * C.mu_g)
    assert recursion(C, S=1, gamma=50.0).C_gamma < 1 - C.alpha * C.mu_g
    with pytest.raises(OptionError, match="gamma"):
        recursion(C, S=1, gamma=1.0)


@pytest.mark.parametrize("gamma", [None, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("N", [1, 2, 5, 20, 60])
def test_proposition_3_bounds_its_recursion(gamma, N):
    r, q = recursion(C, S=4, gamma=gamma), 1 - C.alpha * C.mu_g
    error = C.rank * C.kappa**2
    for t in range(N):
        error = r.C_gamma * error + r.lam * q ** (2 * t) + r.Gamma
    assert error <= jacobian_error_bound(C, N=N, S=4, gamma=gamma).total * (1 + 1e-12)


def test_the_printed_fraction_fails_for_a_larger_gamma():
    """Without noise, and with a response that is all drift: the printed middle term is below its own recursion."""
    gamma, N = 100.0, 30
    r, q = recursion(C, S=10**9, gamma=gamma, printed=True), 1 - C.alpha * C.mu_g
    drift = sum(r.lam * q ** (2 * t) * r.C_gamma ** (N - 1 - t) for t in range(N))
    assert drift > jacobian_error_bound(C, N=N, S=10**9, gamma=gamma, printed=True).drift
    assert drift <= jacobian_error_bound(C, N=N, S=10**9, gamma=gamma).drift


def test_the_printed_proposition_fails_in_the_frobenius_norm():
    """g = |y|^2 / 2 - <x, y> with 20 variables: |J_1 - J*|_F^2 = (1 - alpha)^2 d, beyond the printed bound."""
    d = 20
    eye = torch.eye(d, dtype=torch.float64)
    problem = pzobo.Problem(
        lambda x, y, b: 0.5 * y @ y - x @ y, lambda x, y, b: y.sum(), torch.ones(d).double(), torch.zeros(d).double()
    )
    L = (1 + math.sqrt(5)) / 2  # the norm of [[0, -I], [-I, I]]
    c = Constants(L_f=0.0, L_g=L, mu_g=1.0, rho=0.0, tau=0.0, M=1.0, D=5.0, sigma=0.0, p=d, d=d)
    J = Flat(problem).response(pzobo.GD(lr=c.alpha, steps=1), pzobo.Unrolled())
    error = float((J - eye).square().sum())
    large = 10**9
    assert error > jacobian_error_bound(c, N=1, S=large, printed=True).total
    assert error <= jacobian_error_bound(c, N=1, S=large).total


def test_the_printed_variance_of_batches_fails_in_the_frobenius_norm():
    """Samples y^T (A_i y / 2 - B_i x) with A_i, B_i = ± an orthogonal matrix: |B_i| = 1, but E|B_i|_F^2 = d."""
    d, S = 30, 2
    c = Constants(L_f=0.0, L_g=1.0, mu_g=0.5, rho=0.0, tau=0.0, M=1.0, D=1.0, sigma=0.0, p=d, d=d)
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(200, d, d, generator=generator))
    batches = Q[torch.randint(200, (2000, S), generator=generator)]
    signs = torch.randint(0, 2, (2000, S, 1, 1), generator=generator) * 2 - 1
    spread = float((batches * signs).mean(1).square().sum((1, 2)).mean())
    assert spread == pytest.approx(d / S, rel=0.05)
    r = recursion(c, S=S)
    # Proposition 3 doubles each deviation, of d2g/dx dy and of d2g/dy2.
    assert r.Gamma == pytest.approx(2 * (r.C_xy + r.C_y) * spread, rel=0.05)
    assert recursion(c, S=S, printed=True).Gamma < 2 * (r.C_xy + r.C_y) * spread / 20


def test_the_floor_of_sgd():
    """The fixed point of e <- q^2 e + alpha^2 sigma^2 / S is sigma^2 / (mu_g L S)."""
    L, m, s2, e = sympy.symbols("L mu s2 e", positive=True)
    q, alpha = (L - m) / (L + m), 2 / (L + m)
    (floor,) = sympy.solve(q**2 * e + alpha**2 * s2 - e, e)
    assert sympy.simplify(floor - s2 / (m * L)) == 0
    assert iterate_error_bound(C, N=10_000, S=5) == pytest.approx(C.sigma**2 / 5 / (C.mu_g * C.L))


def test_lemma_9_and_proposition_4_are_the_sums_of_their_parts():
    N, Q, S, D_f, mu = 6, 3, 4, 5, 0.05
    L_J = jacobian_lipschitz(C)
    smooth = mu**2 / 2 * L_J**2 * C.d * (C.p + 3) ** 3
    jacobian, apart = jacobian_error_bound(C, N=N, S=S).total, iterate_error_bound(C, N=N, S=S)
    # |a + b|^2 <= 2|a|^2 + 2|b|^2, the second split again, and J_mu - J* once more.
    bias = 2 * C.L**2 * apart + 2 * (2 * C.M**2 * 2 * (smooth + jacobian) + 2 * C.kappa**2 * C.L**2 * apart)
    assert stochastic_bias_bound(C, N=N, S=S, mu=mu).total == pytest.approx(bias, rel=1e-12)
    noise = (2 * (4 * C.p + 15) * C.kappa**2 + mu**2 * C.d * L_J**2 * P_4(C.p)) / Q
    spread = C.M**2 / D_f
    smoothed = 2 * C.kappa**2 + mu**2 * C.d * L_J**2 * P_3(C.p)
    delta = 2 * spread + 2 * (2 * (C.M**2 + spread) * noise + 2 * smoothed * spread)
    found = stochastic_variance_bound(C, N=N, Q=Q, mu=mu, S=S, D_f=D_f)
    assert found.delta == pytest.approx(delta, rel=1e-12)
    assert found.total == pytest.approx(delta + bias, rel=1e-12)


def test_theorem_2_from_its_parts():
    K, N, S = 100, 20, 7
    mu = theorem_mu(C, K)
    error = stochastic_variance_bound(C, N=N, Q=2, mu=mu, S=S, D_f=3)
    expected = (hypergradient_lipschitz(C) * 1.3 + error.total) / 10 + hypergradient_bound(C) * math.sqrt(error.bias)
    assert theorem_2(C, K=K, N=N, gap=1.3, S=S, D_f=3, Q=2).total == pytest.approx(expected, rel=1e-12)


def test_a_perfectly_conditioned_problem():
    c = Constants(L_f=0.0, L_g=2.0, mu_g=2.0, rho=0.1, tau=0.1, M=1.0, D=1.0, sigma=0.0, p=2, d=2)
    assert jacobian_error_bound(c, N=1, S=1).drift == recursion(c, S=1).lam
    assert jacobian_error_bound(c, N=2, S=1).drift == 0.0


def test_bad_arguments():
    for bad in ({"S": 0}, {"D_f": 0}, {"N": 0}):
        with pytest.raises(OptionError):
            stochastic_variance_bound(C, **({"N": 1, "Q": 1, "mu": 0.1, "S": 1, "D_f": 1} | bad))
