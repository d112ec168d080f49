"""Does every response Jacobian meet the closed-form hypergradient of a strongly convex quadratic?"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.problems import quadratic

P, D, STEPS, RATE = 30, 20, 150, 0.25

EXACT_ONES = {
    "implicit exact": pzobo.Implicit(pzobo.Exact()),
    "implicit cg": pzobo.Implicit(pzobo.CG(steps=50, tol=1e-12)),
    "implicit fixed point": pzobo.Implicit(pzobo.FixedPoint(steps=150)),
    "implicit fixed point, own rate": pzobo.Implicit(pzobo.FixedPoint(steps=150, lr=0.2)),
    "implicit neumann": pzobo.Implicit(pzobo.Neumann(step=RATE, terms=150)),
    "unrolled": pzobo.Unrolled(),
    "unrolled, checkpointed": pzobo.Unrolled(checkpoint=True),
    "unrolled, in host memory": pzobo.Unrolled(offload=True),
    "nudged": pzobo.Nudged(eps=1e-2, steps=150),
    "nudged one way": pzobo.Nudged(eps=1e-2, steps=150, symmetric=False),
    "forward, all directions": pzobo.ForwardMode(directions=P, sampler=pzobo.Orthogonal()),
    "pzobo, all directions": pzobo.PZOBO(mu=1e-2, directions=P, sampler=pzobo.Orthogonal()),
    "pzobo, all coordinates": pzobo.PZOBO(mu=1e-2, directions=P, sampler=pzobo.Coordinate()),
    "pzobo, both ways": pzobo.PZOBO(mu=1e-2, directions=P, sampler=pzobo.Orthogonal(), antithetic=True),
}
DIFFERENCES = {
    "implicit cg": pzobo.Implicit(pzobo.CG(steps=50), products="difference"),
    "implicit fixed point": pzobo.Implicit(pzobo.FixedPoint(steps=150), products="difference"),
    "implicit neumann": pzobo.Implicit(pzobo.Neumann(step=RATE, terms=150), products="difference"),
    "implicit exact": pzobo.Implicit(pzobo.Exact(), products="difference"),
    "unrolled": pzobo.Unrolled(products="difference"),
}
SOLVERS = {
    "gd": pzobo.GD(lr=RATE, steps=STEPS),
    "heavy ball": pzobo.HeavyBall(lr=0.2, momentum=0.5, steps=STEPS),
}


def hypergradient(problem: pzobo.Problem, solver, jacobian, **options) -> Tensor:
    x = problem.start()
    problem.objective(problem.argmin(solver, jacobian, **options), x).backward()
    return x.grad


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("jacobian", (EXACT_ONES | {f"{k}, differences": v for k, v in DIFFERENCES.items()}).items())
def test_meets_the_closed_form(jacobian, solver):
    problem = quadratic(P, D)
    assert relative(hypergradient(problem, solver, jacobian[1]), problem.hypergradient(problem.x0)) < 1e-6


@pytest.mark.parametrize("jacobian", DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences_in_float32(jacobian):
    problem = quadratic(P, D, dtype=torch.float32)
    found = hypergradient(problem, SOLVERS["gd"], jacobian)
    assert found.dtype == torch.float32
    assert relative(found, problem.hypergradient(problem.x0)) < 1e-3


class OnceOnly(torch.autograd.Function):
    """y^T A y / 2 - y^T B x, whose backward can't be differentiated."""

    @staticmethod
    def forward(ctx, x, y, A, B):
        ctx.save_for_backward(x, y, A, B)
        return 0.5 * y @ (A @ y) - y @ (B @ x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, v):
        x, y, A, B = ctx.saved_tensors
        return -v * (B.T @ y), v * (A @ y - B @ x), None, None


@pytest.mark.parametrize("jacobian", DIFFERENCES.values(), ids=DIFFERENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_differences_without_a_double_backward(jacobian, dtype):
    problem = quadratic(P, D, dtype=dtype)
    x = problem.start()
    argmin = pzobo.Argmin(lambda x, y, b: OnceOnly.apply(x, y, *b), solver=SOLVERS["gd"], jacobian=jacobian)
    problem.outer_loss(x, argmin(x, problem.y0, problem.train), problem.val).backward()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-4
    assert relative(x.grad, problem.hypergradient(problem.x0)) < tolerance


def test_direct_is_the_direct_term_alone():
    problem = quadratic(P, D)
    found = hypergradient(problem, SOLVERS["gd"], pzobo.Direct())
    assert torch.equal(found, 0.1 * problem.x0)


def test_cg_that_converges_in_its_first_step_returns_its_answer():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    loss = lambda x, y, _: 1.5 * (y - x).square().sum()  # noqa: E731
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(lr=1 / 3, steps=1), jacobian=pzobo.Implicit(pzobo.CG(steps=20)))
    v = torch.arange(4.0, dtype=torch.float64)
    (argmin(x, torch.zeros(4, dtype=torch.float64)) @ v).backward()
    torch.testing.assert_close(x.grad, v)


def test_cg_stops_at_its_tolerance_and_at_its_steps():
    """Conjugate gradients are exact after d steps, better after more, and stop at a residual of tol |v|."""
    problem = quadratic(P, D, L_g=100.0)
    solver = pzobo.GD(lr=0.015, steps=2000)

    def error(**options) -> float:
        found = hypergradient(problem, solver, pzobo.Implicit(pzobo.CG(**options)))
        return relative(found, problem.hypergradient(problem.x0))

    few, more, all_of_them = (error(steps=steps, tol=0.0) for steps in (2, 8, D))
    assert few > more > 1e-2
    assert all_of_them < 1e-8
    loose, tight = error(steps=100, tol=1e-2), error(steps=100, tol=1e-10)
    assert 1e-6 < loose < 0.1
    assert tight < 1e-7


@pytest.mark.parametrize("jacobian", ["implicit cg", "unrolled", "nudged", "pzobo, all directions"])
def test_compiled_and_eager_agree(jacobian):
    # In float64: a difference of two paths multiplies their rounding by 1 / mu.
    problem = quadratic(P, D)
    solver = pzobo.HeavyBall(lr=0.2, momentum=0.5, steps=12)
    one = EXACT_ONES[jacobian]
    found = [hypergradient(problem, solver, one, compile=compile) for compile in (False, True)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    p=st.integers(1, 12),
    d=st.integers(1, 9),
    mu_g=st.floats(0.2, 2.0),
    condition=st.floats(1.0, 20.0),
    seed=st.integers(0, 2**20),
)
def test_any_quadratic(p: int, d: int, mu_g: float, condition: float, seed: int):
    """Random sizes, spectra and data: one of each family, against the closed form."""
    problem = quadratic(p, d, mu_g=mu_g, L_g=mu_g * condition, seed=seed)
    rate = 1 / (mu_g * condition)
    steps = int(20 * condition) + 5
    solver = pzobo.GD(lr=rate, steps=steps)
    expected = problem.hypergradient(problem.x0)
    for jacobian in (
        pzobo.Implicit(pzobo.CG(steps=d + 2, tol=1e-12)),
        pzobo.Implicit(pzobo.FixedPoint(steps=steps)),
        pzobo.Unrolled(products="difference"),
        pzobo.Nudged(eps=1e-2, steps=steps),
        pzobo.PZOBO(mu=1e-2, directions=p, sampler=pzobo.Orthogonal(seed=seed)),
    ):
        found = hypergradient(problem, solver, jacobian)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.norm()) + 1e-7)
