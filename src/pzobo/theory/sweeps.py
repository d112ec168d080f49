"""Do the bounds on PZOBO hold, with the slopes they claim? Grids of Q, p, d, N, mu and K, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.directions import Gaussian
from pzobo.jacobians.forward import ForwardMode
from pzobo.jacobians.unrolled import Unrolled
from pzobo.jacobians.zeroth_order import PZOBO
from pzobo.problem import Problem
from pzobo.problems.quadratic import quadratic
from pzobo.solvers import GD
from pzobo.theory import deterministic, sharp
from pzobo.theory.closed_form import constants
from pzobo.theory.constants import Constants
from pzobo.theory.flat import Flat, curvature
from pzobo.theory.logistic import logistic
from pzobo.theory.records import Point, Sweep
from pzobo.theory.reference import reference
from pzobo.theory.spectrum import spectrum
from pzobo.theory.suggest import outer_smoothness

Maker = Callable[[int, int], Problem]
"""A problem with p outer and d inner variables."""


def _quadratic(p: int, d: int) -> Problem:
    return quadratic(p, d, mu_g=1.0, L_g=2.0)


def _logistic(p: int, d: int) -> Problem:
    return logistic(p, d, gamma=0.5, scale=2.0)


PROBLEMS: dict[str, Maker] = {"quadratic": _quadratic, "logistic": _logistic}


@dataclass(frozen=True)
class Grid:
    """How much to measure."""

    draws: int = 200
    Q: tuple[int, ...] = (1, 4, 16, 64, 256)
    p: tuple[int, ...] = (8, 16, 32, 64, 128)
    d: tuple[int, ...] = (4, 8, 16, 32)
    N: tuple[int, ...] = (2, 4, 8, 12, 16, 20, 24, 28)
    mu: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 2.0, 4.0)
    K: tuple[int, ...] = (16, 64, 256, 1024)
    S: tuple[int, ...] = (1, 4, 16, 64)
    D_f: tuple[int, ...] = (1, 4, 16, 64)
    runs: int = 3

    @classmethod
    def quick(cls) -> Grid:
        """Enough to see every slope, in a few seconds."""
        return cls(
            draws=60, Q=(1, 8, 64), p=(8, 32, 128), d=(4, 16), N=(4, 12, 20, 28), mu=(1e-4, 1e-2, 1.0, 2.0, 4.0),
            K=(16, 64, 256), S=(1, 8, 64), D_f=(1, 8, 64), runs=2,
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
    def make(cls, name: str, p: int, d: int) -> Case:
        flat = Flat(PROBLEMS[name](p, d))
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
        """The measurement beside Proposition 2, both divided by `unit`."""
        measured, stderr = self.error(N, Q, mu, draws)
        bound = deterministic.variance_bound(self.c, N=N, Q=Q, mu=mu).total
        tight = sharp.variance_bound(self.c, N=N, Q=Q, mu=mu)
        return Point(value, measured / unit, stderr / unit, bound / unit, tight / unit)


def against_Q(name: str, grid: Grid) -> Sweep:
    """Proposition 2: the error falls as 1/Q."""
    case = Case.make(name, 8, 6)
    points = tuple(case.point(Q, 40, Q, 1e-5, max(20, grid.draws // max(1, Q // 16))) for Q in grid.Q)
    return Sweep("Proposition 2", "E|estimate - ∇Φ|²", name, "Q", points, predicted=-1.0)


def against_p(name: str, grid: Grid) -> Sweep:
    """Proposition 2: the error, relative to the indirect term's square, grows as p."""
    points = []
    for p in grid.p:
        case = Case.make(name, p, 6)
        points.append(case.point(p, 40, 4, 1e-5, grid.draws, unit=square(reference(case.flat).indirect)))
    return Sweep("Proposition 2", "E|estimate - ∇Φ|² / |Jᵀv|²", name, "p", tuple(points), predicted=1.0, tolerance=0.15)


def against_d(name: str, grid: Grid) -> Sweep:
    """Proposition 2 has a factor d that the estimate has not."""
    points = []
    for d in grid.d:
        case = Case.make(name, 8, d)
        points.append(case.point(d, 40, 4, 1e-2, grid.draws, unit=square(reference(case.flat).indirect)))
    return Sweep("Proposition 2", "E|estimate - ∇Φ|² / |Jᵀv|²", name, "d", tuple(points), predicted=0.0, tolerance=0.15)


def against_N(name: str, grid: Grid) -> Sweep:
    """Lemma 8 without smoothing: the exact hypergradient of the path, squared, falls by (1 - alpha mu_g)^2 a step."""
    case = Case.make(name, 8, 6)
    y = reference(case.flat).y
    least = spectrum(curvature(lambda y: case.flat.g(case.flat.x, y), y), y).low
    points = []
    for N in grid.N:
        measured = square(case.flat.estimator(case.solver(N), Unrolled())() - case.truth)
        bound = deterministic.bias_bound(case.c, N=N, mu=0.0).total ** 2
        points.append(Point(N, measured, 0.0, bound, sharp.path_error(case.c, N=N) ** 2))
    rate = 2 * math.log1p(-least / case.c.L)
    return Sweep(
        "Lemma 8", "|∇Φ of the path - ∇Φ|²", name, "N", tuple(points), predicted=rate, law="exponential",
        span=(-max(3, len(points) // 2), None),
    )  # fmt: skip


def against_mu(name: str, grid: Grid) -> tuple[Sweep, Sweep]:
    """Proposition 2: flat while the noise of directions is larger; and what smoothing adds to it, as mu^2."""
    case = Case.make(name, 3, 6)
    N, Q = 40, 64
    total, part = [], []
    for mu in grid.mu:
        total.append(case.point(mu, N, Q, mu, max(20, grid.draws // 4)))
        options = {"directions": Q, "shrink": False, "at": "x"}
        smooth = case.flat.estimator(case.solver(N), PZOBO(mu=mu, sampler=Gaussian(seed=1), **options))
        straight = case.flat.estimator(case.solver(N), ForwardMode(sampler=Gaussian(seed=1), **options))
        measured, stderr = mean(square(smooth() - straight()) for _ in range(max(10, grid.draws // 10)))
        terms = deterministic.variance_bound(case.c, N=N, Q=Q, mu=mu)
        tight = sharp.zeroth_order_error(3, Q, mu, slope=0.0, curvature=sharp.jacobian_lipschitz(case.c) * case.c.M)
        part.append(Point(mu, measured, stderr, terms.smoothing_noise + terms.smoothing_bias, tight**2))
    small = sum(mu <= 0.1 for mu in grid.mu)
    return (
        Sweep("Proposition 2", "E|estimate - ∇Φ|²", name, "mu, small", tuple(total), predicted=0.0, span=(0, small)),
        Sweep("Proposition 2", "what smoothing adds", name, "mu", tuple(part), predicted=2.0, span=(0, small)),
    )


def against_K(name: str, grid: Grid) -> Sweep:
    """Theorem 1: the average squared gradient falls at least as 1/sqrt(K), for beta = 1/(L_Phi sqrt(K))."""
    case = Case.make(name, 3, 3)
    problem, N, Q = case.flat.problem, 40, 1
    exact = problem.hypergradient
    assert exact is not None
    truth = reference(case.flat)
    smoothness = 1.1 * outer_smoothness(case.flat, truth, torch.Generator().manual_seed(0))
    gap = float(case.flat.f(case.flat.x, truth.y))  # Phi* is not negative
    points = []
    for K in grid.K:
        mu, beta = deterministic.theorem_mu(case.c, K), 1 / (smoothness * math.sqrt(K))
        averages = []
        for run in range(grid.runs):
            jacobian = PZOBO(mu=mu, directions=Q, sampler=Gaussian(seed=run), shrink=False, at="x")
            estimate, x, total = case.flat.estimator(case.solver(N), jacobian), case.flat.x, 0.0
            for _ in range(K):
                total += square(exact(x)) / K
                x = x - beta * estimate(x)
            averages.append((1 - K**-0.5) * total)
        measured, stderr = mean(averages)
        bound = deterministic.theorem_1(case.c, K=K, N=N, gap=gap, Q=Q, mu=mu, L_Phi=smoothness).total
        points.append(Point(K, measured, stderr, bound))
    return Sweep(
        "Theorem 1", "(1 - K^-½) mean |∇Φ(x_k)|²", name, "K", tuple(points), predicted=-0.5, at_most=True,
        span=(-2, None),
    )  # fmt: skip
