"""What is FSLA? One step of y and v, and an outer direction by STORM (Li, Gu, Huang, 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import ROOT, Rate, check_share
from pzobo.algorithms.storm import storm
from pzobo.algorithms.vector import Vector
from pzobo.tensors.trees import Tree


@dataclass(frozen=True)
class FSLAState:
    """y and v, x and the outer direction of the step before."""

    y: Vector
    v: Vector
    x_before: Vector
    m: Vector


def _outer(at: Oracles, x: Vector, y: Vector, v: Vector, inner: Tree, outer: Tree) -> tuple[Tensor, Vector]:
    """f, and df/dx - J^T v."""
    f = at.f(x, y, outer)
    return f.value, f.x - at.mixed(x, y, inner, v)


@dataclass(frozen=True)
class FSLA(SecondOrder[FSLAState]):
    """FSLA, a `SecondOrder` algorithm with a single loop.

        y' = y - lr dg/dy(x, y)
        v' = v - v_lr (H v - df/dy)   at (x, y')
        m <- D(x, y', v') + (1 - momentum) (m - D(x before, y, v))
             with D(x, y, v) = df/dx - J^T v, on the same batches
        D  = m

    y and v are updated one after the other, and m sees both; at the first step m = D(x, y', v'). Each line has batches
    of its own. A step costs one dg/dy, three gradients of f and three products; it carries y, v, x before and m. The
    paper's learning rates and its momentum fall as k^(-1/2).

    Li, Gu, Huang, "A fully single loop algorithm for bilevel optimization without Hessian inverse", AAAI 2022.

    Checked against benchmark_bilevel (read), which other authors wrote.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        v_lr: the step of v; `lr` by default.
        momentum: STORM's weight of the new direction, in (0, 1], or a function of the outer step.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.FSLA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.33, 0.07, 0.06]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None
    momentum: Rate = ROOT

    system = "v"

    def __post_init__(self) -> None:
        check_share("FSLA: momentum", self.momentum)
        super().__post_init__()

    def begin(self, at: Oracles) -> FSLAState:
        return FSLAState(at.y0, at.y0.zeros(), at.x, at.x.zeros())

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: FSLAState) -> Step[FSLAState]:
        lr, x = at.rate(self.lr), at.x
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        y = now.y.step(lr, at.g_y(x, now.y, at.inner_batch()))
        v = now.v.step(v_lr, at.hessian(x, y, at.inner_batch())(now.v) - at.f_y(x, y, at.outer_batch()))
        here, before = (at, x, y, v), (at, now.x_before, now.y, now.v)
        batches = at.inner_batch(), at.outer_batch()
        if at.k == 0:
            value, m = _outer(*here, *batches)
        else:
            (value, new), (_, old) = at.twice(_outer, (*here, *batches), (*before, *batches))
            m = storm(now.m, new, old, at.rate(self.momentum, most=1.0))
        return Step(FSLAState(y, v, x, m), value, m)
