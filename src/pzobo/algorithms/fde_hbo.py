"""What is FdeHBO? One loop without Hessians: differences of gradients, and STORM on everything (Yang et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import TWO_THIRDS, Rate, check_share
from pzobo.algorithms.soba import directions
from pzobo.algorithms.storm import storm
from pzobo.algorithms.vector import Vector
from pzobo.inner.kernel import Products
from pzobo.options import positive


@dataclass(frozen=True)
class FdeHBOState:
    """y and v, the point before, and the three momenta."""

    y: Vector
    v: Vector
    x_before: Vector
    y_before: Vector
    v_before: Vector
    m_y: Vector
    m_v: Vector
    m_x: Vector


@dataclass(frozen=True)
class FdeHBO(SecondOrder[FdeHBOState]):
    """FdeHBO, a `SecondOrder` algorithm with a single loop.

    SOBA's three directions d, with H v and J^T v by central differences of gradients at y +- e v, each by STORM:

        m <- d(x, y, v) + (1 - momentum) (m - d(x, y, v of the step before))   on the same batches; m = d at first
        y <- y - lr m_y,   v <- v - v_lr m_v, projected to a ball,   D = m_x

    The projection keeps e v short where v is still far off. The length e is that of the library's difference products.
    A step costs twice what one of SOBA costs, and no second derivatives; it carries y, v, the point before and three
    momenta. The paper's learning rates fall as k^(-1/3), its momentum as k^(-2/3).

    Yang, Xiao, Ji, "Achieving O(eps^-1.5) complexity in Hessian/Jacobian-free stochastic bilevel optimization",
    NeurIPS 2023.

    Checked against its abstract and summaries only: a single loop, differences with a projection of v, momentum on all
    three. Neither its pseudo-code nor code of the authors was found.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        v_lr: the step of v; `lr` by default.
        momentum: STORM's weight of the new direction, in (0, 1], or a function of the outer step.
        radius: v is kept within a ball of this radius; no ball by default.
        products: "difference", as in the paper; the others are as in `SecondOrder`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.FdeHBO(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None
    momentum: Rate = TWO_THIRDS
    radius: float = math.inf
    products: Products = field(default="difference", kw_only=True)

    system = "v"

    def __post_init__(self) -> None:
        check_share("FdeHBO: momentum", self.momentum)
        if self.radius != math.inf:
            positive("FdeHBO: radius", self.radius)
        super().__post_init__()

    def begin(self, at: Oracles) -> FdeHBOState:
        y, v, x = at.y0, at.y0.zeros(), at.x
        return FdeHBOState(y, v, x, y, v, y.zeros(), v, x.zeros())

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: FdeHBOState) -> Step[FdeHBOState]:
        lr, weight, x = at.rate(self.lr), at.rate(self.momentum, most=1.0), at.x
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        here, before = (x, now.y, now.v), (now.x_before, now.y_before, now.v_before)
        batches = at.inner_batch(), at.outer_batch()
        if at.k == 0:
            new = directions(at, *here, *batches)
            m_y, m_v, m_x = new.y, new.v, new.x
        else:
            new, old = at.twice(directions, (at, *here, *batches), (at, *before, *batches))
            m_y = storm(now.m_y, new.y, old.y, weight)
            m_v = storm(now.m_v, new.v, old.v, weight)
            m_x = storm(now.m_x, new.x, old.x, weight)
        v = (now.v.step(v_lr, m_v)).within(self.radius)
        return Step(FdeHBOState(now.y.step(lr, m_y), v, *here, m_y, m_v, m_x), new.value, m_x)
