"""What is F2SA? First-order steps on a penalty that grows (Kwon, Kwon, Wright, Nowak, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import Algorithm, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate, check_rate
from pzobo.algorithms.vector import Vector
from pzobo.options import positive


@dataclass(frozen=True)
class F2SAState:
    """y of the penalised problem, z of the inner one, and the penalty."""

    y: Vector
    z: Vector
    penalty: float


@dataclass(frozen=True)
class F2SA(Algorithm[F2SAState]):
    """F2SA, an `Algorithm` of first order with an inner loop.

        `steps` times  z <- z - lr dg/dy(x, z),   y <- y - y_lr (df/dy + l dg/dy)(x, y)    on a new pair of batches
        D = df/dx(x, y) + l (dg/dx(x, y) - dg/dx(x, z))
        l <- l + growth

    At a fixed l its limit minimises f(x, y) + l (g(x, y) - min g): it is off by O(1/l). With `y_lr=None` y moves by lr
    / (2 l), as in the paper's theorem: so the steps of y stay stable while l grows. Both dg/dx are on one batch, where
    the paper draws two: their difference is multiplied by l, and so is its noise. A step costs 2 `steps` + 2 gradients
    of g and `steps` + 1 of f; it carries y, z and l. In the paper learning rates fall and l grows as powers of k:
    `growth=Decay(0.1, 6 / 7)` lets l grow as k^(1/7). On batches, a fixed outer lr and a fixed growth do not go
    together for long: D's noise grows with l, and after thousands of steps x leaves.

    Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023, Algorithm 1.

    Checked against benchmark_bilevel (run beside), which other authors wrote.

    Args:
        lr: the step of z; a number, or a function of the outer step.
        y_lr: the step of y; lr / (2 l) by default.
        penalty: l at first; positive.
        growth: what l gains at each outer step; 0 keeps it, or a function of the outer step.
        steps: steps of y and z.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.F2SA(lr=0.1, penalty=10.0)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.32, 0.1, 0.07]
    """

    lr: Rate = 0.1
    y_lr: Rate | None = None
    penalty: float = 1.0
    growth: Rate = 0.1
    steps: int = 10

    def __post_init__(self) -> None:
        positive("F2SA: penalty", self.penalty)
        if self.growth != 0:
            check_rate("F2SA: growth", self.growth)
        super().__post_init__()

    def begin(self, at: Oracles) -> F2SAState:
        return F2SAState(at.y0, at.y0, float(self.penalty))

    def step(self, at: Oracles, now: F2SAState) -> Step[F2SAState]:
        x, y, z, penalty = at.x, now.y, now.z, now.penalty
        lr = at.rate(self.lr)
        y_lr = lr / (2 * penalty) if self.y_lr is None else at.rate(self.y_lr)
        for _ in range(self.steps):
            inner, outer = at.inner_batch(), at.outer_batch()
            d_y, d_z = at.twice(at.g_y, (x, y, inner), (x, z, inner))
            y = y.step(y_lr, at.f_y(x, y, outer) + d_y.times(penalty))
            z = z.step(lr, d_z)
        inner = at.inner_batch()
        f = at.f(x, y, at.outer_batch())
        g_y, g_z = at.twice(at.g, (x, y, inner), (x, z, inner))
        grown = penalty + (0.0 if self.growth == 0 else at.rate(self.growth))
        return Step(F2SAState(y, z, grown), f.value, f.x + (g_y.x - g_z.x).times(penalty))
