"""What is TTSA? One step of y, and a slower one of x by a random Neumann product (Hong et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pzobo.algorithms.bsa import BSA


@dataclass(frozen=True)
class TTSA(BSA):
    """TTSA: `BSA` with `steps=1`, the paper's learning rates being of another order.

        y <- y - lr dg/dy
        v = terms v_lr prod_{i=1}^{p} (I - v_lr H_i) df/dy     at the new y; p drawn from 0 to terms - 1
        D = df/dx - J^T v

    x moves on a slower time scale than y: the paper's lr of y falls as k^(-2/5), that of x as k^(-3/5). A step costs
    two gradients, and 1 + (terms - 1)/2 products on average; it carries y.

    Hong, Wai, Wang, Yang, "A two-timescale stochastic algorithm framework for bilevel optimization", SIAM Journal on
    Optimization 2023.

    Checked against benchmark_bilevel (read), which other authors wrote; it takes J^T v on the batch of y's step.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        terms: terms of the series whose mean the random product has.
        v_lr: the step of the series, 1/L in the paper; the first `lr` by default.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.TTSA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.33, 0.07, 0.06]
    """

    steps: int = field(default=1, init=False)
