"""What is MAML? Weights from which a few gradient steps on a task lead to a good network (Finn et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from pzobo.meta.heads import linear_head
from pzobo.meta.learner import Learner, Learning, task_loss
from pzobo.meta.problem import FewShot, Model
from pzobo.meta.tasks import Episodes
from pzobo.networks import TaskNorm
from pzobo.options import positive, whole
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.trees import Leaves, Plan, Tree


def adapted(model: Model, x: Tree, task: Episodes, lr: float, steps: int, second_order: bool = False) -> Tree:
    """The whole network after gradient steps on the support set of one task."""
    leaves, plan = Plan.take(x)
    with torch.enable_grad():
        w = tuple(leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves)
        for _ in range(steps):
            tree = plan.build(w)
            logits = linear(model.support(tree, task), tree["head"]["weight"], tree["head"]["bias"])
            gradient = torch.autograd.grad(task_loss(logits, task.support_labels), w, create_graph=second_order)
            w = trees.add(w, gradient, -lr)
    return plan.build(w)


@dataclass(frozen=True)
class MAML(Learner):
    """w_i = x - lr sum_t dCE(S_i)/dw over `steps` steps of the whole network, and f = mean_i CE(Q_i) at w_i.

    Tasks are differentiated one by one, so that one graph of second derivatives is in memory at a time.

    Args:
        lr: of the inner steps.
        steps: inner steps.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.MAML()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'head'], True)
    """

    lr: float = 0.01
    steps: int = 5

    def __post_init__(self) -> None:
        positive(f"{type(self).__name__}: lr", self.lr)
        whole(f"{type(self).__name__}: steps", self.steps)

    @property
    def second_order(self) -> bool:
        return True

    def start(self, problem: FewShot, seed: int = 0) -> Learning:
        learning = super().start(problem, seed)
        for module in learning.model.net.modules():
            if isinstance(module, TaskNorm):
                module.twice = self.second_order
        return learning

    def variables(self, model: Model) -> Tree:
        weights = model.weights()
        like = next(iter(weights.values()))
        return {"backbone": weights, "head": linear_head(model.net.out_features, model.ways, like)}

    def logits(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        return torch.cat([self._task(model, x, episodes.task(i)) for i in range(len(episodes.support))])

    def _task(self, model: Model, x: Tree, task: Episodes) -> Tensor:
        second = self.second_order and torch.is_grad_enabled()
        w = adapted(model, x, task, self.lr, self.steps, second)
        return linear(model.query(w, task), w["head"]["weight"], w["head"]["bias"])

    def outer_loss(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        leaves, plan = Plan.take(x)
        count = len(episodes.support)
        total = torch.zeros((), dtype=episodes.support.dtype, device=episodes.support.device)
        gradient = trees.zeros(leaves)
        for i in range(count):
            w = tuple(leaf.detach().requires_grad_() for leaf in leaves)
            task = episodes.task(i)
            value = task_loss(self._task(model, plan.build(w), task), task.query_labels) / count
            gradient = trees.add(gradient, torch.autograd.grad(value, w))
            total += value.detach()

        def pullback(v: Leaves) -> Leaves:
            return trees.mul(gradient, v[0])

        return attach((total,), pullback, leaves)[0]


@dataclass(frozen=True)
class FOMAML(MAML):
    """MAML without second derivatives: dw_i/dx is taken to be the identity.

    Args:
        lr: of the inner steps.
        steps: inner steps.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.FOMAML()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'head'], True)
    """

    @property
    def second_order(self) -> bool:
        return False
