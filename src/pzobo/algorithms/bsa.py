"""What is BSA? Steps of y, then the hypergradient by a random Neumann product (Ghadimi, Wang, 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.series import drawn, hypergradient
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class BSAState:
    """y."""

    y: Vector


@dataclass(frozen=True)
class BSA(SecondOrder[BSAState]):
    """BSA, a `SecondOrder` algorithm with two loops.

        `steps` times  y <- y - lr dg/dy      a new batch for each
        v = terms v_lr prod_{i=1}^{p} (I - v_lr H_i) df/dy     p drawn from 0 to terms - 1, a new batch for each factor
        D = df/dx - J^T v                     on one more batch of g

    A step costs `steps` + 1 gradients, and 1 + (terms - 1)/2 products on average; it carries y. v_lr must be at most
    1/L, where L is the largest eigenvalue of H. The paper's learning rates fall as k^(-1/2).

    Ghadimi, Wang, "Approximation methods for bilevel programming", arXiv:1802.02246, 2018, Algorithms 2 and 3.

    Checked against benchmark_bilevel (read), which other authors wrote.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        steps: steps of y.
        terms: terms of the series whose mean the random product has.
        v_lr: the step of the series, 1/L in the paper; the first `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.BSA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    steps: int = 10
    terms: int = 10
    v_lr: float | None = None

    def begin(self, at: Oracles) -> BSAState:
        return BSAState(at.y0)

    def step(self, at: Oracles, now: BSAState) -> Step[BSAState]:
        lr, v_lr, x, y = at.rate(self.lr), at.series_rate(self.v_lr, self.lr), at.x, now.y
        for _ in range(self.steps):
            y = y.step(lr, at.g_y(x, y, at.inner_batch()))
        outer, batches = at.outer_batch(), at.some_batches(self.terms - 1)
        value, d = hypergradient(at, x, y, outer, at.inner_batch(), batches, drawn(v_lr, self.terms))
        return Step(BSAState(y), value, d)
