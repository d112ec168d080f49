"""What is MEHA? A single loop on the Moreau envelope of g, without Hessians (Liu et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import Algorithm, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Decay, Rate, check_rate
from pzobo.algorithms.vector import Vector
from pzobo.options import positive

GROWING = Decay(1.0, -0.25)


@dataclass(frozen=True)
class MEHAState:
    """y, and w, which goes to the proximal point of y."""

    y: Vector
    w: Vector


@dataclass(frozen=True)
class MEHA(Algorithm[MEHAState]):
    """MEHA, an `Algorithm` of first order with a single loop, for a g that need not be convex.

        w <- w - lr (dg/dy(x, w) + (w - y) / r)
        D  = df/dx(x, y) / s + dg/dx(x, y) - dg/dx(x, w)
        y <- y - y_lr (df/dy(x', y) / s + dg/dy(x', y) - (y - w) / r)    where x' is x after the outer step

    The optimizer of `fit` finds x' between two calls: the last line is the first thing that the next step does. s
    grows as a power of k below 1/2, since at a fixed s the limit is biased by O(1/s). A step costs four gradients of g
    and two of f; it carries y and w.

    Liu, Liu, Yao, Zeng, Zhang, "Moreau envelope for nonconvex bi-level optimization: a single-loop and Hessian-free
    solution strategy", ICML 2024, Algorithm 1.

    Checked against the authors' code (read), which moves y before x, both at the old x, and multiplies f by a growing
    number where this divides by it.

    Args:
        lr: the step of w; a number, or a function of the outer step.
        y_lr: the step of y; `lr` by default.
        penalty: s; a number, or a function of the outer step such as `Decay(1.0, -0.25)`, which grows.
        r: the parameter of the envelope min_w g(x, w) + |w - y|^2 / (2 r); 1 / r must exceed g's concavity.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.MEHA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.1, 0.08]
    """

    lr: Rate = 0.1
    y_lr: Rate | None = None
    penalty: Rate = GROWING
    r: float = 10.0

    def __post_init__(self) -> None:
        check_rate("MEHA: penalty", self.penalty)
        positive("MEHA: r", self.r)
        super().__post_init__()

    def begin(self, at: Oracles) -> MEHAState:
        return MEHAState(at.y0, at.y0)

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: MEHAState) -> Step[MEHAState]:
        x, y, w = at.x, now.y, now.w
        if at.k > 0:
            y_lr, s = (at.rate(rate, ago=1) for rate in (self.y_lr or self.lr, self.penalty))
            g_y = at.g_y(x, y, at.inner_batch())
            y = y.step(y_lr, at.f_y(x, y, at.outer_batch()).over(s) + g_y - (y - w) / self.r)
        inner, outer = at.inner_batch(), at.outer_batch()
        w = w.step(at.rate(self.lr), at.g_y(x, w, inner) + (w - y) / self.r)
        f = at.f(x, y, outer)
        g, star = at.twice(at.g, (x, y, inner), (x, w, inner))
        return Step(MEHAState(y, w), f.value, f.x.over(at.rate(self.penalty)) + g.x - star.x)
