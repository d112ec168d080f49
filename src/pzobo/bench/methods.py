"""Which methods are compared? By their names in the paper, the controls, PZOBO in three forms, and algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pzobo import algorithms
from pzobo.errors import OptionError
from pzobo.inner.kernel import Products
from pzobo.jacobians import CG, PZOBO, Direct, FixedPoint, ForwardMode, Implicit, Neumann, Nudged, Unrolled
from pzobo.jacobians.base import Jacobian
from pzobo.outer.hozog import HOZOG
from pzobo.outer.method import Method
from pzobo.outer.objective import Startable
from pzobo.outer.problem import Problem
from pzobo.solvers import GD, ClosedForm, HeavyBall, Iterative
from pzobo.zeroth_order.directions import UnitPerTensor


@dataclass(frozen=True)
class Setup:
    """What all methods of an experiment share.

    Args:
        solver: the inner solver, with its N steps.
        mu: the length of a perturbation.
        directions: Q.
        iterations: of CG, the fixed point and the Neumann series.
        rate: the lr of the maps of AID-FP and the Neumann series; that of the solver.
        warm_start: start each path where the last one ended.
        batch_size: of the inner and the outer batches; all data by default.
        compile: compile the inner steps.
        check: refuse what is not finite or is rounding noise.
        converged: a solver and a number of CG steps that solve the inner problem, for `exact` without a formula.
        outer_steps: K of a run, for searches that make as many trainings as PZOBO with all directions.
        compile_algorithms: compile whole steps of algorithms with a memory.
        algorithm_batch: rows of the batches of algorithms with a memory; all data by default.
        outer_whole: their outer batches are all the outer data, which is little.
        algorithm_rate: the step of their inner variables, which noise of batches asks to be shorter; `rate` by default.
    """

    solver: Iterative
    mu: float
    directions: int
    iterations: int
    rate: float
    warm_start: bool = False
    batch_size: int | None = None
    compile: bool = False
    check: bool = True
    converged: tuple[Iterative, int] | None = None
    algorithm_batch: int | None = None
    outer_whole: bool = False
    outer_steps: int = 25
    compile_algorithms: bool = False
    algorithm_rate: float | None = None

    @property
    def memory_rate(self) -> float:
        """The step of the inner variables of algorithms with a memory."""
        return self.rate if self.algorithm_rate is None else self.algorithm_rate

    def method(self, jacobian: Jacobian, own: int = 0) -> Method:
        """A Jacobian with everything else as for the others; `own` batches are drawn for it if there are batches."""
        return Method(
            self.solver,
            jacobian,
            warm_start=self.warm_start,
            batch_size=self.batch_size,
            outer_batch_size=self.batch_size,
            jacobian_batches=own if self.batch_size is not None else 0,
            mixed="batch",  # as in the papers of AID-CG-S, AID-FP-S and stocBiO
            compile=self.compile,
            check=self.check,
        )


Build = Callable[[Setup, Problem], Startable]


@dataclass(frozen=True)
class Named:
    """A method by its name: a label for plots, one line about it, and how it is made for an experiment."""

    label: str
    about: str
    build: Build
    tuned: bool = True
    """Whether it has an outer learning rate."""


def _pzobo(sampled: bool = False, shrink: bool = True, at_x: bool = True) -> Build:
    def build(setup: Setup, problem: Problem) -> Method:
        jacobian = PZOBO(setup.mu, setup.directions, shrink=shrink, at="x" if at_x else "auto")
        return setup.method(replace(jacobian, sampler=UnitPerTensor()) if sampled else jacobian)

    return build


def _hozog(setup: Setup, problem: Problem) -> HOZOG:
    return HOZOG(
        setup.solver,
        setup.mu,
        setup.directions,
        shrink=False,
        warm_start=setup.warm_start,
        batch_size=setup.batch_size,
        outer_batch_size=setup.batch_size,
        compile=setup.compile,
        check=setup.check,
    )


def _cg(products: Products) -> Build:
    # One batch for the system, another for the mixed derivative.
    return lambda setup, problem: setup.method(Implicit(CG(setup.iterations), products), own=2)


def _fixed_point(products: Products) -> Build:
    def build(setup: Setup, problem: Problem) -> Method:
        inverse = FixedPoint(setup.iterations, lr=setup.rate)
        if isinstance(setup.solver, HeavyBall):
            inverse = FixedPoint(setup.iterations)  # the map of the solver itself
        return setup.method(Implicit(inverse, products), own=setup.iterations)

    return build


def _neumann(setup: Setup, problem: Problem) -> Method:
    return setup.method(Implicit(Neumann(setup.rate, setup.iterations)), own=setup.iterations + 1)


def _batched(build: Build) -> Build:
    """The same on the batches of the algorithms and with their steps of y, where the Jacobians see all data."""

    def on_batches(setup: Setup, problem: Problem) -> Startable:
        solver = GD(setup.memory_rate, setup.solver.steps)
        return build(replace(setup, solver=solver, batch_size=setup.algorithm_batch), problem)

    return on_batches


def _plain(jacobian: Jacobian) -> Build:
    return lambda setup, problem: setup.method(jacobian)


def _forward(setup: Setup, problem: Problem) -> Method:
    return setup.method(ForwardMode(setup.directions))


def _exact(setup: Setup, problem: Problem) -> Method:
    """dPhi/dx at a solution: differentiate the formula for y*, or solve the inner problem and its linear system."""
    if problem.solution is not None:
        return Method(ClosedForm(problem.solution), Unrolled())
    if setup.converged is None:
        raise OptionError("exact: this problem has no formula for y*, and solving it anew at each step takes too long.")
    solver, iterations = setup.converged
    return Method(solver, Implicit(CG(iterations, tol=1e-8)), warm_start=True, compile=setup.compile)


METHODS: dict[str, Named] = {
    "direct": Named("Direct (no Jacobian)", "the control: the response Jacobian is left out", _plain(Direct())),
    "exact": Named("Exact", "dPhi/dx at the inner solution y*, where it can be had", _exact),
    "pzobo": Named("PZOBO, default here", "shrunk to least error, at the smaller of x and z", _pzobo(at_x=False)),
    "pzobo-authors": Named("PZOBO, authors' code", "directions of unit length per tensor, at x", _pzobo(sampled=True)),
    "pzobo-paper": Named("PZOBO, paper's text", "Gaussian directions, unbiased, at x", _pzobo(shrink=False)),
    "hozog": Named("HOZOG", "a zeroth-order estimate of the whole hypergradient", _hozog),
    "aid-cg": Named("AID-CG", "implicit, by conjugate gradients", _cg("autodiff")),
    "aid-fp": Named("AID-FP", "implicit, by the fixed-point iteration", _fixed_point("autodiff")),
    "itd-r": Named("ITD-R", "unrolled, reverse mode: exact for y^N", _plain(Unrolled())),
    "aid-cg-difference": Named("AID-CG, differences", "the same without Hessians", _cg("difference")),
    "aid-fp-difference": Named("AID-FP, differences", "the same without Hessians", _fixed_point("difference")),
    "itd-r-difference": Named(
        "ITD-R, differences", "the same without Hessians", _plain(Unrolled(products="difference"))
    ),
    "nudged": Named("Nudged", "two more paths, nudged towards v and away from it", _plain(Nudged())),
    "forward": Named("Forward mode", "exact directional derivatives: PZOBO with mu -> 0", _forward),
}

STOCHASTIC: dict[str, Named] = {
    "direct": METHODS["direct"],
    "pzobo-s": replace(METHODS["pzobo"], label="PZOBO-S, default here"),
    "pzobo-s-authors": replace(METHODS["pzobo-authors"], label="PZOBO-S, authors' code"),
    "pzobo-s-paper": replace(METHODS["pzobo-paper"], label="PZOBO-S, paper's text"),
    "aid-cg-s": replace(METHODS["aid-cg"], label="AID-CG-S"),
    "aid-fp-s": replace(METHODS["aid-fp"], label="AID-FP-S"),
    "stocbio": Named("stocBiO", "implicit, by the Neumann series on batches of its own", _neumann),
    "itd-r": METHODS["itd-r"],
    "itd-r-difference": METHODS["itd-r-difference"],
    "nudged": METHODS["nudged"],
    "forward": METHODS["forward"],
    "hozog": METHODS["hozog"],
}
"""The methods for experiments with minibatches."""

BATCHED: dict[str, Named] = {"stocbio": replace(STOCHASTIC["stocbio"], build=_batched(_neumann))}
"""Jacobians on the batches of the algorithms, where the others see all data."""


def _run(setup: Setup, kind: type[algorithms.Algorithm[Any]]) -> dict[str, Any]:
    """What every algorithm gets of a setup. Those that cannot be compiled are not."""
    inner = setup.algorithm_batch
    outer = None if setup.outer_whole else inner
    compile = setup.compile_algorithms and not kind.not_compiled
    return {"batch_size": inner, "outer_batch_size": outer, "check": setup.check, "compile": compile}


def _algorithm(kind: type[algorithms.Algorithm[Any]], **numbers: Any) -> Build:
    """An algorithm with the lr of the inner steps, its own numbers, and batches at both levels."""

    def build(setup: Setup, problem: Problem) -> algorithms.Algorithm[Any]:
        return kind(**{"lr": setup.memory_rate, **numbers}, **_run(setup, kind))

    return build


def _sama(setup: Setup, problem: Problem) -> algorithms.SAMA:
    return algorithms.SAMA(GD(setup.memory_rate, 1), **_run(setup, algorithms.SAMA))


def _stn(setup: Setup, problem: Problem) -> algorithms.STN:
    # The step of T is longer by |x|^2 than that of y.
    rate = setup.memory_rate / (1 + float(problem.x0.square().sum()))
    return algorithms.STN(rate, **_run(setup, algorithms.STN))


_A = algorithms
ALGORITHMS: dict[str, Named] = {
    "soba": Named("SOBA", "one step of y, v and x at once", _algorithm(_A.SOBA)),
    "ma-soba": Named("MA-SOBA", "SOBA with an averaged outer direction", _algorithm(_A.MASOBA)),
    "saba": Named("SABA", "SOBA with SAGA's variance reduction", _algorithm(_A.SABA)),
    "srba": Named("SRBA", "SOBA with SARAH's variance reduction", _algorithm(_A.SRBA)),
    "fsla": Named("FSLA", "one step of y and v, STORM on x", _algorithm(_A.FSLA)),
    "fdehbo": Named("FdeHBO", "one loop by differences, STORM on everything", _algorithm(_A.FdeHBO)),
    "amigo": Named("AmIGO", "ten warm steps of y and of v", _algorithm(_A.AmIGO)),
    "bsa": Named("BSA", "ten steps of y, a random Neumann product", _algorithm(_A.BSA)),
    "ttsa": Named("TTSA", "one step of y, a random Neumann product", _algorithm(_A.TTSA)),
    "sustain": Named("SUSTAIN", "STORM, a random Neumann product", _algorithm(_A.SUSTAIN)),
    "mrbo": Named("MRBO", "STORM, a Neumann series", _algorithm(_A.MRBO)),
    "vrbo": Named("VRBO", "SPIDER, a Neumann series", _algorithm(_A.VRBO)),
    "f2sa": Named("F2SA", "first order, a growing penalty", _algorithm(_A.F2SA)),
    "bome": Named("BOME", "first order, a barrier", _algorithm(_A.BOME)),
    "bvfim": Named("BVFIM", "first order, the value function behind a barrier", _algorithm(_A.BVFIM)),
    "meha": Named("MEHA", "first order, the Moreau envelope", _algorithm(_A.MEHA)),
    "iaptt": Named("IAPTT", "a learned start, the path up to its worst point", _algorithm(_A.IAPTT)),
    "sama": Named("SAMA", "through one step of gradient descent", _sama),
}
"""Algorithms with a memory. STABLE, STN and Delta-STN keep matrices, which few problems are small enough for."""

SMALL: dict[str, Named] = {
    "stable": Named("STABLE", "running estimates of the matrices H and J", _algorithm(_A.STABLE)),
    "stn": Named("STN", "a learned response y = w + T x", _stn),
    "delta-stn": Named("Delta-STN", "a learned response around x itself", _algorithm(_A.DeltaSTN)),
}
"""Those that keep a matrix."""
