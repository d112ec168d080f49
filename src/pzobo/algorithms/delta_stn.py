"""What is Delta-STN? A response around x itself, its slope trained on a linearised gradient (Bae, Grosse, 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms import response
from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.stn import check_scale, perturbation, start_scale, tuned
from pzobo.algorithms.vector import Vector


@dataclass(frozen=True)
class DeltaSTNState:
    """y = w, the slope T, and the logarithms of the perturbations' scales."""

    y: Vector
    t: Vector
    log_scale: Vector


@dataclass(frozen=True)
class DeltaSTN(SecondOrder[DeltaSTNState]):
    """Delta-STN, a `SecondOrder` algorithm, for few outer variables.

        `steps` times  e ~ N(0, scale^2):   w <- w - lr dg/dy(x, w),   T <- T - t_lr (J e + H T e) e^T / scale^2
        D = df/dx + T^T df/dy  at (x, w)
        log scale <- log scale - scale_rate (D' e - entropy),  D' the same at (x + e, w + T e), if scale_rate is not 0

    The response is y(x') = w + T (x' - x): w is the solution at x itself, and does not move when T does. J e + H T e
    is the derivative of dg/dy along (e, T e), by one `jvp`: T goes to -H^-1 J, whatever the scale (the division by
    scale^2 makes t_lr the step of a system with the matrix H). The paper linearises the predictions of the network,
    which leaves out a part of H; of g only the loss is known here. T is a matrix of p d numbers, and too large ones
    are refused. A step costs `steps` gradients of g and as many products, and one gradient of f; it carries w, T and
    the scales.

    Bae, Grosse, "Delta-STN: efficient bilevel optimization for neural networks using structured response Jacobians",
    NeurIPS 2020.

    Checked against the authors' code (read), which takes D at x + e where the scale is tuned.

    Args:
        lr: the step of w; a number, or a function of the outer step.
        steps: steps of w and T.
        t_lr: the step of T; `lr` divided by the number of outer variables by default.
        scale: the perturbations' standard deviation at first.
        scale_rate: the step of the logarithm of the scale; 0 keeps the scale.
        entropy: the weight of the entropy of the perturbations, which keeps the scale from falling to 0.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.DeltaSTN(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.09, 0.07]
    """

    lr: Rate = 0.1
    steps: int = 10
    t_lr: Rate | None = None
    scale: float = 0.1
    scale_rate: float = 0.0
    entropy: float = 1e-3

    def __post_init__(self) -> None:
        check_scale("DeltaSTN", self.scale, self.scale_rate, self.entropy)
        super().__post_init__()

    def begin(self, at: Oracles) -> DeltaSTNState:
        return DeltaSTNState(at.y0, response.zeros("DeltaSTN", at.x, at.y0), start_scale(at.x, self.scale))

    def step(self, at: Oracles, now: DeltaSTNState) -> Step[DeltaSTNState]:
        x, w, t, log_scale = at.x, now.y, now.t, now.log_scale
        lr, p = at.rate(self.lr), sum(leaf.numel() for leaf in x.leaves)
        t_lr = lr / p if self.t_lr is None else at.rate(self.t_lr)
        for _ in range(self.steps):
            e, batch = perturbation(at, log_scale), at.inner_batch()
            slope = at.along(x, w, batch, e, response.apply(t, e))
            e = Vector(tuple([u / (2 * s).exp() for u, s in zip(e.leaves, log_scale.leaves, strict=True)]))
            w, t = w.step(lr, at.g_y(x, w, batch)), t.step(t_lr, response.product(slope, e))
        outer = at.outer_batch()
        f = at.f(x, w, outer)
        if self.scale_rate:
            e = perturbation(at, log_scale)
            there = at.f(x + e, w + response.apply(t, e), outer)
            d = there.x + response.transposed(t, there.y, x)
            log_scale = tuned(log_scale, d, e, self.entropy, self.scale_rate)
        return Step(DeltaSTNState(w, t, log_scale), f.value, f.x + response.transposed(t, f.y, x))
