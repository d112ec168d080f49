"""Do the bounds on PZOBO-S hold, with the slopes they claim? Grids of S, D_f and K, measured on finite sums."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pzobo.diagnosis.exact_hypergradient import length, reference
from pzobo.diagnosis.flat import Flat, curvature
from pzobo.diagnosis.suggestion import outer_smoothness
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.outer.problem import Problem
from pzobo.problems.quadratic_problem import quadratic
from pzobo.solvers import GD
from pzobo.theory import deterministic, stochastic
from pzobo.theory.logistic_problem import logistic
from pzobo.theory.measurements import Point, Sweep
from pzobo.theory.samples import FiniteSum, logistic_sum, quadratic_sum
from pzobo.theory.sweeps import ERROR, Grid, descend, mean, square, steady
from pzobo.zeroth_order.directions import Gaussian

STEPS = 24


def small(name: str) -> Problem:
    return quadratic(2, 3, mu_g=1.0, L_g=2.0) if name == "quadratic" else logistic(2, 3, 60, gamma=0.5, scale=2.0)


def finite_sum(name: str, problem: Problem, radius: float | None = None) -> FiniteSum:
    """The problem with samples; constants hold for |x| <= radius, which is |x0| by default."""
    radius = length(problem.x0) if radius is None else radius
    return quadratic_sum(problem, radius) if name == "quadratic" else logistic_sum(problem, radius)


def exact_response(flat: Flat) -> Tensor:
    """dy*/dx = -H^-1 (d2g/dy dx), written out."""
    y = reference(flat).y
    joint = curvature(flat.joint(flat.g), torch.cat([flat.x, y]))
    hessian = torch.stack([joint(row) for row in torch.eye(flat.p + flat.d, dtype=y.dtype)])
    answer: Tensor = torch.linalg.solve(hessian[flat.p :, flat.p :], -hessian[flat.p :, : flat.p])
    return answer


def against_S(name: str, grid: Grid) -> list[Sweep]:
    """Proposition 3: the error of dY^N/dx falls as 1/S; and Proposition 4 holds along."""
    data = finite_sum(name, small(name))
    flat, c = Flat(data.problem), data.constants
    truth, J = reference(flat).gradient, exact_response(flat)
    solver = GD(lr=c.alpha, steps=STEPS)
    third, fourth = [], []
    estimate = flat.estimator(solver, PZOBO(mu=1e-4, directions=8, sampler=Gaussian(seed=0), shrink=False, at="x"))
    for S in grid.S:
        generator = torch.Generator().manual_seed(S)

        def batches(S: int = S, generator: torch.Generator = generator) -> list[object]:
            return [data.inner(S, generator) for _ in range(STEPS)]

        draws = max(20, grid.draws // 3)
        found = mean(square(flat.response(solver, Unrolled(), batches()) - J) for _ in range(draws))
        third.append(Point(S, *found, stochastic.jacobian_error_bound(c, N=STEPS, S=S).total))
        found = mean(square(estimate(batches=batches(), val=data.outer(8, generator)) - truth) for _ in range(draws))
        bound = stochastic.stochastic_variance_bound(c, N=STEPS, Q=8, mu=1e-4, S=S, D_f=8).total
        fourth.append(Point(S, *found, bound))
    return [
        Sweep("Proposition 3", "E|J_N - J*|²", name, "S", tuple(third), predicted=-1.0, tolerance=0.15),
        Sweep("Proposition 4", ERROR, name, "S", tuple(fourth)),
    ]


def against_D_f(name: str, grid: Grid) -> Sweep:
    """Proposition 4: what outer batches add falls as 1/D_f.

    Directions and inner batches are the same for every D_f, and with and without outer batches.
    """
    data = finite_sum(name, small(name))
    flat, c = Flat(data.problem), data.constants
    solver, Q = GD(lr=c.alpha, steps=STEPS), 8

    def fresh() -> Any:
        return flat.estimator(solver, PZOBO(mu=1e-4, directions=Q, sampler=Gaussian(seed=0), shrink=False, at="x"))

    inner, estimate = torch.Generator().manual_seed(0), fresh()
    paths = [[data.inner(8, inner) for _ in range(STEPS)] for _ in range(max(80, grid.draws // 2))]
    wholes = [estimate(batches=batches) for batches in paths]
    points = []
    for D_f in grid.D_f:
        generator, estimate = torch.Generator().manual_seed(D_f), fresh()
        parts = [estimate(batches=batches, val=data.outer(D_f, generator)) for batches in paths]
        errors = [square(part - whole) for part, whole in zip(parts, wholes, strict=True)]
        whole, rest = (
            stochastic.stochastic_variance_bound(c, N=STEPS, Q=Q, mu=1e-4, S=8, D_f=size).delta for size in (D_f, 2**62)
        )
        points.append(Point(D_f, *mean(errors), whole - rest))
    return Sweep("Proposition 4", "what outer batches add", name, "D_f", tuple(points), predicted=-1.0, tolerance=0.15)


def against_K(name: str, grid: Grid) -> Sweep:
    """Theorem 2: the average squared gradient falls at least as 1/sqrt(K), for S that grows as K."""
    data = finite_sum(name, steady(name))
    flat, c = Flat(data.problem), data.constants
    exact = data.problem.hypergradient
    assert exact is not None
    truth = reference(flat)
    smoothness = 1.1 * outer_smoothness(flat, truth, torch.Generator().manual_seed(0))
    gap = float(flat.f(flat.x, truth.y))
    points = []
    for K in grid.K:
        mu, beta = deterministic.theorem_mu(c, K), 1 / (smoothness * math.sqrt(K))
        averages, reach = [], 0.0
        for run in range(grid.runs):
            generator = torch.Generator().manual_seed(run)
            jacobian = PZOBO(mu=mu, directions=2, sampler=Gaussian(seed=run), shrink=False, at="x")
            estimate = flat.estimator(GD(lr=c.alpha, steps=STEPS), jacobian)

            def draw(x: Tensor, generator: torch.Generator = generator, estimate: Any = estimate, K: int = K) -> Tensor:
                batches = [data.inner(K, generator) for _ in range(STEPS)]
                found: Tensor = estimate(x, batches=batches, val=data.outer(4, generator))
                return found

            average, furthest = descend(flat.x, exact, draw, beta, K)
            averages.append(average)
            reach = max(reach, furthest)
        wide = finite_sum(name, data.problem, reach).constants
        bound = stochastic.theorem_2(wide, K=K, N=STEPS, gap=gap, S=K, D_f=4, Q=2, mu=mu, L_Phi=smoothness).total
        points.append(Point(K, *mean(averages), bound / (1 - K**-0.5)))
    return Sweep(
        "Theorem 2", "mean over k of |∇Φ(x_k)|²", name, "K", tuple(points), predicted=-0.5, at_most=True,
        span=(-2, None),
    )  # fmt: skip
