"""What are the constants of a problem? In closed form where they are known, else by sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.options import positive
from pzobo.outer.problem import Problem
from pzobo.problems.quadratic_problem import quadratic
from pzobo.theory.assumptions import Constants
from pzobo.theory.estimation import estimate_constants
from pzobo.theory.logistic_problem import logistic

SIGMOID_CURVATURE = 1 / (6 * 3**0.5)
"""max |s''| of the sigmoid s: it is s (1 - s)(1 - 2s), largest at s = (3 - sqrt 3)/6. Its slope is at most 1/4."""


def constants(problem: Problem, *, radius: float | None = None, **sampling: Any) -> Constants:
    """The constants of a problem on the ball |x| <= radius.

    Closed forms for `pzobo.problems.quadratic` and `pzobo.theory.logistic`; for any other problem estimates by sampling
    (`estimate_constants`). `.estimated` and `.region` say which it was.

    Args:
        problem: whose constants.
        radius: of the ball in x, around 0 for closed forms and around x0 for estimates; max(1, |x0|) by default.
        **sampling: further options of `estimate_constants`. A problem with closed forms takes none.

    Returns:
        The `Constants`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.constants(pzobo.problems.quadratic(p=3, d=2))
        >>> c.region
        'M and D for |x| <= 1.76, the others everywhere'
    """
    formula = _FORMULAS.get(problem.inner_loss.__module__)
    if formula is None:
        return estimate_constants(problem, radius=radius, **sampling)
    if sampling:
        raise OptionError(f"{', '.join(sampling)}: only for estimates, and this problem has closed forms.")
    x0: Tensor = problem.x0
    return formula(problem, max(1.0, float(torch.linalg.vector_norm(x0))) if radius is None else radius)


def quadratic_constants(problem: Problem, radius: float) -> Constants:
    """g = y^T A y/2 - y^T B x and f = |y - c|^2/2 + |x|^2/20.

    rho = tau = 0 and L_f = 1; L_g is the norm of [[0, -B^T], [-B, A]]. f is not Lipschitz, and y* = A^-1 B x has no
    bound: M and D hold for |x| <= radius only, D = |A^-1 B| radius + |y0|, and M for y in the ball around y* that the
    path cannot leave, |y| <= 2 D.

    Args:
        problem: one that `pzobo.problems.quadratic` made.
        radius: of the ball |x| <= radius, on which M and D hold.

    Returns:
        The `Constants`, exact.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.quadratic_constants(pzobo.problems.quadratic(p=3, d=2), radius=1.0)
        >>> c.rho, c.tau, c.L_f
        (0.0, 0.0, 1.0)
    """
    A, B = (t.double() for t in problem.train)
    c = problem.val.double()
    d, p = B.shape
    hessian = torch.cat([torch.cat([torch.zeros(p, p).to(B), -B.T], 1), torch.cat([-B, A], 1)])
    response = float(torch.linalg.matrix_norm(torch.linalg.solve(A, B), 2)) * radius
    start = float(torch.linalg.vector_norm(problem.y0))
    D = response + start
    return Constants(
        L_f=1.0,
        L_g=float(torch.linalg.matrix_norm(hessian, 2)),
        mu_g=float(torch.linalg.eigvalsh(A)[0]),
        rho=0.0,
        tau=0.0,
        M=float(((0.1 * radius) ** 2 + (2 * D + float(torch.linalg.vector_norm(c))) ** 2) ** 0.5),
        D=D,
        sigma=0.0,
        p=p,
        d=d,
        region=f"M and D for |x| <= {radius:.3g}, the others everywhere",
    )


def logistic_constants(problem: Problem, radius: float, *, per_sample: bool = False) -> Constants:
    """g = mean_i log(1 + exp(-<a_i, y>)) + gamma/2 |y - B x|^2, f = the same mean over other rows.

    mu_g = gamma, tau = 0, L_f = |A'^T A'|/4m, L_g = |A^T A|/4n + gamma (1 + |B|^2), rho = max|s''| mean|a_i|^3 and
    M = mean|a'_i|, all everywhere; D = |B| radius + mean|a_i|/gamma + |y0| on the ball.

    Args:
        problem: one that `pzobo.theory.logistic` made.
        radius: of the ball |x| <= radius, on which D holds.
        per_sample: as the stochastic theory needs them, for every single sample: the largest |a_i| in place of means,
            and sigma = (mean_i |a_i|^2)^(1/2), which bounds the deviation of one sample's gradient.

    Returns:
        The `Constants`, exact.

    Raises:
        OptionError: the radius is not positive.

    Examples:
        >>> c = pzobo.theory.logistic_constants(pzobo.theory.logistic(p=2, d=3), radius=1.0)
        >>> c.mu_g, c.tau
        (0.5, 0.0)
    """
    positive("radius", radius)
    rows, B, gamma = problem.train
    rows, B, other = rows.double(), B.double(), problem.val.double()
    length, other_length = (torch.linalg.vector_norm(r, dim=1) for r in (rows, other))
    spread = float(torch.linalg.matrix_norm(B, 2))

    def smoothness(r: Tensor, lengths: Tensor) -> float:
        return float(lengths.max() ** 2 if per_sample else torch.linalg.matrix_norm(r, 2) ** 2 / len(r)) / 4

    def average(values: Tensor) -> float:
        return float(values.max() if per_sample else values.mean())

    return Constants(
        L_f=smoothness(other, other_length),
        L_g=smoothness(rows, length) + gamma * (1 + spread**2),
        mu_g=gamma,
        rho=SIGMOID_CURVATURE * average(length**3),
        tau=0.0,
        M=average(other_length),
        D=spread * radius + float(length.mean()) / gamma + float(torch.linalg.vector_norm(problem.y0)),
        sigma=float((length**2).mean() ** 0.5) if per_sample else 0.0,
        p=B.shape[1],
        d=B.shape[0],
        region=f"D for |x| <= {radius:.3g}, the others everywhere",
    )


_FORMULAS: dict[str, Callable[[Problem, float], Constants]] = {
    quadratic.__module__: quadratic_constants,
    logistic.__module__: logistic_constants,
}
"""By the file that the inner loss was written in: these two files make no other problem."""
