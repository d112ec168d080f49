"""Whose fault is an estimate's error? The same draws without mu, with another mu, and by other estimates."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.diagnosis.best_mu import choose_mu
from pzobo.diagnosis.exact_hypergradient import Reference, length
from pzobo.diagnosis.findings import Level
from pzobo.diagnosis.flat import Flat
from pzobo.errors import NoResponseWarning, PzoboError
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.directional import Directional
from pzobo.jacobians.forward import ForwardMode
from pzobo.jacobians.implicit import CG, Implicit
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.solvers import BlackBox, Solver
from pzobo.zeroth_order.directions import Orthogonal

FEW = 32
"""Up to so many outer variables, a path for each of them is worth a look."""


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The root mean square distance, of pairs or of many from one."""
    others = b * len(a) if len(b) == 1 else b
    return math.sqrt(sum(length(s - t) ** 2 for s, t in zip(a, others, strict=True)) / len(a))


@dataclass(frozen=True)
class Trial:
    """Draws of the hypergradient by any Jacobian, at one x with one solver."""

    flat: Flat
    solver: Solver
    draws: int

    def __call__(self, jacobian: Jacobian) -> list[Tensor]:
        """Draws with the same directions for every Jacobian that has the same kind of sampler; one without any."""
        estimate = self.flat.estimator(self.solver, jacobian.seeded(0), check=False)
        with warnings.catch_warnings(action="ignore", category=NoResponseWarning):
            return [estimate() for _ in range(self.draws if isinstance(jacobian, Directional) else 1)]

    def best_mu(self, truth: Reference, generator: torch.Generator, Q: int) -> float:
        return choose_mu(self.flat, self.solver, truth, Orthogonal(), Q, 1.0, generator).mu

    def without_mu(self, j: Directional, truth: Reference, generator: torch.Generator) -> list[Tensor]:
        """The draws with mu -> 0: by forward mode, or with the best mu where that cannot be had."""
        options: dict[str, Any] = {
            name: getattr(j, name) for name in ("directions", "sampler", "shrink", "at", "batching")
        }
        if not isinstance(self.solver, BlackBox):
            try:
                return self(ForwardMode(**options))
            except (RuntimeError, NotImplementedError, PzoboError):
                pass  # no forward derivative of something in the loss
        return self(PZOBO(mu=self.best_mu(truth, generator, j.directions), antithetic=True, **options))

    def others(self, truth: Reference, generator: torch.Generator) -> dict[str, float]:
        """Relative errors of estimates without noise, cheapest first."""
        p = self.flat.p
        candidates: dict[str, Jacobian] = {
            "Direct()": Direct(),
            "Implicit(CG(20))": Implicit(CG(20)),
            "Unrolled(products='difference')": Unrolled(products="difference"),
        }
        if p <= FEW:
            best = PZOBO(mu=self.best_mu(truth, generator, p), directions=p, sampler=Orthogonal(), at="x")
            candidates[f"PZOBO(directions={p}, sampler=Orthogonal())"] = best
        errors = {}
        for name, candidate in candidates.items():
            try:
                candidate.check(self.solver)
                errors[name] = length(self(candidate)[0] - truth.gradient) / truth.norm
            except PzoboError:
                continue
        return errors


def blame_mu(trial: Trial, jacobian: PZOBO, straight: list[Tensor], size: float) -> tuple[str, Level, str]:
    """Is mu too small or too large? Whichever way the error falls."""

    def error(mu: float) -> float:
        value = distance(trial(dataclasses.replace(jacobian, mu=mu)), straight) / size
        return value if math.isfinite(value) else math.inf

    mu = jacobian.mu
    here, larger, smaller = error(mu), error(10 * mu), error(mu / 10)
    if larger < smaller:
        why = f"rounding is divided by mu. With mu = {10 * mu:g} it is {larger:.2g}."
        return "mu too small", "problem", f"mu = {mu:g} puts the estimate {here:.2g} off: {why}"
    why = (
        f"the response bends over that distance, or a path leaves its range. With mu = {mu / 10:g} it is {smaller:.2g}."
    )
    return "mu too large", "problem", f"mu = {mu:g} puts the estimate {here:.2g} off: {why}"
