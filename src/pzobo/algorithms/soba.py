"""What is SOBA? One step of y, of the linear system's v and of x, all at once (Dagréou et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.tensors.trees import Tree


@dataclass(frozen=True)
class SOBAState:
    """y, and v, which goes to -H^-1 df/dy."""

    y: Vector
    v: Vector


class Directions(NamedTuple):
    """SOBA's three directions, and f, at one point on one pair of batches."""

    value: Tensor
    y: Vector
    v: Vector
    x: Vector


def directions(at: Oracles, x: Vector, y: Vector, v: Vector, inner: Tree, outer: Tree) -> Directions:
    """dg/dy, H v + df/dy, and df/dx + J^T v."""
    f, g = at.f(x, y, outer), at.curved(x, y, inner, v)
    return Directions(f.value, g.y, g.hv + f.y, f.x + g.jv)


@dataclass(frozen=True)
class SOBA(SecondOrder[SOBAState]):
    """SOBA, a `SecondOrder` algorithm with a single loop.

        y <- y - lr dg/dy
        v <- v - v_lr (H v + df/dy)
        D  = df/dx + J^T v

    All right-hand sides are at the old point, on one batch of g and one of f. A step costs one gradient of each, and
    one H v with J^T v. It carries y and v. The authors' code lets all learning rates fall as
    k^(-1/2); in their submitted text those of y and v fall as k^(-2/5), that of x as k^(-3/5).

    Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global variance
    reduction algorithms", NeurIPS 2022, Algorithm 1.

    Checked against the text of the paper (its submission, Algorithm 1 with Eq. 10) and the authors' code
    (benchmark_bilevel, run beside).

    Args:
        lr: the step of y; a number, or a function of the outer step such as `Decay(0.1, 0.5)`.
        v_lr: the step of v; `lr` by default, as in the paper.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.SOBA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None

    system = "v"

    def begin(self, at: Oracles) -> SOBAState:
        return SOBAState(at.y0, at.y0.zeros())

    def step(self, at: Oracles, now: SOBAState) -> Step[SOBAState]:
        lr = at.rate(self.lr)
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        d = directions(at, at.x, now.y, now.v, at.inner_batch(), at.outer_batch())
        return Step(SOBAState(now.y.step(lr, d.y), now.v.step(v_lr, d.v)), d.value, d.x)
