"""What is AmIGO? Several steps of y and of the linear system's v, both from where they were (Arbel, Mairal, 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.series import Hessians
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class AmIGOState:
    """y, and v, which goes to H^-1 df/dy."""

    y: Vector
    v: Vector


@dataclass(frozen=True)
class AmIGO(SecondOrder[AmIGOState]):
    """AmIGO, a `SecondOrder` algorithm with two loops, both started where they ended.

        `steps` times    y <- y - lr dg/dy                a new batch for each
        `v_steps` times  v <- v - v_lr (H v - df/dy)      a new batch of g for each, df/dy on the step's batch of f
        D = df/dx - J^T v                                 on one more batch of g

    A step costs `steps` + 1 gradients and `v_steps` + 1 products; it carries y and v. The learning rates are constant.

    Arbel, Mairal, "Amortized implicit differentiation for stochastic bilevel optimization", ICLR 2022.

    Checked against the authors' code (read; it carries -v, and may also take steps on |H v - df/dy|^2) and
    benchmark_bilevel (run beside).

    Args:
        lr: the step of y; a number, or a function of the outer step.
        steps: steps of y.
        v_lr: the step of v; `lr` by default.
        v_steps: steps of v.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.AmIGO(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    steps: int = 10
    v_lr: Rate | None = None
    v_steps: int = 10

    system = "v"

    def begin(self, at: Oracles) -> AmIGOState:
        return AmIGOState(at.y0, at.y0.zeros())

    def step(self, at: Oracles, now: AmIGOState) -> Step[AmIGOState]:
        lr, x, y, v = at.rate(self.lr), at.x, now.y, now.v
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        for _ in range(self.steps):
            y = y.step(lr, at.g_y(x, y, at.inner_batch()))
        f = at.f(x, y, at.outer_batch())
        hessians = Hessians(at, x, y)
        for _ in range(self.v_steps):
            v = v.step(v_lr, hessians.times(at.inner_batch(), v) - f.y)
        return Step(AmIGOState(y, v), f.value, f.x - at.mixed(x, y, at.inner_batch(), v))
