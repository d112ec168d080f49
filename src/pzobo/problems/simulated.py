"""What are the simulated quadratics of the field's benchmark? Sums of random quadratics, whose optimum is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.options import positive, whole
from pzobo.outer.problem import Problem
from pzobo.tensors.seeds import mix

Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""a (n x d), b (n x p), c (n x p), e (n x d), k (n x d), l (n x p): the terms of one quadratic in each row."""


class Moments(NamedTuple):
    """The means over all rows: of a a', b b', c e', k and l."""

    yy: Tensor
    xx: Tensor
    xy: Tensor
    y: Tensor
    x: Tensor


@dataclass(frozen=True, kw_only=True)
class SimulatedQuadratics(Problem):
    """A `Problem` of quadratics that also knows its value function Phi(x) = f(x, y*(x)) and its optimum.

    Args:
        inner: the means over all rows of g.
        outer: the means over all rows of f.

    Examples:
        >>> problem = pzobo.problems.simulated_quadratics(p=4, d=3, n=64)
        >>> best, x = problem.optimum(), problem.start()
        >>> bool(problem.value(best) < problem.value(x))
        True
    """

    inner: Moments
    outer: Moments

    def inner_solution(self, x: Tensor) -> Tensor:
        """y*(x)."""
        found: Tensor = torch.linalg.solve(self.inner.yy, -(self.inner.xy.T @ x + self.inner.y))
        return found

    def value(self, x: Tensor) -> Tensor:
        """Phi(x)."""
        return _value(x, self.inner_solution(x), self.outer)

    def optimum(self) -> Tensor:
        """argmin Phi, where Phi has one."""
        zero = torch.zeros_like(self.x0)
        gradient = _hypergradient(zero, self.inner, self.outer)
        slope = [_hypergradient(u, self.inner, self.outer) - gradient for u in torch.eye(len(zero), dtype=zero.dtype)]
        found: Tensor = torch.linalg.solve(torch.stack(slope, 1), -gradient)
        return found

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Phi, the square of its gradient, and how far y is from y*(x)."""
        return {
            "value": float(self.value(x)),
            "squared_gradient": float(_hypergradient(x, self.inner, self.outer).square().sum()),
            "inner_distance": float((y - self.inner_solution(x)).norm()),
        }


def simulated_quadratics(
    p: int = 100,
    d: int = 100,
    n: int = 1024,
    *,
    smallest: float = 0.1,
    cross: float = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> SimulatedQuadratics:
    """Means of n quadratics (a'y)^2 / 2 + (b'x)^2 / 2 + (c'x)(e'y) + k'y + l'x, for g and for f.

    a has a covariance with eigenvalues from `smallest` to 1, b the same but for one 0, c e' has a mean with singular
    values from `smallest` to `cross`, and k, l are N(0, 1). These are the simulated quadratics of benchopt's
    benchmark_bilevel with random numbers of its own. Its y*(x), the value function Phi, its gradient and its optimum
    are known. x0 = -2 and y0 = 0.

    Args:
        p: outer variables.
        d: inner variables.
        n: rows of each of the two means.
        smallest: the strong convexity of g, about: the means are over n draws.
        cross: the size of the mixed derivatives.
        seed: of all numbers. Others are drawn until Phi is convex.
        dtype: of all tensors.

    Returns:
        A `SimulatedQuadratics` with x of p numbers and y of d.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.simulated_quadratics(p=4, d=3, n=64)
        >>> problem.hypergradient(problem.optimum()).norm() < 1e-8
        tensor(True)
    """
    p, d, n = (whole(f"simulated_quadratics: {name}", v) for name, v in (("p", p), ("d", d), ("n", n)))
    positive("simulated_quadratics: smallest", smallest)
    positive("simulated_quadratics: cross", cross)
    for trial in range(20):
        train, val = (_rows(p, d, n, smallest, cross, mix(mix(seed, trial), i)) for i in range(2))
        inner, outer = _moments(train), _moments(val)
        if torch.linalg.eigvalsh(inner.yy)[0] > 1e-8 and _least_curvature(inner, outer) > 1e-8:
            break
    else:
        raise OptionError(
            f"simulated_quadratics found no convex value function with n={n}, p={p}, d={d}: give more rows n."
        )

    def loss(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        a, b, c, e, k, l = batch  # noqa: E741 (the letters of the docstring)
        squares = (a @ y).square().mean() / 2 + (b @ x).square().mean() / 2
        return squares + ((c @ x) * (e @ y)).mean() + k.mean(0) @ y + l.mean(0) @ x

    def rounded(rows: Rows) -> tuple[Tensor, ...]:
        return tuple(t.to(dtype) for t in rows)

    return SimulatedQuadratics(
        loss,
        loss,
        torch.full((p,), -2.0, dtype=dtype),
        torch.zeros(d, dtype=dtype),
        rounded(train),
        rounded(val),
        hypergradient=lambda x: _hypergradient(x.detach().double(), inner, outer).to(dtype),
        solution=lambda x, batch: torch.linalg.solve(
            batch[0].T @ batch[0] / len(batch[0]), -(batch[3].T @ (batch[2] @ x) / len(batch[0]) + batch[4].mean(0))
        ),
        inner=_cast(inner, dtype),
        outer=_cast(outer, dtype),
    )


def _rows(p: int, d: int, n: int, smallest: float, cross: float, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def root(size: int, values: Tensor) -> Tensor:
        basis = torch.linalg.qr(normal(size, size))[0]
        made: Tensor = (basis * values.sqrt()) @ basis.T
        return made

    def spaced(low: float, high: float, count: int) -> Tensor:
        """Numbers at equal distances of their logarithms."""
        return torch.linspace(0, 1, count, dtype=torch.float64).mul(torch.tensor(high / low).log()).exp() * low

    a = normal(n, d) @ root(d, spaced(smallest, 1, d))
    zero = torch.zeros(1, dtype=torch.float64)
    b = normal(n, p) @ root(p, torch.cat([zero, spaced(smallest, 1, p - 1)]) if p > 1 else torch.ones(1).double())
    u, _, v = torch.linalg.svd(normal(p, d))
    singular = torch.zeros(p, d, dtype=torch.float64)
    singular.diagonal().copy_(spaced(smallest, cross, min(p, d)))
    directions = normal(n, d)
    return a, b, directions @ (u @ singular).T, directions @ v, normal(n, d), normal(n, p)


def _moments(rows: Rows) -> Moments:
    a, b, c, e, k, linear = rows
    n = len(a)
    return Moments(a.T @ a / n, b.T @ b / n, c.T @ e / n, k.mean(0), linear.mean(0))


def _cast(m: Moments, dtype: torch.dtype) -> Moments:
    return Moments(*(t.to(dtype) for t in m))


def _value(x: Tensor, y: Tensor, m: Moments) -> Tensor:
    return y @ m.yy @ y / 2 + x @ m.xx @ x / 2 + x @ m.xy @ y + m.y @ y + m.x @ x


def _hypergradient(x: Tensor, inner: Moments, outer: Moments) -> Tensor:
    y = torch.linalg.solve(inner.yy, -(inner.xy.T @ x + inner.y))
    v = torch.linalg.solve(inner.yy, outer.yy @ y + outer.xy.T @ x + outer.y)
    found: Tensor = outer.xx @ x + outer.xy @ y + outer.x - inner.xy @ v
    return found


def _least_curvature(inner: Moments, outer: Moments) -> Tensor:
    """The least eigenvalue of the Hessian of Phi, which is constant."""
    response = -torch.linalg.solve(inner.yy, inner.xy.T)
    both = outer.xy @ response
    values: Tensor = torch.linalg.eigvalsh(response.T @ outer.yy @ response + outer.xx + both + both.T)
    return values[0]
