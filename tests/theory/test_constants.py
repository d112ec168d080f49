"""Constants: refused where they make no sense, exact where they are known, and valid where they are sampled."""

import dataclasses

import pytest
import torch
from torch.func import hessian

import pzobo
from pzobo.diagnosis.exact_hypergradient import newton, reference
from pzobo.diagnosis.flat import Flat, curvature, slope
from pzobo.diagnosis.lanczos import spectrum
from pzobo.errors import OptionError
from pzobo.problems import linear_hr, quadratic
from pzobo.theory import Constants, constants, estimate_constants, logistic, logistic_constants
from pzobo.theory.samples import quadratic_sum

GOOD = {
    "L_f": 1.0,
    "L_g": 4.0,
    "mu_g": 1.0,
    "rho": 0.5,
    "tau": 0.2,
    "M": 3.0,
    "D": 2.0,
    "sigma": 0.1,
    "p": 5,
    "d": 7,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mu_g": 0.0}, "strongly convex"),
        ({"L_g": 0.5}, "cannot be smaller"),
        ({"rho": -1.0}, "rho"),
        ({"M": float("nan")}, "M="),
        ({"p": 0}, "p="),
        ({"d": 2.0}, "d="),
        ({"uncertainty": {"kappa": 1.0}}, "kappa"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    with pytest.raises(OptionError, match=message):
        Constants(**(GOOD | change))


def test_derived():
    c = Constants(**GOOD)
    assert (c.L, c.kappa, c.rank, c.alpha) == (4.0, 4.0, 5, 0.4)
    assert dataclasses.replace(c, L_f=6.0).L == 6.0
    assert c.contraction(0.25) == 0.75
    assert not c.estimated
    with pytest.raises(OptionError, match="inner step size"):
        c.contraction(0.5)


def test_the_quadratic_against_its_written_out_hessian():
    problem = quadratic(5, 4, seed=3)
    flat = Flat(problem)
    w = torch.cat([flat.x, flat.y0])
    H = hessian(flat.joint(flat.g))(w)
    c = constants(problem, radius=2.0)
    eigenvalues = torch.linalg.eigvalsh(H)
    assert c.L_g == pytest.approx(float(eigenvalues.abs().max()), rel=1e-10)
    assert c.mu_g == pytest.approx(float(torch.linalg.eigvalsh(H[5:, 5:])[0]), rel=1e-10)
    assert c.L_f == pytest.approx(float(torch.linalg.eigvalsh(hessian(flat.joint(flat.f))(w)).max()), rel=1e-10)
    for seed in range(20):  # M and D on the ball
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x = 2.0 * x / x.norm()
        y = newton(lambda y, x=x: flat.g(x, y), flat.y0)
        assert y.norm() <= c.D
        assert slope(flat.joint(flat.f), torch.cat([x, y])).norm() <= c.M


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_logistic_constants_bound_every_pair_of_points(per_sample):
    problem = logistic(3, 4, 20, gamma=0.3, scale=3.0)
    flat, c = Flat(problem), logistic_constants(problem, 2.0, per_sample=per_sample)
    generator = torch.Generator().manual_seed(0)
    rows, B, gamma = problem.train
    batches = [(row[None], B, gamma) for row in rows[:4]] if per_sample else [problem.train]
    vals = [row[None] for row in problem.val[:4]] if per_sample else [problem.val]
    for batch, val in zip(batches, vals, strict=True):
        g, f = flat.joint(lambda x, y, b=batch: flat.g(x, y, b)), flat.joint(lambda x, y, v=val: flat.f(x, y, v))
        for _ in range(10):
            a, b = (2 * torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
            near = (a - b).norm()
            Ha, Hb = hessian(g)(a), hessian(g)(b)
            assert torch.linalg.matrix_norm(Ha, 2) <= c.L_g * (1 + 1e-12)
            assert torch.linalg.eigvalsh(Ha[3:, 3:])[0] >= c.mu_g * (1 - 1e-12)
            assert (Ha - Hb)[3:, 3:].norm() <= c.rho * near
            assert (Ha - Hb)[3:, :3].norm() <= c.tau * near + 1e-12
            assert (slope(f, a) - slope(f, b)).norm() <= c.L_f * near
            assert slope(f, a).norm() <= c.M
    if per_sample:
        slopes = [slope(flat.joint(lambda x, y, r=r: flat.g(x, y, (r[None], B, gamma))), a) for r in rows]
        deviations = torch.stack(slopes) - torch.stack(slopes).mean(0)
        assert deviations.square().sum(1).mean() <= c.sigma**2


def test_the_steepest_curvature_of_a_sigmoid():
    sympy = pytest.importorskip("sympy")
    from pzobo.theory.closed_form import SIGMOID_CURVATURE

    s = sympy.Symbol("s")
    second = s * (1 - s) * (1 - 2 * s)
    values = [abs(second.subs(s, root)) for root in sympy.solve(second.diff(s), s)]
    assert float(max(values)) == pytest.approx(SIGMOID_CURVATURE, rel=1e-12)


def test_rho_is_attained():
    """One sample, one weight: where the sigmoid is most curved, the Hessian changes as fast as rho says."""
    problem = logistic(1, 1, 1, scale=3.0)
    flat, c = Flat(problem), logistic_constants(problem, 1.0)
    s = (3 - 3**0.5) / 6
    y = torch.log(torch.tensor([s / (1 - s)], dtype=torch.float64)) / problem.train[0][0]
    H = [float(hessian(lambda y: flat.g(flat.x, y))(y + step)) for step in (-1e-4, 1e-4)]
    assert abs(H[1] - H[0]) / 2e-4 == pytest.approx(c.rho, rel=1e-4)


def test_samples_of_the_quadratic():
    problem = quadratic(3, 4, L_g=2.0)
    data = quadratic_sum(problem, 1.0)
    generator = torch.Generator().manual_seed(0)
    flat = Flat(problem)
    big = data.inner(20_000, generator)
    assert torch.allclose(big[0], problem.train[0], atol=0.02)
    for _ in range(20):
        one = data.inner(1, generator)
        H = hessian(flat.joint(lambda x, y, b=one: flat.g(x, y, b)))(torch.cat([flat.x, flat.y0]))
        assert torch.linalg.matrix_norm(H, 2) <= data.constants.L_g * (1 + 1e-12)
        assert torch.linalg.eigvalsh(H[3:, 3:])[0] >= data.constants.mu_g * (1 - 1e-12)


def test_extreme_eigenvalues():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(60, 60, generator=generator, dtype=torch.float64)
    A = A + A.T
    values = torch.linalg.eigvalsh(A)
    exact = spectrum(lambda q: A @ q, A[0], steps=60, generator=generator)
    assert (exact.low, exact.high) == pytest.approx((float(values[0]), float(values[-1])), rel=1e-9)
    rough = spectrum(lambda q: A @ q, A[0], steps=12, generator=generator)
    for found, error in ((rough.low, rough.low_error), (rough.high, rough.high_error)):
        assert (values - found).abs().min() <= error  # the residual is a bound
    assert values[0] <= rough.low <= rough.high <= values[-1]


def test_curvature_without_a_double_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, v):
            return 3 * ctx.saved_tensors[0] ** 2 * v

    at = torch.tensor([1.0, 2.0], dtype=torch.float64)
    product = curvature(lambda x: Cube.apply(x).sum(), at)
    assert torch.allclose(product(torch.tensor([1.0, -1.0], dtype=torch.float64)), 6 * at * torch.tensor([1.0, -1.0]))


def test_estimates_are_exact_for_a_quadratic_and_below_the_bounds_elsewhere():
    problem = quadratic(5, 4)
    found, exact = estimate_constants(problem, points=2, steps=60), constants(problem)
    assert found.estimated
    for name in ("L_f", "L_g", "mu_g"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-6)
    assert found.rho < 1e-8
    problem = logistic(3, 4, gamma=0.3, scale=3.0)
    found, exact = estimate_constants(problem, points=3, steps=60, radius=1.0), constants(problem, radius=4.0)
    for name in ("L_f", "L_g", "rho", "M", "D"):
        assert 0.02 * getattr(exact, name) < getattr(found, name) <= getattr(exact, name) * (1 + 1e-9)
    assert exact.mu_g * (1 - 1e-9) <= found.mu_g < 3 * exact.mu_g
    assert found.tau < 1e-8
    assert "sampled points" in found.region
    assert "±" in str(found)


def test_the_spread_of_batches_is_estimated():
    problem = logistic(2, 3, 30, gamma=0.5, scale=2.0)
    rows, B, gamma = problem.train
    singles = [(row[None], B, gamma) for row in rows]
    found = estimate_constants(problem, points=1, steps=20, batches=singles)
    flat = Flat(problem)
    slopes = torch.stack(
        [slope(flat.joint(lambda x, y, b=b: flat.g(x, y, b)), torch.cat([flat.x, flat.y0])) for b in singles]
    )
    assert found.sigma >= float((slopes - slopes.mean(0)).square().sum(1).mean().sqrt()) * 0.999
    assert found.sigma <= logistic_constants(problem, 1.0, per_sample=True).sigma * 1.1


def test_a_flat_problem_has_no_constants():
    problem = pzobo.Problem(
        lambda x, y, b: 0.5 * (y[0] - x[0]) ** 2, lambda x, y, b: y.sum(), torch.ones(2), torch.zeros(2)
    )
    with pytest.raises(OptionError, match="not strongly convex"):
        estimate_constants(problem, points=1, steps=5)


def test_other_problems_get_estimates_and_options_are_not_lost():
    assert constants(linear_hr(3, 4, 10), points=1, steps=10, radius=0.1).estimated
    with pytest.raises(OptionError, match="only for estimates"):
        constants(quadratic(2, 2), points=3)


def test_the_reference_is_the_known_hypergradient():
    for problem in (quadratic(6, 5), logistic(2, 2, gamma=0.2, scale=6.0)):
        flat = Flat(problem)
        found = reference(flat)
        assert found.solved
        assert torch.allclose(found.gradient, problem.hypergradient(flat.x), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pzobo.theory.theorem_1(Constants(**GOOD), K=0, N=5, gap=1.0), "K=0"),
        (lambda: pzobo.theory.iterate_error_bound(Constants(**GOOD), N=5, S=0), "S=0"),
        (lambda: pzobo.theory.stochastic_variance_bound(Constants(**GOOD), N=5, Q=0, mu=0.1, S=8, D_f=8), "Q=0"),
        (lambda: pzobo.theory.verify(checks=["no"]), "there is no 'no'"),
        (lambda: pzobo.theory.verify(problems=["no"]), "there is no 'no'"),
        (lambda: pzobo.theory.logistic(gamma=-1.0), "gamma=-1.0"),
        (lambda: pzobo.theory.logistic_constants(logistic(), radius=-1.0), "radius=-1.0"),
        (lambda: quadratic(mu_g=-1.0), "mu_g=-1.0"),
        (lambda: pzobo.Gaussian(seed="a"), "seed='a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_make_no_sense_are_a_sentence(call, name):
    with pytest.raises(OptionError, match=name):
        call()
