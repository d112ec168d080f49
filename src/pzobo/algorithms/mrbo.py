"""What is MRBO? STORM on the inner and the outer direction, by summed Neumann products (Yang, Ji, Liang, 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import TWO_THIRDS, Rate, check_share
from pzobo.algorithms.series import summed
from pzobo.algorithms.sustain import SUSTAINState, begin, storm_step


@dataclass(frozen=True)
class MRBO(SecondOrder[SUSTAINState]):
    """MRBO, a `SecondOrder` algorithm with a single loop.

    `SUSTAIN`'s step, with v = v_lr sum_{j=0}^{terms} prod_{i<=j} (I - v_lr H_i) df/dy: a new batch for each factor, the
    same at both points. A step costs four gradients and 2 (terms + 1) products; it carries y, the point before and two
    momenta. The paper's learning rates fall as k^(-1/3), its momentum as k^(-2/3).

    Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021, Algorithm 1.

    Checked against benchmark_bilevel (run beside) and the authors' code (read), which moves y twice in a step.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        momentum: STORM's weight of the new direction, in (0, 1], or a function of the outer step.
        terms: factors of the longest product of the series.
        v_lr: the step of the series, at most 1/L; the first `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.MRBO(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    momentum: Rate = TWO_THIRDS
    terms: int = 10
    v_lr: float | None = None

    def __post_init__(self) -> None:
        check_share("MRBO: momentum", self.momentum)
        super().__post_init__()

    def begin(self, at: Oracles) -> SUSTAINState:
        return begin(at)

    def alike(self, k: int) -> bool:
        return k > 0

    def step(self, at: Oracles, now: SUSTAINState) -> Step[SUSTAINState]:
        batches = [(at.inner_batch(), None) for _ in range(self.terms)]
        inverse = summed(at.series_rate(self.v_lr, self.lr))
        return storm_step(at, now, at.rate(self.lr), at.rate(self.momentum, most=1.0), batches, inverse)
