"""Why does my hypergradient not help? One call that looks at the inner problem, the estimator and the two together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import CurvatureError, OptionError, PzoboError, SmoothingError
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.directional import Directional
from pzobo.jacobians.forward import ForwardMode
from pzobo.jacobians.unrolled import Unrolled
from pzobo.jacobians.zeroth_order import PZOBO
from pzobo.problem import Problem
from pzobo.solvers import GD, BlackBox, Iterative, Solver
from pzobo.theory.diagnosis import Diagnosis, Finding, Level
from pzobo.theory.flat import Flat, curvature, slope
from pzobo.theory.reference import Reference, length, reference
from pzobo.theory.spectrum import spectrum
from pzobo.theory.suggest import directions, smoothing, suggest
from pzobo.trees import Tree

FLAT = 1e-6
"""An inner Hessian whose least eigenvalue is below this part of its largest is called flat."""


def doctor(
    problem: Problem,
    x: Tree = None,
    y0: Tree = None,
    *,
    solver: Solver | None = None,
    jacobian: Jacobian | None = None,
    target: float = 0.3,
    draws: int = 8,
    max_steps: int = 20_000,
    seed: int = 0,
) -> Diagnosis:
    """Look at a bilevel problem at x, with the solver and the Jacobian in use, and say what is wrong.

    The true hypergradient, which all else is compared with, is taken at a solution of the inner problem by Newton's
    method and the implicit function theorem. It costs some hundred times what one hypergradient costs.

    Args:
        x, y0: where; the problem's own start by default.
        solver: the one in use; by default gradient descent of 20 steps with a rate that is safe at y0.
        jacobian: the one in use; `PZOBO()` by default.
        target: the relative error of the hypergradient that one would be content with.
        draws: how often the estimate is drawn.

    Example:
        >>> print(pzobo.doctor(problem, solver=pzobo.GD(lr=0.1, steps=10), jacobian=pzobo.PZOBO(mu=0.01)))
    """
    if not 0 < target < 1:
        raise OptionError(f"target={target!r}: a relative error between 0 and 1, such as 0.3.")
    flat = Flat(problem, x, y0)
    generator = torch.Generator().manual_seed(seed)
    jacobian = PZOBO() if jacobian is None else jacobian
    if solver is None:
        solver = GD(lr=1 / max(_inner_spectrum(flat, flat.y0, generator)[1], 1e-12), steps=20)
    jacobian.check(solver)
    patient = _Patient(flat, solver, jacobian, target, draws, max_steps, generator)
    return patient.examine()


def _inner_spectrum(flat: Flat, y: Tensor, generator: torch.Generator) -> tuple[float, float]:
    found = spectrum(curvature(lambda y: flat.g(flat.x, y), y), y, steps=60, generator=generator)
    return found.low, found.high


class _Patient:
    """The state of one examination: numbers so far, and findings."""

    def __init__(
        self,
        flat: Flat,
        solver: Solver,
        jacobian: Jacobian,
        target: float,
        draws: int,
        max_steps: int,
        generator: torch.Generator,
    ) -> None:
        self.flat, self.solver, self.jacobian = flat, solver, jacobian
        self.target, self.draws, self.max_steps, self.generator = target, draws, max_steps, generator
        self.findings: list[Finding] = []
        self.numbers: dict[str, Any] = dict.fromkeys(
            ("residual", "direct", "indirect", "path_error", "mu_error", "direction_error", "error"), math.nan
        ) | {
            "signal_to_noise": math.nan,
            "cosine": math.nan,
            "curvature": (math.nan, math.nan),
            "steps_needed": None,
            "suggestion": None,
        }

    def say(self, name: str, level: Level, text: str) -> None:
        self.findings.append(Finding(name, level, text))

    def examine(self) -> Diagnosis:
        y = self.flat.solve(self.solver)
        if self.inner_problem(y):
            truth = self.truth(y)
            if truth is not None:
                self.parts(truth)
                self.path(truth)
                self.estimate(truth)
        self.suggest()
        return Diagnosis(findings=tuple(self.findings), **self.numbers)

    def inner_problem(self, y: Tensor) -> bool:
        """Is it solved, and is it strongly convex there? False where nothing more can be said."""
        flat = self.flat
        with torch.no_grad():
            before, after = float(flat.g(flat.x, flat.y0)), float(flat.g(flat.x, y))
        if not math.isfinite(after) or after > before + 1e-6 * abs(before):
            high = _inner_spectrum(flat, flat.y0, self.generator)[1]
            self.say(
                "inner path diverges",
                "problem",
                f"g went from {before:.3g} to {after:.3g}. The inner Hessian at y0 has the eigenvalue {high:.3g}, so "
                f"gradient descent needs lr below {2 / high if high > 0 else math.inf:.3g}; it is "
                f"{getattr(self.solver, 'lr', None)}.",
            )
            return False
        start, end = (length(slope(lambda y: flat.g(flat.x, y), at)) for at in (flat.y0, y))
        self.numbers["residual"] = end / start if start > 0 else 0.0
        low, high = self.numbers["curvature"] = _inner_spectrum(flat, y, self.generator)
        if low < -FLAT * high:
            self.say(
                "inner problem not convex",
                "problem",
                f"d2g/dy2 has the eigenvalue {low:.3g} at y^N (the largest is {high:.3g}): y* may not exist, or not "
                "depend smoothly on x. Regularise g, run more inner steps, or take Unrolled or PZOBO, which follow the path.",
            )
        elif low <= FLAT * high:
            self.say(
                "inner problem flat",
                "problem",
                f"d2g/dy2 has eigenvalues from {low:.1e} to {high:.3g} at y^N: along the flat directions y* is not "
                f"determined by x. Add a term such as gamma/2 |y|^2 to g, with gamma around {1e-3 * high:.1g}.",
            )
        else:
            self.say(
                "strongly convex",
                "ok",
                f"d2g/dy2 has eigenvalues from {low:.3g} to {high:.3g} at y^N: condition number {high / low:.3g}.",
            )
        return True

    def truth(self, y: Tensor) -> Reference | None:
        try:
            truth = reference(self.flat, start=y)
        except CurvatureError:
            return None
        low, high = self.numbers["curvature"]
        return truth if low > FLAT * high and truth.solved else None

    def parts(self, truth: Reference) -> None:
        """Direct and indirect share of the hypergradient."""
        whole = truth.norm or 1.0
        direct, indirect = length(truth.direct) / whole, length(truth.indirect) / whole
        self.numbers |= {"direct": direct, "indirect": indirect}
        text = f"the direct term is {direct:.2g} and the indirect term {indirect:.2g} of the hypergradient's length."
        if truth.norm == 0:
            self.say("no hypergradient", "note", "it is zero at x: x is a stationary point.")
        elif indirect < 1e-3:
            gone = "f does not depend on y" if length(truth.v) < 1e-8 * whole else "g hardly lets y* depend on x"
            self.say("no indirect term", "note", f"{text} Direct() is enough: {gone}.")
        else:
            self.say("shares", "ok", text)

    def path(self, truth: Reference) -> None:
        """Are there enough inner steps?"""
        residual = self.numbers["residual"]
        if not isinstance(self.solver, Iterative) or truth.norm == 0:
            level: Level = "ok" if residual < 1e-2 else "warning"
            self.say("inner solution", level, f"|dg/dy| at y is {residual:.1e} of that at y0.")
            return
        allowed, steps = self.target / 2, self.solver.steps
        error = self.numbers["path_error"] = self._path_error(truth, steps)
        needed = steps
        while needed < self.max_steps and self._path_error(truth, needed) > allowed:
            needed = min(2 * needed, self.max_steps)
        enough = self._path_error(truth, needed) <= allowed
        self.numbers["steps_needed"] = needed if enough else None
        text = f"N = {steps} inner steps leave |dg/dy| at {residual:.1e} of its start; the hypergradient is {error:.2g} off."
        if error <= allowed:
            self.say("inner solution", "ok", text)
        else:
            more = f"about {needed} steps" if enough else f"more than {needed} steps, or another solver"
            self.say("too few inner steps", "problem", f"{text} It takes {more}; or start at a warm y0.")

    def _path_error(self, truth: Reference, steps: int) -> float:
        solver = dataclasses.replace(self.solver, steps=steps)  # type: ignore[call-arg]
        found = self.flat.estimator(solver, self._exact(), check=False)()
        return length(found - truth.gradient) / truth.norm

    def _exact(self) -> Unrolled:
        return Unrolled(checkpoint=True)

    def estimate(self, truth: Reference) -> None:
        """How good is the estimate in use, and what is it that makes it bad?"""
        if truth.norm == 0:
            return
        try:
            self.flat.estimator(self.solver, self.jacobian)()
        except SmoothingError as problem:
            self.say("mu too small", "problem", str(problem))
        except PzoboError as problem:
            self.say("no estimate", "problem", str(problem))
            return
        found = self._draw(self.jacobian)
        mean = torch.stack(found).mean(0)
        noise = _rms([e - mean for e in found]) * math.sqrt(len(found) / max(1, len(found) - 1))
        error = self.numbers["error"] = _rms([e - truth.gradient for e in found]) / truth.norm
        cosines = [float(torch.dot(e, truth.gradient)) / max(length(e) * truth.norm, 1e-300) for e in found]
        cosine = self.numbers["cosine"] = sum(cosines) / len(cosines)
        ratio = self.numbers["signal_to_noise"] = length(mean) / noise if noise > 1e-12 * length(mean) else math.inf
        if isinstance(self.jacobian, Directional):
            self._directional(truth, found)
        noisy = "no noise" if math.isinf(ratio) else f"signal to noise {ratio:.2g}"
        name = type(self.jacobian).__name__
        text = f"{name} is {error:.2g} off the true hypergradient (cosine {cosine:.2f}, {noisy})."
        self.say("estimate", "ok" if error <= self.target else "warning", text)

    def _draw(self, jacobian: Jacobian) -> list[Tensor]:
        """Draws of the hypergradient; the same directions for every Jacobian with the same sampler."""
        sampler = getattr(jacobian, "sampler", None)
        if sampler is not None:
            fresh = dataclasses.replace(sampler, seed=0, generator=None)
            jacobian = dataclasses.replace(jacobian, sampler=fresh)  # type: ignore[type-var]
        estimate = self.flat.estimator(self.solver, jacobian, check=False)
        return [estimate() for _ in range(self.draws if sampler is not None else 1)]

    def _directional(self, truth: Reference, found: list[Tensor]) -> None:
        """The parts of the error that mu and the directions have, from the same directions without mu."""
        jacobian = self.jacobian
        assert isinstance(jacobian, Directional)
        straight = self._straight(truth)
        if isinstance(jacobian, PZOBO):
            off = self.numbers["mu_error"] = _rms([a - b for a, b in zip(found, straight, strict=True)]) / truth.norm
            if off > self.target / 2 or not math.isfinite(off):
                self._blame_mu(straight, off, truth.norm)
        exact = self.flat.estimator(self.solver, self._exact(), check=False)() if self._has_path() else truth.gradient
        off = self.numbers["direction_error"] = _rms([e - exact for e in straight]) / truth.norm
        if off > self.target:
            enough = directions(jacobian.sampler, self.flat.p, self.target, self.numbers["indirect"])
            self.say(
                "too few directions",
                "problem",
                f"Q = {jacobian.directions} for p = {self.flat.p} outer variables leaves {off:.2g} of the hypergradient as "
                f"noise or shrinkage; {self.target:g} takes Q = {enough} {type(jacobian.sampler).__name__} directions. "
                + self._other(),
            )

    def _has_path(self) -> bool:
        return isinstance(self.solver, Iterative)

    def _straight(self, truth: Reference) -> list[Tensor]:
        """The same draws with mu -> 0: by forward mode, or with the best mu where that cannot be had."""
        j = self.jacobian
        assert isinstance(j, Directional)
        options = {name: getattr(j, name) for name in ("directions", "sampler", "shrink", "at", "batching")}
        if not isinstance(self.solver, BlackBox):
            try:
                return self._draw(ForwardMode(**options))
            except (RuntimeError, NotImplementedError, PzoboError):
                pass
        best = smoothing(self.flat, self.solver, truth, j.sampler, j.directions, self.target, self.generator)[0]
        return self._draw(PZOBO(mu=best, antithetic=True, **options))

    def _blame_mu(self, straight: list[Tensor], off: float, size: float) -> None:
        assert isinstance(self.jacobian, PZOBO)

        def error(mu: float) -> float:
            found = self._draw(dataclasses.replace(self.jacobian, mu=mu))  # type: ignore[type-var]
            value = _rms([a - b for a, b in zip(found, straight, strict=True)]) / size
            return value if math.isfinite(value) else math.inf

        mu = self.jacobian.mu
        small = error(10 * mu) < error(mu / 10)
        if small and "mu too small" in [f.name for f in self.findings]:
            return
        why = (
            "rounding is divided by mu"
            if small
            else "the response bends over that distance, or a path leaves its range"
        )
        self.say(
            "mu too small" if small else "mu too large",
            "problem",
            f"mu = {mu:g} puts the estimate {off:.2g} off: {why}. Ten times {'larger' if small else 'smaller'} it is "
            f"{min(error(10 * mu), error(mu / 10)):.2g}.",
        )

    def _other(self) -> str:
        if not self._has_path():
            return "With a black box, fewer outer variables or antithetic paths help."
        return "Since g can be differentiated, Implicit(CG(20)) or Unrolled(products='difference') have no such noise."

    def suggest(self) -> None:
        try:
            found = suggest(self.flat.problem, self.target, max_steps=self.max_steps)
        except (OptionError, CurvatureError) as error:
            self.say("no suggestion", "note", str(error))
            return
        self.numbers["suggestion"] = found


def _rms(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(length(t) ** 2 for t in tensors) / len(tensors))
