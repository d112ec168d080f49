"""What is HOZOG? A zeroth-order gradient of the whole objective F(x) = f(x, y^N(x)) (Gu et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from pzobo.argmin import Argmin
from pzobo.jacobians.direct import Direct
from pzobo.options import freeze
from pzobo.outer.bilevel import Batches, Bilevel, check_warm_start
from pzobo.outer.problem import Problem
from pzobo.solvers import Solver
from pzobo.tensors.trees import Tree
from pzobo.zeroth_order.directions import Gaussian, Sampler
from pzobo.zeroth_order.estimate import check_batching, check_directions, check_mu, check_sampler
from pzobo.zeroth_order.smoothing import smooth


@dataclass(frozen=True)
class HOZOG:
    """s/Q sum_j (F(x + mu u_j) - F(x)) / mu u_j, with F(x) = f(x, y^N(x)): the control of PZOBO.

    Where PZOBO puts the primitive `smooth` around the inner solution alone, HOZOG puts it around the outer loss too.

    Args:
        solver: how y^N is reached.
        mu: the length of the perturbation.
        directions: Q. Each costs one path and one outer loss (two with `antithetic`).
        sampler: how the directions are drawn.
        shrink: True scales the estimate for least mean squared error, False is the unbiased one, a number is taken as
            it is.
        antithetic: central differences.
        batching: "loop" evaluates one by one, "vmap" all together, a number that many at a time.
        warm_start: start each inner path where the last one ended, instead of at y0. "state" keeps the solver's state
            too: its momenta and moments.
        batch_size: S, rows of a batch of each inner step; all the training data by default.
        outer_batch_size: D_f, rows of a batch of the outer loss; all the validation data by default.
        compile: as in `Argmin`.
        check: as in `Argmin`.

    Raises:
        SmoothingError: `mu` is not positive.
        DirectionsError: `directions` is not a whole number of at least 1.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.HOZOG(pzobo.GD(lr=0.2, steps=20), mu=1e-3, directions=3, sampler=pzobo.Orthogonal())
        >>> found = pzobo.fit(problem, method, steps=50, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::25]]
        [0.38, 0.06, 0.05]
    """

    solver: Solver
    mu: float = 0.01
    directions: int = 1
    sampler: Sampler = field(default_factory=Gaussian)
    shrink: bool | float = True
    antithetic: bool = False
    batching: str | int = "loop"
    warm_start: bool | Literal["state"] = False
    batch_size: int | None = None
    outer_batch_size: int | None = None
    compile: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        check_mu(self.mu)
        check_directions(self.directions)
        check_sampler(self.sampler, self.shrink)
        check_batching(self.batching)
        self._batches.check(self.solver)
        check_warm_start(self.warm_start, self.solver)
        freeze(self)

    @property
    def _batches(self) -> Batches:
        return Batches(self.batch_size, self.outer_batch_size)

    def start(self, problem: Problem, seed: int = 0) -> Smoothed:
        """The objective F of a problem, at x0."""
        argmin = problem.argmin(self.solver, Direct(), compile=self.compile, check=self.check)
        return Smoothed(problem, argmin, self, seed)


class Smoothed(Bilevel):
    """F(x) = f(x, y^N(x)) with the zeroth-order gradient of HOZOG."""

    def __init__(self, problem: Problem, argmin: Argmin, method: HOZOG, seed: int) -> None:
        super().__init__(problem, argmin, method._batches, method.warm_start, seed)
        self.method, self._sampler = method, method.sampler.at_start()

    def around(self, value: Callable[[Tree], Tensor]) -> Tensor:
        options = self.method
        smoothed: Tensor = smooth(
            value,
            self.x,
            mu=options.mu,
            directions=options.directions,
            sampler=self._sampler,
            shrink=options.shrink,
            antithetic=options.antithetic,
            batching=options.batching,
        )
        return smoothed

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sampler": self._sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._sampler.load_state_dict(state["sampler"])
