"""Do the bounds on PZOBO hold, with the slopes they claim? Grids of Q, p, d, N, mu and K, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pzobo.diagnosis.exact_hypergradient import length, reference
from pzobo.diagnosis.flat import Flat, curvature
from pzobo.diagnosis.lanczos import spectrum
from pzobo.diagnosis.suggestion import outer_smoothness
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.outer.problem import Problem
from pzobo.problems.quadratic_problem import quadratic
from pzobo.solvers import GD
from pzobo.theory import deterministic, sharp
from pzobo.theory.assumptions import Constants
from pzobo.theory.closed_form import constants
from pzobo.theory.logistic_problem import logistic
from pzobo.theory.measurements import Point, Sweep
from pzobo.zeroth_order.directions import Gaussian, Orthogonal

Gradient = Callable[[Tensor], Tensor]

Maker = Callable[[int, int], Problem]
"""A problem with p outer and d inner variables."""


def _quadratic(p: int, d: int) -> Problem:
    return quadratic(p, d, mu_g=1.0, L_g=2.0)


def _logistic(p: int, d: int) -> Problem:
    return logistic(p, d, gamma=0.5, scale=2.0)


PROBLEMS: dict[str, Maker] = {"quadratic": _quadratic, "logistic": _logistic}


ERROR = "E|estimate - ∇Φ|²"

STEPS = 16
"""Inner steps after which what the path leaves is far below any noise measured here."""


@dataclass(frozen=True)
class Grid:
    """How much to measure.

    Args:
        draws: how many estimates a mean is taken of. Some checks take a multiple or a part of it.
        Q: numbers of directions.
        p: numbers of outer variables.
        d: numbers of inner variables.
        N: numbers of inner steps.
        mu: lengths of the perturbation.
        K: numbers of outer steps.
        S: samples of an inner batch (PZOBO-S).
        D_f: samples of an outer batch (PZOBO-S).
        runs: how many outer loops are averaged for each K. One alone does not tell how noisy it is.

    Examples:
        >>> pzobo.theory.Grid.quick().draws < pzobo.theory.Grid().draws
        True
    """

    draws: int = 200
    Q: tuple[int, ...] = (1, 4, 16, 64, 256)
    p: tuple[int, ...] = (8, 16, 32, 64, 128)
    d: tuple[int, ...] = (4, 8, 16, 32)
    N: tuple[int, ...] = (2, 4, 8, 12, 16, 20, 24, 28)
    mu: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    K: tuple[int, ...] = (16, 64, 256, 1024)
    S: tuple[int, ...] = (1, 4, 16, 64)
    D_f: tuple[int, ...] = (1, 4, 16, 64)
    runs: int = 3

    @classmethod
    def quick(cls) -> Grid:
        """Enough to see every slope, from its two ends, in a minute or two."""
        return cls(
            draws=60, Q=(1, 8, 64), p=(8, 128), d=(4, 64), N=(4, 12, 20, 28), mu=(1e-5, 1e-4, 1e-2, 1e-1),
            K=(16, 160), S=(1, 64), D_f=(1, 64), runs=3,
        )  # fmt: skip


def mean(values: Iterable[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    t = torch.tensor(list(values), dtype=torch.float64)
    return float(t.mean()), float(t.std() / math.sqrt(len(t))) if len(t) > 1 else 0.0


def square(t: Tensor) -> float:
    return float(t.double().square().sum())


@dataclass(frozen=True)
class Case:
    """A problem with its constants, its exact hypergradient, and the step size of Theorem 1."""

    flat: Flat
    c: Constants
    truth: Tensor

    @classmethod
    def make(cls, name: str, p: int, d: int, problem: Problem | None = None) -> Case:
        flat = Flat(PROBLEMS[name](p, d) if problem is None else problem)
        return cls(flat, constants(flat.problem), reference(flat).gradient)

    def solver(self, N: int) -> GD:
        return GD(lr=1 / self.c.L, steps=N)

    def error(self, N: int, Q: int, mu: float, draws: int, seed: int = 0) -> tuple[float, float]:
        """E |estimate - grad Phi|^2 of the paper's estimate, by `draws` of them."""
        estimate = self.flat.estimator(
            self.solver(N), PZOBO(mu=mu, directions=Q, sampler=Gaussian(seed=seed), shrink=False, at="x")
        )
        return mean(square(estimate() - self.truth) for _ in range(draws))

    def point(self, value: float, N: int, Q: int, mu: float, draws: int, unit: float = 1.0) -> Point:
        """The measurement beside Proposition 2, all divided by `unit`."""
        measured, stderr = self.error(N, Q, mu, draws)
        bound = deterministic.variance_bound(self.c, N=N, Q=Q, mu=mu).total
        tight = sharp.variance_bound(self.c, N=N, Q=Q, mu=mu)
        return Point(value, measured / unit, stderr / unit, bound / unit, tight / unit)


def against_Q(name: str, grid: Grid) -> Sweep:
    """Proposition 2: the error falls as 1/Q."""
    case = Case.make(name, 8, 6)
    points = tuple(case.point(Q, STEPS, Q, 1e-5, max(40, int(3 * grid.draws / math.sqrt(Q)))) for Q in grid.Q)
    return Sweep("Proposition 2", ERROR, name, "Q", points, predicted=-1.0)


def against_size(name: str, grid: Grid, which: Literal["p", "d"]) -> Sweep:
    """Proposition 2: the error, relative to the indirect term, grows as p; and not with d, which the bound has."""
    points = []
    for size in grid.p if which == "p" else grid.d:
        case = Case.make(name, *((size, 6) if which == "p" else (8, size)))
        unit = square(reference(case.flat).indirect)
        points.append(case.point(size, STEPS, 2, 1e-3, 2 * grid.draws, unit))
    predicted = 1.0 if which == "p" else 0.0
    return Sweep("Proposition 2", ERROR + " / |Jᵀv|²", name, which, tuple(points), predicted=predicted, tolerance=0.15)


def against_N(name: str, grid: Grid) -> Sweep:
    """Lemma 8 without smoothing: the exact hypergradient of the path, squared, falls by (1 - alpha mu_g)^2 a step.

    mu_g is taken at y*, where the last steps are.
    """
    case = Case.make(name, 8, 6)
    y = reference(case.flat).y
    least = spectrum(curvature(lambda y: case.flat.g(case.flat.x, y), y), y).low
    points = []
    for N in grid.N:
        measured = square(case.flat.estimator(case.solver(N), Unrolled())() - case.truth)
        bound = deterministic.bias_bound(case.c, N=N, mu=0.0).total ** 2
        points.append(Point(N, measured, 0.0, bound, sharp.path_error(case.c, N=N) ** 2))
    return Sweep(
        "Lemma 8", "|∇Φ of the path - ∇Φ|²", name, "N", tuple(points), predicted=2 * math.log1p(-least / case.c.L),
        law="exponential", span=(-max(3, len(points) // 2), None),
    )  # fmt: skip


def against_mu(name: str, grid: Grid) -> list[Sweep]:
    """Proposition 2: flat while something else is larger, then mu^2.

    With Gaussian directions, their noise hides the error of mu at every mu that one would take. Q = p orthogonal
    directions have no noise, so the error of mu shows. A quadratic has none: its response is linear.
    """
    case = Case.make(name, 3, 6)
    noisy = tuple(case.point(mu, STEPS, 2, mu, grid.draws) for mu in grid.mu)
    sweeps = [Sweep("Proposition 2", ERROR, name, "mu (Gaussian)", noisy, predicted=0.0)]
    if name == "quadratic":
        return sweeps
    N, points = 16, []
    bend = sharp.jacobian_lipschitz(case.c) * case.c.M
    for mu in grid.mu:
        jacobian = PZOBO(mu=mu, directions=3, sampler=Orthogonal(seed=0), shrink=False, at="x")
        estimate = case.flat.estimator(case.solver(N), jacobian)
        measured, stderr = mean(square(estimate() - case.truth) for _ in range(10))
        bound = deterministic.variance_bound(case.c, N=N, Q=3, mu=mu).total
        points.append(Point(mu, measured, stderr, bound, (sharp.path_error(case.c, N=N) + mu / 2 * bend * 3) ** 2))
    for against, predicted, span in (("mu (Q = p), small", 0.0, (0, 2)), ("mu (Q = p), large", 2.0, (-2, None))):
        sweeps.append(Sweep("Proposition 2", ERROR, name, against, tuple(points), predicted, span=span))
    return sweeps


def descend(x: Tensor, exact: Gradient, estimate: Gradient, beta: float, K: int) -> tuple[float, float]:
    """The average of |grad Phi(x_k)|^2 over K outer steps, and the largest |x_k|: constants must hold that far."""
    total, furthest = 0.0, length(x)
    for _ in range(K):
        total += square(exact(x)) / K
        x = x - beta * estimate(x)
        furthest = max(furthest, length(x))
    return total, furthest


def steady(name: str) -> Problem:
    """A problem whose Phi is well-conditioned, so that its slope in K shows early."""
    return quadratic(3, 3, L_g=1.5) if name == "quadratic" else logistic(2, 3, 60, gamma=0.5, scale=4.0)


def against_K(name: str, grid: Grid) -> Sweep:
    """Theorem 1: the average squared gradient falls at least as 1/sqrt(K), for beta = 1/(L_Phi sqrt(K)).

    L_Phi is Phi's own curvature here: with Lemma 2's, a hundred times as large, the first decades of K would show none.
    """
    problem = steady(name)
    case = Case.make(name, 0, 0, problem)
    exact, Q = problem.hypergradient, 2
    assert exact is not None
    truth = reference(case.flat)
    smoothness = 1.1 * outer_smoothness(case.flat, truth, torch.Generator().manual_seed(0))
    gap = float(case.flat.f(case.flat.x, truth.y))  # Phi* is not negative
    points = []
    for K in grid.K:
        mu, beta = deterministic.theorem_mu(case.c, K), 1 / (smoothness * math.sqrt(K))
        averages, reach = [], 0.0
        for run in range(grid.runs):
            jacobian = PZOBO(mu=mu, directions=Q, sampler=Gaussian(seed=run), shrink=False, at="x")
            estimate = case.flat.estimator(case.solver(STEPS), jacobian)
            average, furthest = descend(case.flat.x, exact, estimate, beta, K)
            averages.append(average)
            reach = max(reach, furthest)
        c = constants(problem, radius=reach)
        bound = deterministic.theorem_1(c, K=K, N=STEPS, gap=gap, Q=Q, mu=mu, L_Phi=smoothness).total
        points.append(Point(K, *mean(averages), bound / (1 - K**-0.5)))
    return Sweep(
        "Theorem 1", "mean over k of |∇Φ(x_k)|²", name, "K", tuple(points), predicted=-0.5, at_most=True,
        span=(-2, None),
    )  # fmt: skip


def lipschitz(name: str, grid: Grid) -> list[Sweep]:
    """Proposition 1 and Lemma 2: how fast dy^N/dx and grad Phi change between two x, at growing distances."""
    case = Case.make(name, 3, 4)
    flat, exact = case.flat, case.flat.problem.hypergradient
    assert exact is not None
    generator = torch.Generator().manual_seed(0)
    J, slope = flat.response(case.solver(STEPS), Unrolled()), exact(flat.x)
    responses, slopes = [], []
    for distance in (0.01, 0.1, 1.0):
        steepest = [0.0, 0.0]
        for _ in range(max(5, grid.draws // 20)):
            u = torch.randn(flat.p, generator=generator, dtype=torch.float64)
            u = distance * u / torch.linalg.vector_norm(u)
            moved = Flat(flat.problem, x=flat.x + u).response(case.solver(STEPS), Unrolled())
            steepest[0] = max(steepest[0], math.sqrt(square(moved - J)) / distance)
            steepest[1] = max(steepest[1], math.sqrt(square(exact(flat.x + u) - slope)) / distance)
        L_J, L_Phi = deterministic.jacobian_lipschitz(case.c), deterministic.hypergradient_lipschitz(case.c)
        # Rounding of J is all that changes where L_J is 0.
        responses.append(Point(distance, steepest[0] if L_J else 0.0, 0.0, L_J, sharp.jacobian_lipschitz(case.c)))
        slopes.append(Point(distance, steepest[1], 0.0, L_Phi, sharp.hypergradient_lipschitz(case.c)))
    return [
        Sweep("Proposition 1", "|change of J_N| / distance", name, "distance", tuple(responses)),
        Sweep("Lemma 2", "|change of ∇Φ| / distance", name, "distance", tuple(slopes)),
    ]
