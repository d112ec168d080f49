"""What is BOME? First-order descent on f that never gives up the descent of g (Ye et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pzobo.algorithms.algorithm import Algorithm, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.errors import OptionError
from pzobo.options import positive


@dataclass(frozen=True)
class BOMEState:
    """y."""

    y: Vector


@dataclass(frozen=True)
class BOME(Algorithm[BOMEState]):
    """BOME, an `Algorithm` of first order with an inner loop.

        z from y by `steps` steps  z <- z - lr dg/dy(x, z)
        q = g(x, y) - g(x, z), with the gradient  Q = (dg/dy(x, y), dg/dx(x, y) - dg/dx(x, z))  in (y, x), z held fixed
        l = max(phi - <df, Q>, 0) / |Q|^2,   phi = eta |Q|^2 or eta q
        y <- y - y_lr (df/dy + l Q_y),   D = df/dx + l Q_x

    It works on batches too, though the paper's theory is for all the data; q and Q are on one batch. A step costs
    `steps` + 2 gradients of g and one of f; it carries y. Its limit has q > 0, and so a bias that goes to zero with the
    learning rates only slowly: the paper's rate is k^(-1/3) to k^(-1/4).

    Ye, Liu, Wright, Stone, Liu, "BOME! Bilevel optimization made easy: a simple first-order approach", NeurIPS 2022,
    Algorithm 1.

    Checked against the authors' code (read), which has `barrier="value"` with eta = 0.1 and momentum in all steps, and
    benchmark_bilevel (run beside).

    Args:
        lr: the step of z; a number, or a function of the outer step.
        steps: steps of z.
        y_lr: the step of y; `lr` by default. The paper moves y and x by the same.
        eta: how fast q must fall; positive.
        barrier: what phi is made of: "gradient", eta |Q|^2, or "value", eta q.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.BOME(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.1, 0.07]
    """

    lr: Rate = 0.1
    steps: int = 10
    y_lr: Rate | None = None
    eta: float = 0.5
    barrier: Literal["gradient", "value"] = "gradient"

    def __post_init__(self) -> None:
        positive("BOME: eta", self.eta)
        if self.barrier not in ("gradient", "value"):
            raise OptionError(f'BOME: barrier={self.barrier!r}: must be "gradient" or "value".')
        super().__post_init__()

    def begin(self, at: Oracles) -> BOMEState:
        return BOMEState(at.y0)

    def step(self, at: Oracles, now: BOMEState) -> Step[BOMEState]:
        lr, x, y, z = at.rate(self.lr), at.x, now.y, now.y
        y_lr = lr if self.y_lr is None else at.rate(self.y_lr)
        for _ in range(self.steps):
            z = z.step(lr, at.g_y(x, z, at.inner_batch()))
        inner = at.inner_batch()
        f = at.f(x, y, at.outer_batch())
        g, star = at.twice(at.g, (x, y, inner), (x, z, inner))
        q_y, q_x = g.y, g.x - star.x
        square = q_y.dot(q_y) + q_x.dot(q_x)
        phi = self.eta * (square if self.barrier == "gradient" else g.value - star.value)
        wanted = (phi - (f.y.dot(q_y) + f.x.dot(q_x))).clamp(min=0)
        weight = torch.where(square > 0, wanted / torch.where(square > 0, square, 1.0), 0.0)
        return Step(BOMEState(y.step(y_lr, f.y + q_y.times(weight))), f.value, f.x + q_x.times(weight))
