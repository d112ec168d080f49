"""What is MA-SOBA? SOBA whose outer direction is a moving average (Chen, Xiao, Balasubramanian, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate, check_share
from pzobo.algorithms.soba import directions
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class MASOBAState:
    """y, v as in SOBA, and the average h of the outer directions."""

    y: Vector
    v: Vector
    h: Vector


@dataclass(frozen=True)
class MASOBA(SecondOrder[MASOBAState]):
    """MA-SOBA, a `SecondOrder` algorithm with a single loop.

        y <- y - lr dg/dy
        v <- v - v_lr (H v + df/dy)
        h <- (1 - average) h + average (df/dx + J^T v)
        D  = h

    All right-hand sides are at the old point, h is 0 at first. The average takes the bias of v out of the analysis, and
    learning rates need no decay. A step costs what one of SOBA costs; it carries y, v and h.

    Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel optimization under relaxed smoothness
    conditions", JMLR 2024.

    Checked against a baseline of other authors only (that of AccBO), which moves y, v and x one after the other.

    Args:
        lr: the step of y; a number, or a function of the outer step such as `Decay(0.1, 0.5)`.
        v_lr: the step of v; `lr` by default.
        average: the weight of the new direction in h, in (0, 1], or a function of the outer step.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.MASOBA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.05]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None
    average: Rate = 0.1

    system = "v"

    def __post_init__(self) -> None:
        check_share("MASOBA: average", self.average)
        super().__post_init__()

    def begin(self, at: Oracles) -> MASOBAState:
        return MASOBAState(at.y0, at.y0.zeros(), at.x.zeros())

    def step(self, at: Oracles, now: MASOBAState) -> Step[MASOBAState]:
        lr, share = at.rate(self.lr), at.rate(self.average, most=1.0)
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        d = directions(at, at.x, now.y, now.v, at.inner_batch(), at.outer_batch())
        h = now.h.times(1 - share) + d.x.times(share)
        return Step(MASOBAState(now.y.step(lr, d.y), now.v.step(v_lr, d.v), h), d.value, h)
