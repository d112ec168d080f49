"""What is ES-MAML? MAML whose outer gradient is a zeroth-order one of the whole objective (Song et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from pzobo.meta.learner import task_loss
from pzobo.meta.maml import FOMAML
from pzobo.meta.problem import Model
from pzobo.meta.tasks import Episodes
from pzobo.tensors.trees import Tree
from pzobo.zeroth_order.directions import Gaussian, Sampler
from pzobo.zeroth_order.smoothing import smooth


@dataclass(frozen=True)
class ESMAML(FOMAML):
    """(1/Q) sum_j (F(x + mu u_j) - F(x - mu u_j)) / 2 mu u_j, with F(x) the query loss after the steps of MAML.

    Adaptation is by gradients; nothing is differentiated through it. The control of PZOBO: the same primitive,
    `pzobo.smooth`, around the whole objective instead of the inner solution alone.

    Args:
        lr: of the inner steps.
        steps: inner steps.
        mu: the length of the perturbation.
        directions: Q; each costs two adaptations of all tasks.
        sampler: how the directions are drawn.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.ESMAML()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'head'], True)
    """

    mu: float = 0.1
    directions: int = 1
    sampler: Sampler = field(default_factory=Gaussian)

    def outer_loss(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        def objective(x: Tree) -> Tensor:
            return task_loss(self.logits(model, x, episodes), episodes.query_labels)

        value: Tensor = smooth(
            objective, x, mu=self.mu, directions=self.directions, sampler=self.sampler, antithetic=True
        )
        return value
