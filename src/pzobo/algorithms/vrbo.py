"""What is VRBO? SPIDER on the inner and the outer direction, in an inner loop (Yang, Ji, Liang, 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.series import hypergradient, summed
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class VRBOState:
    """y, x of the step before, and the two directions."""

    y: Vector
    x_before: Vector
    d_y: Vector
    d_x: Vector


@dataclass(frozen=True)
class VRBO(SecondOrder[VRBOState]):
    """VRBO, a `SecondOrder` algorithm with an inner loop.

    After the outer step from x to x', at the point before p = (x, y) and the new one p' = (x', y), `steps` times:

        d_y <- d_y + dg/dy(p') - dg/dy(p),   d_x <- d_x + D(p') - D(p)   on the same batches
        y <- y - lr d_y;   p = p',  p' = (x', y)

    and the two corrections once more, for the last y. Every `period`-th outer step starts d_y = dg/dy and d_x = D anew
    on all the data. D(x, y) = df/dx - J^T v with v = v_lr sum_{j=0}^{terms} prod_{i<=j} (I - v_lr H_i) df/dy.

    The optimizer of `fit` moves x between two calls, so the inner loop of a step is the first thing that the next one
    does. A step costs 4 (steps + 1) gradients and 2 (steps + 1)(terms + 1) products; it carries y, x before and two
    directions. The learning rates are constant.

    Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021, Algorithm 2.

    Checked against the authors' code (read), whose last step of y is followed by no correction, and benchmark_bilevel.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        steps: steps of y.
        period: outer steps from one pass over the data to the next.
        terms: factors of the longest product of the series.
        v_lr: the step of the series, at most 1/L; the first `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.VRBO(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.1, 0.07]
    """

    lr: Rate = 0.1
    steps: int = 3
    period: int = 10
    terms: int = 10
    v_lr: float | None = None

    def begin(self, at: Oracles) -> VRBOState:
        return VRBOState(at.y0, at.x, at.y0.zeros(), at.x.zeros())

    def alike(self, k: int) -> bool:
        return k % self.period > 0

    def step(self, at: Oracles, now: VRBOState) -> Step[VRBOState]:
        x, y, d_y, d_x = at.x, now.y, now.d_y, now.d_x
        inverse = summed(at.series_rate(self.v_lr, self.lr))
        value: Tensor | None = None
        if at.k > 0:
            lr = at.rate(self.lr, ago=1)
            before = (now.x_before, y)
            for t in range(self.steps + 1):
                inner, outer, mixed = at.inner_batch(), at.outer_batch(), at.inner_batch()
                rest = (outer, mixed, [(at.inner_batch(), None) for _ in range(self.terms)], inverse)
                new, old = at.twice(at.g_y, (x, y, inner), (*before, inner))
                (value, d), (_, d_before) = at.twice(hypergradient, (at, x, y, *rest), (at, *before, *rest))
                d_y, d_x, before = d_y + (new - old), d_x + (d - d_before), (x, y)
                if t < self.steps:
                    y = y.step(lr, d_y)
        if at.k % self.period == 0:
            d_y = at.g_y(x, y, at.train)
            value, d_x = hypergradient(at, x, y, at.val, at.train, [(at.train, None)] * self.terms, inverse)
        assert value is not None
        return Step(VRBOState(y, x, d_y, d_x), value, d_x)
