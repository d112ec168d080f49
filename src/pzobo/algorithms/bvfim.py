"""What is BVFIM? The value function of g as a constraint, behind a logarithmic barrier (Liu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pzobo.algorithms.algorithm import Algorithm, Step
from pzobo.algorithms.oracles import Oracles, Slopes
from pzobo.algorithms.rates import Decay, Rate, check_rate
from pzobo.algorithms.vector import Vector

HALVINGS = 30
"""Of one step of y, at most."""

FALLING = Decay(0.1, 0.5)


@dataclass(frozen=True)
class BVFIMState:
    """y behind the barrier, and z near the solution of the inner problem."""

    y: Vector
    z: Vector


@dataclass(frozen=True)
class BVFIM(Algorithm[BVFIMState]):
    """BVFIM, an `Algorithm` of first order with two inner loops.

        `steps` times    z <- z - lr (dg/dy(x, z) + reg z)
        `y_steps` times  y <- y - y_lr (df/dy + prox y + (barrier / gap) dg/dy)(x, y)
                         where gap = g(x, z) + reg |z|^2 / 2 + reg - g(x, y)
        D = df/dx(x, y) + (barrier / gap) (dg/dx(x, y) - dg/dx(x, z))

    y minimises f + prox |y|^2 / 2 - barrier log(gap), and D is its derivative in x. The gap must stay positive: a step
    of y that would close it is halved until it does not, and a y whose gap is closed at the start of a loop begins at
    z. reg, barrier and prox fall to zero; at fixed values the limit is biased. Each step has a batch of its own, the
    gap is taken on one. A step costs `steps` + `y_steps` + 2 gradients of g, one more for each y that begins at z, at
    least 2 `y_steps` values of g, and `y_steps` + 1 gradients of f; it carries y and z.

    Liu, Liu, Yuan, Zeng, Zhang, "A value-function-based interior-point method for non-convex bi-level optimization",
    ICML 2021.

    Checked against the code of its sequel BVFSM (read), whose gap is another one.

    Args:
        lr: the step of z; a number, or a function of the outer step.
        steps: steps of z.
        y_lr: the step of y; `lr` by default.
        y_steps: steps of y.
        reg: the weight of |z|^2 / 2 in the inner problem, and the least gap at its solution.
        barrier: the weight of the logarithm.
        prox: the weight of |y|^2 / 2 in the problem of y; 0 for none.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.BVFIM(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.24, 0.09, 0.06]
    """

    lr: Rate = 0.1
    steps: int = 10
    y_lr: Rate | None = None
    y_steps: int = 10
    reg: Rate = FALLING
    barrier: Rate = FALLING
    prox: Rate = 0.0

    not_compiled = "how often a step is halved depends on numbers."

    def __post_init__(self) -> None:
        check_rate("BVFIM: reg", self.reg)
        check_rate("BVFIM: barrier", self.barrier)
        if self.prox != 0:
            check_rate("BVFIM: prox", self.prox)
        super().__post_init__()

    def begin(self, at: Oracles) -> BVFIMState:
        return BVFIMState(at.y0, at.y0)

    def step(self, at: Oracles, now: BVFIMState) -> Step[BVFIMState]:
        x, y, z = at.x, now.y, now.z
        lr, reg, barrier, prox = at.rate(self.lr), at.rate(self.reg), at.rate(self.barrier), at.rate(self.prox)
        y_lr = lr if self.y_lr is None else at.rate(self.y_lr)
        for _ in range(self.steps):
            z = z.step(lr, at.g_y(x, z, at.inner_batch()) + reg * z)
        for _ in range(self.y_steps):
            inner, outer = at.inner_batch(), at.outer_batch()
            bound = _bound(at.g_value(x, z, inner), z, reg)
            y, g, gap = self._inside(at, x, y, z, inner, bound)
            direction = at.f_y(x, y, outer) + prox * y + (barrier / gap) * g.y
            rate = y_lr
            for _ in range(HALVINGS):
                if bound - float(at.g_value(x, y.step(rate, direction), inner)) > 0:
                    y = y.step(rate, direction)
                    break
                rate = rate / 2
        inner, outer = at.inner_batch(), at.outer_batch()
        star = at.g(x, z, inner)
        y, g, gap = self._inside(at, x, y, z, inner, _bound(star.value, z, reg))
        f = at.f(x, y, outer)
        return Step(BVFIMState(y, z), f.value, f.x + (barrier / gap) * (g.x - star.x))

    def _inside(
        self, at: Oracles, x: Vector, y: Vector, z: Vector, batch: object, bound: float
    ) -> tuple[Vector, Slopes, float]:
        """y, or z where y's gap is closed; with g there, and the gap."""
        g = at.g(x, y, batch)
        if not bound - float(g.value) > 0:
            y, g = z, at.g(x, z, batch)
        return y, g, bound - float(g.value)


def _bound(g: Tensor, z: Vector, reg: float) -> float:
    """g(x, z) + reg |z|^2 / 2 + reg, in float64: a large g would round the last two away, and close the gap."""
    return float(g) + reg * (float(z @ z) / 2 + 1)
