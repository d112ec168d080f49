"""What is ProtoNet? Each class is the mean of its support features, and the nearest one wins (Snell et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pzobo.meta.learner import Learner
from pzobo.meta.problem import Model
from pzobo.meta.tasks import Episodes
from pzobo.tensors.trees import Tree


@dataclass(frozen=True)
class ProtoNet(Learner):
    """logit_k(q) = -|T(q; x) - c_k|^2 with c_k the mean of T(s; x) over the support images of class k.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.ProtoNet()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone'], True)
    """

    def logits(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        support, query = model.both(x, episodes)
        members = one_hot(episodes.support_labels, model.ways).to(support.dtype)
        centres = members.mT @ support / members.sum(1).unsqueeze(-1)
        # |q - c|^2 in products: differences of all pairs would need ways times the memory of the features.
        squares = query.square().sum(-1, keepdim=True) + centres.square().sum(-1).unsqueeze(1)
        return torch.baddbmm(squares, query, centres.mT, beta=-1, alpha=2)
