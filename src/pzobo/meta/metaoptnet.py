"""What is MetaOptNet? A convex classifier solved exactly for each task, and differentiated (Lee et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pzobo.extras import need
from pzobo.meta.learner import Learner
from pzobo.meta.problem import Model
from pzobo.meta.tasks import Episodes
from pzobo.options import positive
from pzobo.tensors.trees import Tree


class Classifier(Protocol):
    """A linear classifier in its dual form: W_k = sum_i alpha_ik x_i."""

    def dual(self, kernel: Tensor, targets: Tensor) -> Tensor:
        """alpha (tasks x images x ways) from the inner products of the support features and their one-hot labels."""
        ...


@dataclass(frozen=True)
class Ridge:
    """min_W |X W - Y|^2 + strength |W|^2 with Y of ones and zeros: alpha = (X X^T + strength I)^-1 Y.

    Args:
        strength: of the l2 term; positive.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.MetaOptNet(pzobo.meta.Ridge(10.0))
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'scale'], True)
    """

    strength: float = 50.0

    def __post_init__(self) -> None:
        positive("Ridge: strength", self.strength)

    def dual(self, kernel: Tensor, targets: Tensor) -> Tensor:
        shift = self.strength * torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
        alpha: Tensor = torch.linalg.solve(kernel + shift, targets)
        return alpha


@dataclass(frozen=True)
class SVM:
    """The multi-class support vector machine of Crammer and Singer, by proxsuite in double precision.

    min 1/2 sum_k |W_k|^2 + C sum_i xi_i, whose dual is the quadratic programme: min over alpha of
    1/2 sum_k |sum_i alpha_ik x_i|^2 - sum_i alpha_i,y(i)  with  sum_k alpha_ik = 0  and  alpha_ik <= C [k = y(i)].

    Args:
        C: the price of a violated margin.
        tolerance: of the solution and of its derivative.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.MetaOptNet(pzobo.meta.SVM(0.1))
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'scale'], True)
    """

    C: float = 0.1
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        positive("SVM: C", self.C)
        positive("SVM: tolerance", self.tolerance)

    def dual(self, kernel: Tensor, targets: Tensor) -> Tensor:
        tasks, images, ways = targets.shape
        solve = need("proxsuite.torch.qplayer").QPFunction(eps=self.tolerance, eps_backward=self.tolerance)
        k, y = kernel.double().cpu(), targets.double().cpu().flatten(1)
        one = torch.eye(ways, dtype=k.dtype, device="cpu")
        # The variables alpha_ik in the order of (i, k).
        quadratic = torch.einsum("tij,kl->tikjl", k, one).reshape(tasks, images * ways, images * ways)
        sums = torch.eye(images, dtype=k.dtype, device="cpu").repeat_interleave(ways, 1).expand(tasks, -1, -1)
        box = torch.eye(images * ways, dtype=k.dtype, device="cpu").expand(tasks, -1, -1)
        nothing, free = torch.zeros(tasks, images, dtype=k.dtype, device="cpu"), torch.full_like(y, -1e20)
        found: Tensor = solve(quadratic, -y, sums, nothing, box, free, self.C * y)[0]
        return found.reshape(targets.shape).to(kernel)


@dataclass(frozen=True)
class MetaOptNet(Learner):
    """logits = scale (Q X^T) alpha, with alpha of the classifier on the support features X; x is features and scale.

    Args:
        classifier: `Ridge(strength)` in closed form, or `SVM(C)`.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.MetaOptNet(pzobo.meta.Ridge(50.0))
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone', 'scale'], True)
    """

    classifier: Classifier = field(default_factory=Ridge)

    def variables(self, model: Model) -> Tree:
        weights = model.weights()
        return {"backbone": weights, "scale": next(iter(weights.values())).new_ones(()).requires_grad_()}

    def logits(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        support, query = model.both(x, episodes)
        targets = one_hot(episodes.support_labels, model.ways).to(support.dtype)
        alpha = self.classifier.dual(support @ support.mT, targets)
        scaled: Tensor = x["scale"] * ((query @ support.mT) @ alpha)
        return scaled
