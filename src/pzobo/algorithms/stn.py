"""What is a self-tuning network? A response y = w + T x, trained around the present x (MacKay et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pzobo.algorithms import response
from pzobo.algorithms.algorithm import Algorithm, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.options import in_range, positive


@dataclass(frozen=True)
class STNState:
    """y at x, the response (w, T), and the logarithms of the perturbations' scales."""

    y: Vector
    w: Vector
    t: Vector
    log_scale: Vector


def perturbation(at: Oracles, log_scale: Vector) -> Vector:
    """Independent N(0, scale^2), one scale for each outer variable."""
    pairs = zip(at.normal(log_scale).leaves, log_scale.leaves, strict=True)
    return Vector(tuple([u * s.exp() for u, s in pairs]))


def start_scale(x: Vector, scale: float) -> Vector:
    """The logarithm of one scale for all."""
    return Vector(tuple([(t.new_ones(t.shape) * scale).log() for t in x.leaves]))


def tuned(log_scale: Vector, d: Vector, e: Vector, entropy: float, lr: float) -> Vector:
    """One step on f(x + e) - entropy log(scale), with e = scale u: the derivative in log(scale) is d e - entropy."""

    def moved(s: Tensor, d: Tensor, e: Tensor) -> Tensor:
        return s - lr * (d * e - entropy)

    return Vector(tuple([moved(*leaves) for leaves in zip(log_scale.leaves, d.leaves, e.leaves, strict=True)]))


def check_scale(who: str, scale: float, scale_lr: float, entropy: float) -> None:
    positive(f"{who}: scale", scale)
    in_range(f"{who}: scale_rate", scale_lr, 0, float("inf"))
    in_range(f"{who}: entropy", entropy, 0, float("inf"))


@dataclass(frozen=True)
class STN(Algorithm[STNState]):
    """STN, an `Algorithm` of first order, for few outer variables.

        `steps` times  e ~ N(0, scale^2),  d = dg/dy(x + e, w + T (x + e)):   w <- w - lr d,   T <- T - lr d (x + e)^T
        then  e ~ N(0, scale^2),  D = df/dx + T^T df/dy  at (x + e, w + T (x + e))
        log scale <- log scale - scale_rate (D e - entropy)     for each outer variable, if scale_rate is not 0

    So y(x) = w + T x is trained to be the solution in a neighbourhood of x, whose size is tuned. The paper gives T the
    structure of the network's layers; here it is a matrix of p d numbers, and too large ones are refused. A step costs
    `steps` gradients of g and one of f; it carries w, T and the scales.

    MacKay, Vicol, Lorraine, Duvenaud, Grosse, "Self-tuning networks: bilevel optimization of hyperparameters using
    structured best-response functions", ICLR 2019, Algorithm 1.

    Checked against the authors' code (read), which takes D at x itself where the scale is not tuned.

    Args:
        lr: the step of w and T; a number, or a function of the outer step.
        steps: steps of w and T.
        scale: the perturbations' standard deviation at first.
        scale_rate: the step of the logarithm of the scale; 0 keeps the scale.
        entropy: the weight of the entropy of the perturbations, which keeps the scale from falling to 0.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.STN(lr=0.1)
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.44, 0.1, 0.08]
    """

    lr: Rate = 0.1
    steps: int = 10
    scale: float = 0.1
    scale_rate: float = 0.0
    entropy: float = 1e-3

    def __post_init__(self) -> None:
        check_scale("STN", self.scale, self.scale_rate, self.entropy)
        super().__post_init__()

    def begin(self, at: Oracles) -> STNState:
        return STNState(at.y0, at.y0, response.zeros("STN", at.x, at.y0), start_scale(at.x, self.scale))

    def step(self, at: Oracles, now: STNState) -> Step[STNState]:
        x, w, t, log_scale = at.x, now.w, now.t, now.log_scale
        lr = at.rate(self.lr)
        for _ in range(self.steps):
            there = x + perturbation(at, log_scale)
            d = at.g_y(there, w + response.apply(t, there), at.inner_batch())
            w, t = w.step(lr, d), t.step(lr, response.product(d, there))
        e = perturbation(at, log_scale)
        f = at.f(x + e, w + response.apply(t, x + e), at.outer_batch())
        d_x = f.x + response.transposed(t, f.y, x)
        log_scale = tuned(log_scale, d_x, e, self.entropy, self.scale_rate)
        return Step(STNState(w + response.apply(t, x), w, t, log_scale), f.value, d_x)
