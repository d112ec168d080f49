"""What is TTSA? One step of y, and a slower one of x by a random Neumann product (Hong et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.bsa import BSAState, bsa_step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate


@dataclass(frozen=True)
class TTSA(SecondOrder[BSAState]):
    """TTSA, a `SecondOrder` algorithm with one step of y, and a random product as in `BSA`.

    y <- y - lr dg/dy
    v = terms v_lr prod_{i=1}^{p} (I - v_lr H_i) df/dy     at the new y; p drawn from 0 to terms - 1
    D = df/dx - J^T v

    x moves on a slower time scale than y: the paper's rate of y falls as k^(-2/5), that of x as k^(-3/5). A step costs
    two gradients, and 1 + (terms - 1)/2 products on average; it carries y.

    Hong, Wai, Wang, Yang, "A two-timescale stochastic algorithm framework for bilevel optimization", SIAM Journal on
    Optimization 2023.

    Args:
        lr: the step of y; a number, or a function of the outer step.
        terms: terms of the series whose mean the random product has.
        v_lr: the step of the series, 1/L in the paper; the first `lr` by default.
    """

    lr: Rate = 0.1
    terms: int = 10
    v_lr: float | None = None

    def begin(self, at: Oracles) -> BSAState:
        return BSAState(at.y0)

    def step(self, at: Oracles, now: BSAState) -> Step[BSAState]:
        v_lr = at.series_rate(self.v_lr, self.lr)
        return bsa_step(at, now.y, at.rate(self.lr), 1, v_lr, self.terms)
