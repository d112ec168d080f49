"""Which mu? Between smoothing, which grows with it, and the rounding of y^N in its dtype, which is divided by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.diagnosis.exact_hypergradient import Reference, length
from pzobo.diagnosis.flat import Flat
from pzobo.solvers import Solver
from pzobo.zeroth_order.directions import Sampler, Space, drawn_by

PROBES = 12


@dataclass(frozen=True)
class Smoothing:
    """A mu, the relative error of the hypergradient that it makes, and why."""

    mu: float
    error: float
    antithetic: bool
    text: str


def choose_mu(
    flat: Flat, solver: Solver, truth: Reference, sampler: Sampler, Q: int, allowed: float, generator: torch.Generator
) -> Smoothing:
    """The mu for h = <v, y^N>: smoothing adds mu/2 |h''| (central differences: mu^2/6 |h'''|), and rounding noise/mu.

    mu is so large that smoothing takes a tenth of the allowed error: at another x rounding may be worse, but smoothing
    hardly. Central differences need two paths for each direction, so they are only taken where nothing else will do.
    """
    space = Space.of((flat.x,))
    span = sampler.length(space.sizes)
    size = max(length(flat.x), 1.0)
    eps = torch.finfo(flat.x.dtype).eps
    key = int(torch.randint(2**62, (), generator=generator))
    us = [drawn_by(sampler, key, j, PROBES, space).to(flat.x) for j in range(min(PROBES, flat.p))]

    def h(x: Tensor) -> float:
        return float(torch.dot(flat.solve(solver, x=x).double(), truth.v.double()))

    noise = _rounding(h, flat.x, us, size * eps / span)
    spread = math.sqrt(flat.p / Q)
    largest = 0.1 * size / span

    def choose(order: int, bend: float, factor: float, roundings: float) -> tuple[float, float, float]:
        """The mu where the two errors meet, the one to take, and its relative error."""
        up, down = factor * bend * math.hypot(spread, 1), roundings * noise * spread
        meet = (down / (order * up)) ** (1 / (order + 1)) if up > 0 else largest
        roomy = (0.1 * allowed * truth.norm / up) ** (1 / order) if up > 0 else largest
        mu = min(max(meet, roomy), largest)
        return meet, mu, math.hypot(up * mu**order, down / mu) / truth.norm

    bend = _difference(h, flat.x, us, eps**0.25 * size / span, (1, -2, 1))
    meet, mu, error = choose(1, bend, 1 / 2, math.sqrt(2))
    name = str(flat.x.dtype).removeprefix("torch.")
    text = (
        f"mu: in {name} <v, y^N> is known to {noise:.1e}, and its second difference is at most {bend:.2g}: rounding "
        f"and smoothing cost the same at mu = {meet:.2g}, and mu = {mu:.2g} has a relative error of {error:.1e}."
    )
    if error <= allowed:
        return Smoothing(mu, error, False, text)
    bend = _difference(h, flat.x, us, eps**0.2 * size / span, (-0.5, 1, 0, -1, 0.5))
    _, other, less = choose(2, bend, 1 / 6, 1 / math.sqrt(2))
    if less >= error:
        return Smoothing(mu, error, False, text + " That is much for this target: use float64.")
    text += f" That is much for this target: central differences (antithetic) with mu = {other:.2g} have {less:.1e}."
    return Smoothing(other, less, True, text if less <= allowed else text + " Use float64 for less.")


def _difference(
    h: Callable[[Tensor], float], x: Tensor, us: list[Tensor], step: float, weights: tuple[float, ...]
) -> float:
    """The root mean square derivative of h along the directions, by these central weights."""
    order, middle = (2, 1) if len(weights) == 3 else (3, 2)

    def along(u: Tensor) -> float:
        values = [w * h(x + (i - middle) * step * u) for i, w in enumerate(weights) if w]
        return math.fsum(values) / step**order

    return math.sqrt(sum(along(u) ** 2 for u in us) / len(us))


def _rounding(h: Callable[[Tensor], float], x: Tensor, us: list[Tensor], step: float) -> float:
    """The rounding noise of h: how far its values scatter within a few roundings of x."""
    values = torch.tensor(
        [h(x + 4 * k * step * u) for u in us[:4] for k in (-1.0, -0.5, 0.5, 1.0)], dtype=torch.float64
    )
    least = 0.3 * torch.finfo(x.dtype).eps * float(values.abs().max())
    return max(float(values.std()), least, 1e-300)
