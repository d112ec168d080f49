"""What is a method? How y^N is reached, what dy/dx is taken to be, and on which batches; `fit` runs it on a problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pzobo import deprecated
from pzobo.errors import OptionError
from pzobo.jacobians.auto import Auto
from pzobo.jacobians.base import Jacobian, check_jacobian
from pzobo.jacobians.pzobo import PZOBO
from pzobo.outer.bilevel import Batches, Bilevel, Mixed, check_warm_start
from pzobo.outer.hozog import HOZOG
from pzobo.outer.problem import Problem
from pzobo.solvers import Solver


@dataclass(frozen=True)
class Method:
    """A solver and a Jacobian, as in `Argmin`, and what a whole run adds to them.

    Args:
        solver: how y^N is reached.
        jacobian: what dy/dx is taken to be; `Auto()` by default, which chooses on the problem.
        around: deprecated; `HOZOG` is a method of its own.
        warm_start: start each inner path where the last one ended, instead of at y0. "state" keeps the solver's state
            too: its momenta and moments.
        batch_size: S, rows of a batch of each inner step (PZOBO-S); all the training data by default.
        outer_batch_size: D_f, rows of a batch of the outer loss; all the validation data by default.
        jacobian_batches: how many batches of S rows the Jacobian draws for itself (Implicit and Nudged).
        mixed: which rows the Jacobian's last product, d2g/dx dy, is taken on where there are batches (Implicit and
            Nudged): "all" the training data, or the "batch" of the other products, which is cheaper. An outer variable
            that belongs to one row (the weight of an example) gets a gradient only where its row is seen.
        compile: as in `Argmin`.
        check: as in `Argmin`.
        audit: as in `Argmin`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.Method(pzobo.GD(lr=0.2, steps=20), pzobo.Implicit(pzobo.CG()))
        >>> found = pzobo.fit(problem, method, steps=50, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::25]]
        [0.38, 0.06, 0.05]
    """

    solver: Solver
    jacobian: Jacobian = field(default_factory=Auto)
    around: Literal["inner", "objective"] = field(default="inner", repr=False)
    warm_start: bool | Literal["state"] = False
    batch_size: int | None = None
    outer_batch_size: int | None = None
    jacobian_batches: int = 0
    mixed: Mixed = "all"
    compile: bool = False
    check: bool = True
    audit: bool | Literal["error"] = True

    def __post_init__(self) -> None:
        check_jacobian(self.jacobian)
        self._batches.check(self.solver)
        check_warm_start(self.warm_start, self.solver)
        if self.around not in ("inner", "objective"):
            raise OptionError(f'around={self.around!r}: drop it; HOZOG, which was around="objective", is pzobo.HOZOG.')
        if self.around == "objective":
            deprecated.warn('Method(around="objective")', "pzobo.HOZOG(solver, mu=..., directions=...)", stacklevel=4)
            self._hozog()

    @property
    def _batches(self) -> Batches:
        return Batches(self.batch_size, self.outer_batch_size, self.jacobian_batches, self.mixed)

    def start(self, problem: Problem, seed: int = 0) -> Bilevel:
        """The objective f(x, y^N(x)) of a problem, at x0."""
        if self.around == "objective":
            return self._hozog().start(problem, seed)
        argmin = problem.argmin(
            self.solver, self.jacobian.at_start(), compile=self.compile, check=self.check, audit=self.audit
        )
        return Bilevel(problem, argmin, self._batches, self.warm_start, seed)

    def _hozog(self) -> HOZOG:
        """What `around="objective"` meant."""
        j = self.jacobian
        if not isinstance(j, PZOBO) or j.only_at_z:
            raise OptionError(
                f'around="objective" smooths the whole outer loss at x: give jacobian=PZOBO(...), not {j!r}. '
                "Better: pzobo.HOZOG(solver, mu=..., directions=...)."
            )
        return HOZOG(
            self.solver,
            mu=j.mu,
            directions=j.directions,
            sampler=j.sampler,
            shrink=j.shrink,
            antithetic=j.antithetic,
            warm_start=self.warm_start,
            batch_size=self.batch_size,
            outer_batch_size=self.outer_batch_size,
            compile=self.compile,
            check=self.check,
        )
