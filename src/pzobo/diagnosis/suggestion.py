"""Which N, Q, mu and step sizes should I take? Those that the theory's own terms ask for, measured at your x."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.diagnosis.best_mu import choose_mu
from pzobo.diagnosis.doubling import doubled
from pzobo.diagnosis.exact_hypergradient import Reference, length, reference
from pzobo.diagnosis.flat import Flat, curvature
from pzobo.diagnosis.lanczos import spectrum
from pzobo.errors import OptionError, RequirementError
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.outer.problem import Problem
from pzobo.solvers import GD
from pzobo.tensors.trees import Tree
from pzobo.zeroth_order.directions import Orthogonal, Sampler
from pzobo.zeroth_order.needed import directions_needed, linear_error

PATH_SHARE, MU_SHARE, SAFETY = 0.3, 0.3, 0.8
"""Shares of the target error: for the inner path, for mu, and for all together, with the directions. Squares add.

Directions get the largest share. To halve their error takes three times as many paths; to halve the others takes a few
inner steps, or nothing."""


@dataclass(frozen=True)
class Suggestion:
    """Settings of PZOBO for a relative error of the hypergradient, and why.

    Attributes:
        target: the relative error that was asked for.
        N: inner steps.
        Q: directions.
        mu: the length of the perturbation.
        antithetic: whether differences are central, which costs two paths for each direction.
        inner_lr: the inner step size.
        outer_lr: the outer step size.
        sampler: how the directions are drawn.
        path_error: what N inner steps leave, relative to the length of the hypergradient.
        mu_error: what smoothing and rounding add, in the same unit.
        direction_error: what Q directions add, in the same unit.
        reasons: a sentence or two for each setting.

    Examples:
        >>> good = pzobo.theory.suggest(pzobo.problems.quadratic(p=3, d=2), target=0.1)
        >>> good.solver(), good.Q
        (GD(lr=0.25, steps=13), 3)
    """

    target: float
    N: int
    Q: int
    mu: float
    antithetic: bool
    inner_lr: float
    outer_lr: float
    sampler: Sampler
    path_error: float
    mu_error: float
    direction_error: float
    reasons: tuple[str, ...]

    @property
    def predicted(self) -> float:
        """The root mean square error of the hypergradient, relative to its length."""
        return math.sqrt(self.path_error**2 + self.mu_error**2 + self.direction_error**2)

    def solver(self) -> GD:
        return GD(lr=self.inner_lr, steps=self.N)

    def jacobian(self) -> PZOBO:
        return PZOBO(mu=self.mu, directions=self.Q, sampler=self.sampler, antithetic=self.antithetic, at="x")

    def __str__(self) -> str:
        both = " (antithetic)" if self.antithetic else ""
        head = (
            f"N = {self.N}, Q = {self.Q}, mu = {self.mu:.2g}{both}, inner lr = {self.inner_lr:.3g}, outer lr = "
            f"{self.outer_lr:.3g}: predicted relative error {self.predicted:.2g} for a target of {self.target:g}."
        )
        return "\n".join([head, *(f"- {reason}" for reason in self.reasons)])


def suggest(
    problem: Problem,
    target: float = 0.1,
    *,
    x: Tree = None,
    y0: Tree = None,
    sampler: Sampler | None = None,
    max_steps: int = 20_000,
    seed: int = 0,
) -> Suggestion:
    """Settings with which PZOBO's hypergradient at x has a root mean square error of `target` times its length.

    The error has the three parts of Proposition 2: the inner path (N), the smoothing (mu), and the directions (Q). The
    bounds themselves ask for far more than is needed, so each part is measured here: N against the exact hypergradient,
    mu from the response's second difference and from the rounding of y^N in its dtype, and Q by the exact error of the
    sampler for a linear response. It costs a few times what one hypergradient costs.

    Args:
        problem: for which settings are wanted.
        target: the relative error, between 0 and 1.
        x: where, a tree like x0; the problem's own start by default.
        y0: where the inner path starts, a tree like y; the problem's own start by default.
        sampler: of the directions; `Orthogonal()` by default, which needs the fewest.
        max_steps: refuse if more inner steps than this were needed.
        seed: of everything that is drawn.

    Returns:
        A `Suggestion`: N, Q, mu and both learning rates, with reasons.

    Raises:
        OptionError: `target` is not between 0 and 1, or more than `max_steps` inner steps were needed.

    Examples:
        >>> good = pzobo.theory.suggest(pzobo.problems.quadratic(p=3, d=2), target=0.1)
        >>> good.N > 1, good.Q, good.antithetic
        (True, 3, False)
    """
    if not 0 < target < 1:
        raise OptionError(f"target={target!r}: a relative error between 0 and 1, such as 0.1.")
    flat = Flat(problem, x, y0)
    generator = torch.Generator().manual_seed(seed)
    sampler = Orthogonal() if sampler is None else sampler
    truth = reference(flat)
    if truth.norm == 0:
        raise OptionError("The hypergradient at x is zero: x is a stationary point, and there is nothing to estimate.")
    share = length(truth.indirect) / truth.norm

    low, high = inner_curvature(flat, truth.y, generator)
    rate = 1 / high
    N, path_error = _steps(flat, truth, rate, low, PATH_SHARE * target, max_steps)
    Q = directions_for(sampler, flat.p, target, share)
    solver = GD(lr=rate, steps=N)
    smooth = choose_mu(flat, solver, truth, sampler, Q, MU_SHARE * target, generator)
    left = math.sqrt(max((SAFETY * target) ** 2 - path_error**2 - smooth.error**2, (0.1 * target) ** 2))
    Q = directions_for(sampler, flat.p, left, share)
    direction_error = share * math.sqrt(linear_error(sampler, flat.p, Q, shrink=True))
    smoothness = outer_smoothness(flat, truth, generator)
    reasons = (
        f"Inner lr: the inner Hessian has eigenvalues from {low:.3g} to {high:.3g}, so lr = 1/L = {rate:.3g} is safe, "
        f"and a step leaves at most {1 - rate * low:.6g} of the distance to y*.",
        f"N: {N} steps leave a relative error of {path_error:.2g} in the exact hypergradient of the path"
        + (f" (eigenvalues alone would ask for up to {worst(rate * low, path_error)})." if low > 0 else "."),
        smooth.text,
        _about_directions(sampler, flat.p, Q, share, direction_error, left),
        f"Outer lr: Phi's own curvature at x is about {smoothness:.3g}; noise of {target:g} lowers 1/L_Phi by "
        f"1/(1 + {target:g}^2). Theorem 1 with its constant step would divide by sqrt(K).",
    )
    return Suggestion(
        target=target,
        N=N,
        Q=Q,
        mu=smooth.mu,
        antithetic=smooth.antithetic,
        inner_lr=rate,
        outer_lr=1 / (max(smoothness, 1e-12) * (1 + target**2)),
        sampler=sampler,
        path_error=path_error,
        mu_error=smooth.error,
        direction_error=direction_error,
        reasons=reasons,
    )


def worst(rate: float, error: float) -> int:
    """The steps after which (1 - rate)^N is this error."""
    return math.ceil(math.log(max(error, 1e-16)) / math.log1p(-min(rate, 1 - 1e-12)))


def inner_curvature(flat: Flat, y: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """The least eigenvalue of d2g/dy2 at y, and the largest between y0 and y."""
    found = [
        spectrum(curvature(lambda y: flat.g(flat.x, y), at), at, steps=60, generator=generator)
        for at in (y, flat.y0, 0.5 * (y + flat.y0))
    ]
    return found[0].low, max(s.high + s.high_error for s in found)


def _steps(
    flat: Flat, truth: Reference, rate: float, low_curvature: float, allowed: float, most: int
) -> tuple[int, float]:
    """The least N whose exact hypergradient is that near to the true one: doubling, then bisection."""

    def error(N: int) -> float:
        solver = GD(lr=rate, steps=N)
        try:
            found = flat.estimator(solver, Unrolled(checkpoint=True))()
        except RequirementError:
            found = flat.estimator(solver, Unrolled(products="difference"))()
        return length(found - truth.gradient) / truth.norm

    high, at_high = doubled(error, 1, allowed, most, rate * low_curvature)
    if at_high > allowed:
        raise OptionError(
            f"{high} inner steps still leave a relative error of {at_high:.2g} (the path may use {allowed:.2g}). "
            "The inner problem is too ill-conditioned for gradient descent, or has kinks: regularise it more, start at "
            "a warm y0, or raise target= or max_steps=."
        )
    low = high // 2
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        at_middle = error(middle)
        if at_middle <= allowed:
            high, at_high = middle, at_middle
        else:
            low = middle
    return high, at_high


def directions_for(sampler: Sampler, p: int, allowed: float, share: float) -> int:
    """The least Q for this relative error, when `share` is what the indirect part is of the whole."""
    return directions_needed(sampler, p, min(1.0, (allowed / max(share, 1e-100)) ** 2))


def _about_directions(sampler: Sampler, p: int, Q: int, share: float, error: float, left: float) -> str:
    if share <= left:
        return (
            f"Q: the indirect term is only {share:.2g} of the hypergradient, less than the target allows as error: "
            "Direct() would reach it without any perturbed path."
        )
    text = (
        f"Q: {Q} {type(sampler).__name__} directions for p = {p} outer variables have a relative error of {error:.2g}; "
        f"the indirect term is {share:.2g} times the hypergradient."
    )
    if Q >= 8:
        text += (
            f" That is {Q} paths a step: if g can be differentiated, Unrolled(products='difference') or "
            "Implicit(CG(...)) reach the same with about two."
        )
    return text


def outer_smoothness(flat: Flat, truth: Reference, generator: torch.Generator) -> float:
    """The largest curvature of Phi at x, by differences of its gradient."""
    h = 1e-2 * max(length(flat.x), 1.0) if flat.x.dtype != torch.float64 else 1e-4 * max(length(flat.x), 1.0)

    def product(q: Tensor) -> Tensor:
        moved = reference(flat, x=flat.x + h * q / length(q), start=truth.y)
        return (moved.gradient - truth.gradient) * (length(q) / h)

    return spectrum(product, flat.x, steps=6, generator=generator).norm
