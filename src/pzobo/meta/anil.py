"""What is ANIL? MAML that adapts the head only: a few differentiated steps from a learned head (Raghu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.jacobians import Unrolled
from pzobo.meta.heads import HeadLearner, Heads
from pzobo.meta.learner import FewShotMethod
from pzobo.meta.problem import FewShot
from pzobo.solvers import GD


@dataclass(frozen=True)
class ANIL(FewShotMethod):
    """w_i = w - lr sum_t dCE/dw over `steps` steps on the support set; x is the features and w, by exact derivatives.

    It is a `HeadLearner` that starts at a learned head, without regulariser and with `Unrolled()`.

    Args:
        lr: of the inner steps.
        steps: inner steps.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.ANIL()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'head'], False)
    """

    lr: float = 0.1
    steps: int = 5

    def start(self, problem: FewShot, seed: int = 0) -> Heads:
        solver = GD(lr=self.lr, steps=self.steps)
        return HeadLearner(solver, Unrolled(), gamma=0.0, begin="learned").start(problem, seed)
