"""Why does my hypergradient not help? One call that looks at the inner problem, the estimator and the two together."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pzobo.diagnosis.doubling import doubled
from pzobo.diagnosis.exact_hypergradient import Reference, length, reference
from pzobo.diagnosis.findings import Diagnosis, Finding, Level
from pzobo.diagnosis.flat import Flat, curvature, slope
from pzobo.diagnosis.lanczos import spectrum
from pzobo.diagnosis.suggestion import directions_for, suggest
from pzobo.diagnosis.trial import Trial, blame_mu, distance
from pzobo.errors import AuditWarning, CurvatureError, OptionError, PzoboError, SmoothingError
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.directional import Directional
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.outer.problem import Problem
from pzobo.solvers import GD, Iterative, Solver
from pzobo.tensors.trees import Tree

FLAT = 1e-6
"""An inner Hessian whose least eigenvalue is below this part of its largest is called flat."""


_NOT_FINITE = (
    "g(x, y0) is NaN or infinite before the first inner step. Look at the inner loss at this x and y0: a logarithm or "
    "a division at zero, a square root below it, or data that holds NaN."
)


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
        problem: what is examined.
        x: where, a tree like x0; the problem's own start by default.
        y0: where the inner path starts, a tree like y; the problem's own start by default.
        solver: the one in use; by default gradient descent of 20 steps with a learning rate that is safe at y0.
        jacobian: the one in use; `PZOBO()` by default.
        target: the relative error of the hypergradient that one would be content with.
        draws: how often the estimate is drawn.
        max_steps: how many inner steps may be suggested.
        seed: of everything that is drawn.

    Returns:
        A `Diagnosis`: findings in words, the errors as numbers, and a suggestion. `print` shows it.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> report = pzobo.doctor(problem, solver=pzobo.GD(lr=0.1, steps=10), jacobian=pzobo.PZOBO(mu=0.01))
        >>> report.healthy, report.steps_needed
        (False, 20)
    """
    if not 0 < target < 1:
        raise OptionError(f"target={target!r}: a relative error between 0 and 1, such as 0.3.")
    flat = Flat(problem, x, y0)
    generator = torch.Generator().manual_seed(seed)
    jacobian = PZOBO() if jacobian is None else jacobian
    if not torch.isfinite(flat.g(flat.x, flat.y0).detach()):
        return Diagnosis((Finding("inner loss not finite", "problem", _NOT_FINITE),))
    if solver is None:
        high = _inner_spectrum(flat, flat.y0, generator)[1]
        solver = GD(lr=1 / high if high > FLAT else 0.1, steps=20)  # no curvature says nothing of an lr
    if isinstance(solver, Iterative) and (not solver.constant or (solver.weight_decay and not solver.decoupled)):
        raise OptionError(
            f"doctor looks at the minimum of g, and {solver!r} has numbers that are no constants, or a weight decay: "
            "give constants, and put the weight decay into the inner loss."
        )
    jacobian.check(solver)
    patient = _Patient(flat, solver, jacobian, Trial(flat, solver, draws), target, max_steps, generator)
    return patient.examine()


def _inner_spectrum(flat: Flat, y: Tensor, generator: torch.Generator) -> tuple[float, float]:
    found = spectrum(curvature(lambda y: flat.g(flat.x, y), y), y, steps=60, generator=generator)
    return found.low, found.high


@dataclass
class _Patient:
    """The state of one examination: numbers so far, and findings."""

    flat: Flat
    solver: Solver
    jacobian: Jacobian
    trial: Trial
    target: float
    max_steps: int
    generator: torch.Generator
    findings: list[Finding] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    whole: str = "the true hypergradient"
    """What estimates are compared with."""

    def say(self, name: str, level: Level, text: str) -> None:
        self.findings.append(Finding(name, level, text))

    def examine(self) -> Diagnosis:
        y = self.flat.solve(self.solver)
        if self.inner_problem(y):
            truth = self.truth(y)
            if truth is not None:
                self.parts(truth)
                if truth.norm > 0:
                    self.path(truth)
                    self.estimate(truth)
                    self.others(truth)
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
                "depend smoothly on x. Regularise g, run more steps, or take Unrolled or PZOBO, which follow the path.",
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
        """The true hypergradient; that of the path where the inner problem has no one solution."""
        low, high = self.numbers["curvature"]
        if low > FLAT * high:
            found = reference(self.flat, start=y)
            if found.solved:
                return found
        if not isinstance(self.solver, Iterative):
            return None
        self.whole = "the exact hypergradient of the path"
        direct, v = self.flat.parts(y)
        return Reference(y, self.numbers["residual"], direct, v, self._of_path(self.solver.steps) - direct)

    def _of_path(self, steps: int) -> Tensor:
        assert isinstance(self.solver, Iterative)
        return self.flat.estimator(self.solver.with_steps(steps), Unrolled(checkpoint=True), check=False)()

    def parts(self, truth: Reference) -> None:
        """Direct and indirect share of the hypergradient."""
        whole = truth.norm or 1.0
        direct, indirect = length(truth.direct) / whole, length(truth.indirect) / whole
        self.numbers |= {"direct": direct, "indirect": indirect}
        text = f"the direct term is {direct:.2g} and the indirect term {indirect:.2g} of the hypergradient's length."
        if truth.norm == 0:
            self.zero(truth)
        elif indirect < 1e-3:
            gone = "f does not depend on y" if length(truth.v) < 1e-8 * whole else "g hardly lets y* depend on x"
            self.say("no indirect term", "note", f"{text} Direct() is enough: {gone}.")
        else:
            self.say("shares", "ok", text)

    def zero(self, truth: Reference) -> None:
        """Is a hypergradient of zero one? Solutions at other x, which no derivative is asked of, tell."""
        flat = self.flat
        u = torch.randn(flat.p, generator=self.generator, dtype=torch.float64).to(flat.x)
        u = u / length(u) * max(length(flat.x), 1.0) * 1e-2

        def value(x: Tensor) -> float:
            y = flat.solve(self.solver, x=x)
            return float(flat.f(x, y).detach())

        up, middle, down = value(flat.x + u), value(flat.x), value(flat.x - u)
        moved, bent = abs(up - down), abs(up - 2 * middle + down)
        if moved > max(bent, 1e-6 * abs(middle)) or not self.whole.startswith("the true"):
            self.say(
                "no derivative",
                "problem",
                f"{self.whole} is zero at x, where f(x, y^N(x)) goes from {down:.4g} over {middle:.4g} to {up:.4g} on "
                "a short line. Where g has kinks (|y|, ReLU, max) or steps, derivatives do not tell of its response: "
                "smooth g, or take PZOBO with a mu of the size of an outer step, which measures differences.",
            )
        else:
            self.say("no hypergradient", "note", "it is zero at x: x is a stationary point.")

    def path(self, truth: Reference) -> None:
        """Are there enough inner steps?"""
        residual = self.numbers["residual"]
        if not isinstance(self.solver, Iterative) or not self.whole.startswith("the true"):
            level: Level = "ok" if residual < 1e-2 else "warning"
            self.say("inner solution", level, f"|dg/dy| at y^N is {residual:.1e} of that at y0.")
            return

        def error(steps: int) -> float:
            return length(self._of_path(steps) - truth.gradient) / truth.norm

        allowed, steps = self.target / 2, self.solver.steps
        off = self.numbers["path_error"] = error(steps)
        rate = float(getattr(self.solver, "lr", 0.0)) if "map" in self.solver.gives else 0.0
        needed, left = doubled(error, steps, allowed, self.max_steps, rate * self.numbers["curvature"][0])
        self.numbers["steps_needed"] = needed if left <= allowed else None
        text = f"N = {steps} steps leave |dg/dy| at {residual:.1e} of its start, and the hypergradient {off:.2g} off."
        if off <= allowed:
            self.say("inner solution", "ok", text)
        else:
            more = f"about {needed} steps" if left <= allowed else f"more than {needed} steps, or another solver"
            self.say("too few inner steps", "problem", f"{text} It takes {more}; or start at a warm y0.")

    def estimate(self, truth: Reference) -> None:
        """How good is the estimate in use, and what is it that makes it bad?"""
        try:
            with warnings.catch_warnings(record=True, action="always") as said:
                self.flat.estimator(self.solver, self.jacobian, audit=True)()
        except SmoothingError as problem:
            self.say("mu too small", "problem", str(problem))
        except PzoboError as problem:
            self.say("no estimate", "problem", str(problem))
            return
        for warning in said:
            if warning.category is AuditWarning:
                self.say("audit", "warning", str(warning.message))
        found = self.trial(self.jacobian)
        mean = torch.stack(found).mean(0)
        noise = distance(found, [mean]) * math.sqrt(len(found) / max(1, len(found) - 1))
        error = self.numbers["error"] = distance(found, [truth.gradient]) / truth.norm
        cosines = [float(torch.dot(e, truth.gradient)) / max(length(e) * truth.norm, 1e-300) for e in found]
        cosine = self.numbers["cosine"] = sum(cosines) / len(cosines)
        ratio = self.numbers["signal_to_noise"] = length(mean) / noise if noise > 1e-12 * length(mean) else math.inf
        if isinstance(self.jacobian, Directional):
            self.directions(truth, found)
        noisy = "no noise" if math.isinf(ratio) else f"signal to noise {ratio:.2g}"
        name = type(self.jacobian).__name__
        text = f"{name} is {error:.2g} off {self.whole} (cosine {cosine:.2f}, {noisy})."
        self.say("estimate", "ok" if error <= self.target else "warning", text)

    def directions(self, truth: Reference, found: list[Tensor]) -> None:
        """The parts of the error that mu and the directions have, from the same directions without mu."""
        jacobian = self.jacobian
        assert isinstance(jacobian, Directional)
        straight = self.trial.without_mu(jacobian, truth, self.generator)
        if isinstance(jacobian, PZOBO):
            off = self.numbers["mu_error"] = distance(found, straight) / truth.norm
            if not off <= self.target / 2 and "mu too small" not in [f.name for f in self.findings]:
                self.say(*blame_mu(self.trial, jacobian, straight, truth.norm))
        exact = self._of_path(self.solver.steps) if isinstance(self.solver, Iterative) else truth.gradient
        off = self.numbers["direction_error"] = distance(straight, [exact]) / truth.norm
        if off > self.target:
            kind = type(jacobian.sampler).__name__
            enough = directions_for(jacobian.sampler, self.flat.p, self.target, self.numbers["indirect"])
            self.say(
                "too few directions",
                "problem",
                f"Q = {jacobian.directions} for p = {self.flat.p} outer variables leaves {off:.2g} of the "
                f"hypergradient as noise or shrinkage; {self.target:g} takes Q = {enough} {kind} directions.",
            )

    def others(self, truth: Reference) -> None:
        """Which other estimate would do at this x, with this solver?"""
        found = self.trial.others(truth, self.generator)
        good = [name for name, off in found.items() if off <= self.target]
        advice = f"Take {good[0]}." if good else "None of them is good enough: look at the inner problem first."
        listed = ", ".join(f"{name} {off:.1e}" for name, off in found.items())
        self.say("other estimates", "note", f"relative errors: {listed}. {advice}")

    def suggest(self) -> None:
        try:
            found = suggest(self.flat.problem, self.target, max_steps=self.max_steps)
        except (OptionError, CurvatureError) as error:
            self.say("no suggestion", "note", str(error))
            return
        self.numbers["suggestion"] = found
