"""What are the constants of a problem that nobody worked out? Spectra and slopes at sampled points, with spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.diagnosis.flat import Flat, curvature, slope
from pzobo.diagnosis.lanczos import spectrum
from pzobo.errors import OptionError
from pzobo.outer.problem import Problem
from pzobo.tensors.trees import Tree
from pzobo.theory.assumptions import Constants

TINY = 1e-12


@dataclass(frozen=True)
class _Sample:
    """What one point (x, y) says of each constant."""

    L_f: float
    L_g: float
    mu_g: float
    M: float
    sigma: float
    residual: float


def estimate_constants(
    problem: Problem,
    *,
    radius: float | None = None,
    points: int = 4,
    steps: int = 200,
    krylov: int = 40,
    probes: int = 8,
    batches: Sequence[Tree] = (),
    batch_size: int = 1,
    seed: int = 0,
) -> Constants:
    """Constants that hold at sampled points around x0: estimates from below of bounds that hold everywhere.

    At x0 and at `points` - 1 random x with |x - x0| = radius, an inner path of `steps` gradient steps is run; L_f, L_g,
    mu_g and M are taken at its start, middle and end, D from its end, and rho and tau from differences of Hessians
    between those points and to near ones, in random directions. Each constant is the worst value found; its
    uncertainty is the standard deviation over the points, plus what the eigenvalue iteration left.

    Args:
        problem: whose constants.
        radius: how far from x0 to look; max(1, |x0|) by default.
        points: how many x are looked at, x0 among them; at least 1.
        steps: inner gradient steps of each path; at least 1.
        krylov: steps of the eigenvalue iteration (power iteration, all vectors kept).
        probes: random vectors for each Frobenius norm.
        batches: inner batches of the same size, trees of tensors, from which sigma is estimated. Without them it is 0.
        batch_size: samples in each of these batches. sigma is that of one sample.
        seed: of everything that is drawn.

    Returns:
        The `Constants`, with their spread in `uncertainty`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> c = pzobo.theory.estimate_constants(pzobo.problems.quadratic(p=3, d=2), points=2, steps=50)
        >>> c.estimated, round(c.mu_g, 2)
        (True, 1.0)
    """
    if points < 1 or steps < 1 or probes < 1:
        raise OptionError(f"points={points!r}, steps={steps!r}, probes={probes!r}: each must be at least 1.")
    flat = Flat(problem)
    generator = torch.Generator().manual_seed(seed)
    reach = max(1.0, float(torch.linalg.vector_norm(flat.x))) if radius is None else radius
    samples: list[_Sample] = []
    distances: list[float] = []
    roughness: list[tuple[float, float]] = []
    for i in range(points):
        x = flat.x if i == 0 else flat.x + reach * _unit(flat.x, generator)
        path = _path(flat, x, steps, krylov, generator)
        distances.append(float(torch.linalg.vector_norm(path[-1] - flat.y0)))
        places = [torch.cat([x, y]) for y in path]
        samples += [_at(flat, w, krylov, generator, batches, batch_size) for w in places]
        size = max(1e-3, 1e-3 * float(torch.linalg.vector_norm(places[-1])))
        near = [w + size * _unit(w, generator) for w in places]
        pairs = [(w, v) for w, v in zip(places, near, strict=True)] + [(places[0], places[-1])]
        roughness += [_roughness(flat, a, b, probes, generator) for a, b in pairs]

    def of(name: str) -> Tensor:
        return torch.tensor([getattr(s, name) for s in samples], dtype=torch.float64)

    rho, tau = (torch.tensor(column, dtype=torch.float64) for column in zip(*roughness, strict=True))
    D = torch.tensor(distances, dtype=torch.float64)
    values = {name: of(name) for name in ("L_f", "L_g", "mu_g", "M", "sigma")} | {"rho": rho, "tau": tau, "D": D}
    left = max(s.residual for s in samples)
    spread = {name: float(v.std(correction=0)) for name, v in values.items()}
    for name in ("L_f", "L_g", "mu_g"):
        spread[name] += left
    mu_g = float(values["mu_g"].min())
    if mu_g <= 0:
        raise OptionError(
            f"The inner Hessian has the eigenvalue {mu_g:.2e} at a sampled point: the inner problem is not strongly "
            "convex there, and the theory does not apply. Regularise the inner loss, or give a smaller radius."
        )
    L_g = float(values["L_g"].max())
    return Constants(
        L_f=float(values["L_f"].max()),
        L_g=max(L_g, mu_g),
        mu_g=mu_g,
        rho=float(rho.max()),
        tau=float(tau.max()),
        M=float(values["M"].max()),
        D=float(D.max()),
        sigma=float(values["sigma"].max()),
        p=flat.p,
        d=flat.d,
        uncertainty=spread,
        region=f"at {len(samples)} sampled points with |x - x0| <= {reach:.3g}",
    )


def _unit(like: Tensor, generator: torch.Generator) -> Tensor:
    u: Tensor = torch.randn(like.numel(), generator=generator, dtype=torch.float64)
    u /= torch.linalg.vector_norm(u)
    return u.to(like)


def _path(flat: Flat, x: Tensor, steps: int, krylov: int, generator: torch.Generator) -> list[Tensor]:
    """Start, middle and end of a path of gradient descent with a safe step."""

    def g(y: Tensor) -> Tensor:
        return flat.g(x, y)

    y = flat.y0
    rate = 1 / max(spectrum(curvature(g, y), y, steps=krylov, generator=generator).norm, TINY)
    ys, value = [y], float(g(y))
    for t in range(steps):
        new = y - rate * slope(g, y)
        after = float(g(new))
        if not after <= value + 1e-6 * abs(value):  # curvature grew on the way
            rate /= 2
            continue
        y, value = new, after
        if t == steps // 10:
            ys.append(y)
    return [*ys, y]


def _at(
    flat: Flat, w: Tensor, krylov: int, generator: torch.Generator, batches: Sequence[Tree], batch_size: int
) -> _Sample:
    x, y = w[: flat.p], w[flat.p :]

    def look(fn: object, at: Tensor) -> tuple[float, float, float]:
        found = spectrum(curvature(fn, at), at, steps=krylov, generator=generator)  # type: ignore[arg-type]
        return found.low, found.norm, found.error

    _, L_g, error_g = look(flat.joint(flat.g), w)
    _, L_f, error_f = look(flat.joint(flat.f), w)
    mu_g, _, error_mu = look(lambda y: flat.g(x, y), y)
    deviation = 0.0
    if batches:
        slopes = torch.stack([slope(flat.joint(lambda x, y, b=b: flat.g(x, y, b)), w) for b in batches])  # type: ignore[misc]
        squares = (slopes - slopes.mean(0)).double().square().sum(1)
        deviation = float((squares.sum() / max(1, len(batches) - 1) * batch_size) ** 0.5)
    M = float(torch.linalg.vector_norm(slope(flat.joint(flat.f), w)))
    return _Sample(L_f, L_g, mu_g, M, deviation, max(error_g, error_f, error_mu))


def _roughness(flat: Flat, a: Tensor, b: Tensor, probes: int, generator: torch.Generator) -> tuple[float, float]:
    """|change|_F / |a - b| of d2g/dy2 and of d2g/dx dy: E|A q|^2 = |A|_F^2 for random signs q."""
    joint = flat.joint(flat.g)
    at_a, at_b = curvature(joint, a), curvature(joint, b)
    yy, xy = 0.0, 0.0
    for _ in range(probes):
        signs = torch.randint(0, 2, (flat.d,), generator=generator).mul(2).sub(1)
        q = torch.cat([torch.zeros(flat.p), signs]).to(a)
        change = (at_a(q) - at_b(q)).double()
        xy += float(change[: flat.p].square().sum()) / probes
        yy += float(change[flat.p :].square().sum()) / probes
    distance = max(float(torch.linalg.vector_norm(a - b)), TINY)
    return yy**0.5 / distance, xy**0.5 / distance
