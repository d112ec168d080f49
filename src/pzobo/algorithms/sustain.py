"""What is SUSTAIN? STORM on the inner and the outer direction, by random Neumann products (Khanduri et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import TWO_THIRDS, Rate, check_share
from pzobo.algorithms.series import Inverse, Used, drawn, hypergradient
from pzobo.algorithms.storm import storm
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class SUSTAINState:
    """y, the point before, and the two momenta."""

    y: Vector
    x_before: Vector
    y_before: Vector
    m_y: Vector
    m_x: Vector


def begin(at: Oracles) -> SUSTAINState:
    """Before the first step of SUSTAIN and of MRBO."""
    return SUSTAINState(at.y0, at.x, at.y0, at.y0.zeros(), at.x.zeros())


def storm_step(
    at: Oracles, now: SUSTAINState, lr: float, weight: float, batches: Sequence[Used], inverse: Inverse
) -> Step[SUSTAINState]:
    """One step of SUSTAIN and of MRBO, which differ in the Neumann product."""
    here, before = (at.x, now.y), (now.x_before, now.y_before)
    inner, outer = at.inner_batch(), at.outer_batch()
    rest = (outer, at.inner_batch(), batches, inverse)
    if at.k == 0:
        m_y = at.g_y(*here, inner)
        value, m_x = hypergradient(at, *here, *rest)
    else:
        new, old = at.twice(at.g_y, (*here, inner), (*before, inner))
        m_y = storm(now.m_y, new, old, weight)
        (value, d), (_, d_before) = at.twice(hypergradient, (at, *here, *rest), (at, *before, *rest))
        m_x = storm(now.m_x, d, d_before, weight)
    return Step(SUSTAINState(now.y.step(lr, m_y), *here, m_y, m_x), value, m_x)


@dataclass(frozen=True)
class SUSTAIN(SecondOrder[SUSTAINState]):
    """SUSTAIN, a `SecondOrder` algorithm with a single loop.

        m_y <- dg/dy(x, y) + (1 - momentum) (m_y - dg/dy(x, y of the step before))
        m_x <- D(x, y) + (1 - momentum) (m_x - D(x, y of the step before))
        y   <- y - lr m_y;  D = m_x

    where D(x, y) = df/dx - J^T v with v = terms v_lr prod_{i=1}^{p} (I - v_lr H_i) df/dy, p drawn from 0 to terms - 1.
    Both points see the same batches and the same p; at the first step the momenta are the directions themselves. A step
    costs four gradients, and 2 + (terms - 1) products on average; it carries y, the point before and two momenta. The
    paper's learning rates fall as k^(-1/3), its momentum as k^(-2/3).

    Khanduri, Zeng, Hong, Wai, Wang, Yang, "A near-optimal algorithm for stochastic bilevel optimization via
    double-momentum", NeurIPS 2021.

    Checked against benchmark_bilevel (run beside with one term, its random product read), which other authors wrote.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        momentum: STORM's weight of the new direction, in (0, 1], or a function of the outer step.
        terms: terms of the series whose mean the random product has.
        v_lr: the step of the series, 1/L in the paper; the first `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.SUSTAIN(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    momentum: Rate = TWO_THIRDS
    terms: int = 10
    v_lr: float | None = None

    def __post_init__(self) -> None:
        check_share("SUSTAIN: momentum", self.momentum)
        super().__post_init__()

    def begin(self, at: Oracles) -> SUSTAINState:
        return begin(at)

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: SUSTAINState) -> Step[SUSTAINState]:
        batches = at.some_batches(self.terms - 1)
        inverse = drawn(at.series_rate(self.v_lr, self.lr), self.terms)
        return storm_step(at, now, at.rate(self.lr), at.rate(self.momentum, most=1.0), batches, inverse)
