"""What is SRBA? SOBA with SARAH's recursive directions (Dagréou, Moreau, Vaiter, Ablin, 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.soba import directions
from pzobo.algorithms.vector import Vector
from pzobo.options import positive


@dataclass(frozen=True)
class SRBAState:
    """y and v, the point before (x, y, v), and the three directions."""

    y: Vector
    v: Vector
    x_before: Vector
    y_before: Vector
    v_before: Vector
    d_y: Vector
    d_v: Vector
    d_x: Vector


@dataclass(frozen=True)
class SRBA(SecondOrder[SRBAState]):
    """SRBA, a `SecondOrder` algorithm with a single loop.

    SOBA's three directions d are corrected by their change on one pair of batches b,

    d <- d + d_b(x, y, v) - d_b(x, y, v of the step before),

    and are those of all the data at every `period`-th step. Then y <- y - lr d_y, v <- v - v_lr d_v, D = d_x.

    A step costs twice what one of SOBA costs, and a pass over the data once a period. It carries y, v, the point before
    and three directions. With the full batch it is SOBA. The learning rates are constant.

    Dagréou, Moreau, Vaiter, Ablin, "A lower bound and a near-optimal algorithm for bilevel empirical risk
    minimization", AISTATS 2024.

    Checked against the authors' code (benchmark_bilevel, read), which has no ball.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        v_lr: the step of v; `lr` by default.
        period: steps from one pass over the data to the next.
        radius: v is kept within a ball of this radius, as the paper's theory needs; no ball by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.SRBA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None
    period: int = 100
    radius: float = math.inf

    system = "v"

    def __post_init__(self) -> None:
        if self.radius != math.inf:
            positive("SRBA: radius", self.radius)
        super().__post_init__()

    def begin(self, at: Oracles) -> SRBAState:
        y, v, x = at.y0, at.y0.zeros(), at.x
        return SRBAState(y, v, x, y, v, y.zeros(), v, x.zeros())

    def alike(self, k: int) -> bool:
        return k % self.period > 0

    def step(self, at: Oracles, now: SRBAState) -> Step[SRBAState]:
        lr, x = at.rate(self.lr), at.x
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        here, before = (x, now.y, now.v), (now.x_before, now.y_before, now.v_before)
        if at.k % self.period == 0:
            new = directions(at, *here, at.train, at.val)
            d_y, d_v, d_x = new.y, new.v, new.x
        else:
            batches = at.inner_batch(), at.outer_batch()
            new, old = at.twice(directions, (at, *here, *batches), (at, *before, *batches))
            d_y, d_v, d_x = now.d_y + (new.y - old.y), now.d_v + (new.v - old.v), now.d_x + (new.x - old.x)
        v = (now.v.step(v_lr, d_v)).within(self.radius)
        return Step(SRBAState(now.y.step(lr, d_y), v, *here, d_y, d_v, d_x), new.value, d_x)
