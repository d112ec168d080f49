"""What is IAPTT? A learned start of the inner path, differentiated up to its worst point (Liu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class IAPTTState:
    """y at the end of the path, and where the path starts."""

    y: Vector
    start: Vector


@dataclass(frozen=True)
class IAPTT(SecondOrder[IAPTTState]):
    """IAPTT-GM, a `SecondOrder` algorithm with an inner loop, for a g that need not be convex.

        y_0 = start,  y_{k+1} = y_k - lr dg/dy(x, y_k),  k < steps
        K = argmax_{1 <= k <= steps} f(x, y_k)              the pessimistic truncation
        D = d/dx f(x, y_K),   start <- start - start_lr d/dstart f(x, y_K)      both through the path up to y_K

    Each inner step has a batch of its own, all f are on one. A step costs `steps` gradients of g, `steps` values and
    one gradient of f, and K products; it carries the start. It keeps the whole path.

    Liu, Liu, Zeng, Zhang, "Towards gradient-based bilevel optimization with non-convex followers and beyond",
    NeurIPS 2021.

    Checked against the authors' code (read).

    Args:
        lr: the step of y; a number, or a function of the outer step.
        steps: steps of y.
        start_lr: the step of the start; `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.IAPTT(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.09, 0.06]
    """

    lr: Rate = 0.1
    steps: int = 10
    start_lr: Rate | None = None

    not_compiled = "how far its path is differentiated depends on numbers."

    def begin(self, at: Oracles) -> IAPTTState:
        return IAPTTState(at.y0, at.y0)

    def step(self, at: Oracles, now: IAPTTState) -> Step[IAPTTState]:
        lr, x = at.rate(self.lr), at.x
        start_lr = lr if self.start_lr is None else at.rate(self.start_lr)
        path, batches = [now.start], [at.inner_batch() for _ in range(self.steps)]
        for batch in batches:
            path.append(path[-1].step(lr, at.g_y(x, path[-1], batch)))
        outer = at.outer_batch()
        values = [float(at.f_value(x, y, outer)) for y in path[1:]]
        worst = 1 + max(range(self.steps), key=values.__getitem__)
        f = at.f(x, path[worst], outer)
        d, bar = f.x, f.y
        for y, batch in zip(reversed(path[:worst]), reversed(batches[:worst]), strict=True):
            hv, jv = at.both(x, y, batch)(bar)
            d, bar = d.step(lr, jv), bar.step(lr, hv)
        return Step(IAPTTState(path[-1], now.start.step(start_lr, bar)), f.value, d)
