"""The exact laws: Gaussian moments, the error of one Gaussian direction, and the sharp bounds."""

import math

import pytest
import torch

import pzobo
from pzobo.errors import OptionError
from pzobo.theory import Constants, sharp, variance_bound

sympy = pytest.importorskip("sympy")

C = Constants(L_f=1.0, L_g=2.0, mu_g=1.0, rho=0.5, tau=0.5, M=1.0, D=1.0, sigma=0.0, p=3, d=4)


@pytest.mark.parametrize("p", [1, 2, 3, 6])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_gaussian_moments_by_integration(p, k):
    r = sympy.Symbol("r", positive=True)
    density = r ** (p - 1) * sympy.exp(-(r**2) / 2)
    moment = sympy.integrate(r**k * density, (r, 0, sympy.oo)) / sympy.integrate(density, (r, 0, sympy.oo))
    assert sharp.gaussian_moment(p, k) == pytest.approx(float(moment), rel=1e-12)
    assert sharp.gaussian_moment(p, 6) == pytest.approx(p * (p + 2) * (p + 4))
    assert sharp.gaussian_moment(p, 3) <= (p + 3) ** 1.5  # as in Lemma 3


@pytest.mark.parametrize("p", [2, 3])
def test_the_mean_squared_error_of_one_gaussian_direction(p):
    """E |(<a, u> u - a)|^2 = (p + 1) |a|^2, from the moments 1, 3 of each coordinate."""
    u, a = sympy.symbols(f"u:{p}"), sympy.symbols(f"a:{p}")
    inner = sum(x * y for x, y in zip(a, u, strict=True))
    error = sympy.Poly(sympy.expand(sum((inner * ui - ai) ** 2 for ui, ai in zip(u, a, strict=True))), *u)
    moments = {0: 1, 2: 1, 4: 3}
    mean = sum(c * math.prod(moments.get(e, 0) for e in powers) for powers, c in error.terms())
    assert sympy.simplify(mean - (p + 1) * sum(x**2 for x in a)) == 0


def test_the_zeroth_order_error_bounds_a_quadratic_and_is_exact_without_mu():
    """h = <b, x> + |x|^2 / 2 has L_h = 1, and its second difference is the largest that the bound allows."""
    p, Q, b = 3, 2, torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(20_000, Q, p, generator=generator, dtype=torch.float64)
    for mu in (0.0, 0.01, 0.1, 1.0):
        slope = u @ b + mu / 2 * u.square().sum(-1)
        errors = ((slope[..., None] * u).mean(1) - b).square().sum(1)
        measured, stderr = float(errors.mean()), float(errors.std()) / math.sqrt(len(errors))
        bound = sharp.zeroth_order_error(p, Q, mu, slope=float(b.norm()), curvature=1.0) ** 2
        assert measured <= bound + 4 * stderr
        if mu == 0:
            assert measured == pytest.approx(bound, abs=4 * stderr)
        if mu == 1.0:  # the noise of mu alone is within a factor of the bound: E u|u|^2 = 0 is all that is lost
            assert measured > 0.2 * bound


@pytest.mark.parametrize("Q", [1, 3, 50])
def test_the_zeroth_order_error_is_attained(Q):
    """h = x|x|/2 at 0 has L_h = 1 and the difference mu/2 u|u|, so that its error is mu/2 mean_j |u_j|^3."""
    u = torch.randn(40_000 // Q, Q, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    errors = (0.5 * u.abs() ** 3).mean(1).square()
    bound = sharp.zeroth_order_error(1, Q, 1.0, slope=0.0, curvature=1.0) ** 2
    assert float(errors.mean()) == pytest.approx(bound, abs=4 * float(errors.std()) / math.sqrt(len(errors)))


def constants(**change):
    base = {
        "L_f": 0.7,
        "L_g": 3.0,
        "mu_g": 0.8,
        "rho": 0.4,
        "tau": 0.3,
        "M": 1.5,
        "D": 2.0,
        "sigma": 0.0,
        "p": 5,
        "d": 4,
    }
    return Constants(**(base | change))


@pytest.mark.parametrize("N", [1, 3, 10, 40])
def test_the_path_error_is_the_worst_case_of_its_recursion(N):
    c, alpha = constants(), 0.3
    q, e, distance = 1 - alpha * c.mu_g, c.kappa, c.D
    for _ in range(N):
        e, distance = q * e + alpha * (c.tau + c.rho * c.kappa) * distance, q * distance
    assert sharp.jacobian_error(c, N=N, alpha=alpha) == pytest.approx(e, rel=1e-12)
    expected = math.hypot(1, c.kappa) * c.L_f * distance + c.M * e
    assert sharp.path_error(c, N=N, alpha=alpha) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mu", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("Q", [1, 100])
@pytest.mark.parametrize("N", [5, 50])
def test_sharp_is_below_the_paper(mu, Q, N):
    for c in (constants(), constants(p=50, d=1), constants(rho=0.0, tau=0.0), constants(L_f=9.0, mu_g=0.1)):
        assert sharp.variance_bound(c, N=N, Q=Q, mu=mu) < variance_bound(c, N=N, Q=Q, mu=mu).total


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (sharp.gaussian_moment, {"p": 3, "k": 2}),
        (sharp.jacobian_error, {"c": C, "N": 3}),
        (sharp.path_error, {"c": C, "N": 3}),
        (sharp.zeroth_order_error, {"p": 3, "Q": 2, "mu": 0.1, "slope": 1.0, "curvature": 1.0}),
        (sharp.variance_bound, {"c": C, "N": 3, "Q": 2, "mu": 0.1}),
        (sharp.bias_bound, {"c": C, "N": 3, "mu": 0.1}),
        (sharp.linear_error, {"sampler": pzobo.Gaussian(), "p": 3, "Q": 2}),
        (sharp.directions_needed, {"sampler": pzobo.Gaussian(), "p": 3, "error": 0.1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_settings_that_make_no_sense(function, options):
    assert math.isfinite(function(**options))
    for name, value in options.items():
        if isinstance(value, int):
            wrong = [-1, 1.5, math.nan, "3", None] + ([] if name == "k" else [0])
        elif isinstance(value, float):
            wrong = [-1.0, math.nan, math.inf, "x", None]
        else:
            continue
        for bad in wrong:
            if name == "k" and bad == 1.5:
                continue  # a moment of any order exists
            with pytest.raises(OptionError, match=f"{name}="):
                function(**{**options, name: bad})
