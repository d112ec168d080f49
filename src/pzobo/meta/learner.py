"""What is a learner? How a task's images become predictions; and what `fit` drives to train it on many tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pzobo import deprecated
from pzobo.distributed.ranks import ALONE, Ranks
from pzobo.distributed.rows import sums
from pzobo.distributed.splits import ambient
from pzobo.errors import RequirementError
from pzobo.meta.problem import FewShot, Model, Part
from pzobo.meta.tasks import Episodes
from pzobo.outer.objective import Objective
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.replay import devices_of, forked, random_state_kept
from pzobo.tensors.seeds import mix
from pzobo.tensors.trees import Leaves, Plan, Tree, unique


def task_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy over all images of all tasks."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class FewShotMethod(ABC):
    """A way to learn from few images. One with outer variables of its own adds them in `variables`."""

    def variables(self, model: Model) -> Tree:
        """The outer variables at their start: a dict whose entry "backbone" has the backbone's weights."""
        return {"backbone": model.weights()}

    @abstractmethod
    def start(self, problem: FewShot, seed: int = 0) -> Learning:
        """The objective of a few-shot problem; first weights, tasks and all random numbers follow from the seed."""


@dataclass(frozen=True)
class Learner(FewShotMethod):
    """A way to learn whose predictions are one differentiable function of x: define `logits`.

    Examples:
        >>> class Nearest(pzobo.meta.Learner):
        ...     def logits(self, model, x, episodes):
        ...         support, query = model.both(x, episodes)             # tasks x images x features
        ...         return -torch.cdist(query, support.unflatten(1, (model.ways, -1)).mean(2))
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = Nearest()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone'], True)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        deprecated.method(cls, "loss", "outer_loss")

    @abstractmethod
    def logits(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        """What is predicted for the query images, tasks x images x ways; a differentiable function of x."""

    def outer_loss(self, model: Model, x: Tree, episodes: Episodes) -> Tensor:
        """The outer loss: the cross-entropy of the predictions."""
        return task_loss(self.logits(model, x, episodes), episodes.query_labels)

    def start(self, problem: FewShot, seed: int = 0) -> Learning:
        return Learning(problem, self, seed)


class Learning(Objective):
    """Training of a learner on a few-shot problem: step t has the tasks t B, ..., t B + B - 1 of the seed.

    Random numbers, such as directions and DropBlock's masks, are a function of seed and step; the state is the step.

    Args:
        problem: where tasks and backbone come from.
        learner: the `Learner` that is trained.
        seed: of the first weights, of the tasks, and of everything that is drawn.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learning = pzobo.meta.ProtoNet().start(problem, seed=0)
        >>> learning.outer_loss().shape, sorted(learning.evaluate("test", tasks=4))
        (torch.Size([]), ['accuracy', 'interval', 'loss'])
    """

    def __init__(self, problem: FewShot, learner: Any, seed: int = 0) -> None:
        self.problem = problem
        self.learner = learner
        self.seed = seed
        self.step = 0
        self.model = problem.model(seed)
        self.tasks = problem.tasks("train", seed)
        self._devices = devices_of([problem.data.train.images])
        with forked(seed, self._devices):
            self.x: Any = learner.variables(self.model)

    def logits(self, episodes: Episodes) -> Tensor:
        """Predictions for the query images at the present x."""
        answer: Tensor = self.learner.logits(self.model, self.x, episodes)
        return answer

    def outer(self, episodes: Episodes) -> Tensor:
        """The outer loss on some tasks."""
        value: Tensor = self.learner.outer_loss(self.model, self.x, episodes)
        return value

    def outer_loss(self) -> Tensor:
        count = self.problem.meta_batch
        split = ambient("tasks")
        ranks = ALONE if split is None else split.used()
        if count < ranks.count:
            raise RequirementError(
                f'split="tasks": a meta-batch of {count} tasks is too small for {ranks.count} ranks.'
            )
        begin, end = (count * r // ranks.count for r in (ranks.rank, ranks.rank + 1))
        pieces = self.problem.cuts(self.step * count + begin, end - begin)
        value = self._piece(*pieces[0]) if len(pieces) == ranks.count == 1 else self._sum(pieces, ranks)
        self.settle(ranks)
        self.step += 1
        return value

    def _piece(self, first: int, count: int) -> Tensor:
        episodes = self.tasks.batch(first, count)
        with forked(mix(self.seed, self.step), self._devices):
            return self.outer(episodes)

    def _sum(self, pieces: list[tuple[int, int]], ranks: Ranks) -> Tensor:
        """The mean over all tasks, of which other ranks may have some. Each piece is differentiated before the next
        begins, so that one is in memory."""
        leaves = unique(Plan.take(self.x)[0])
        total = torch.zeros((), dtype=self.problem.dtype, device=leaves[0].device)
        gradient = trees.zeros(leaves)
        before = self.state_dict()
        for first, count in pieces:
            self.rewind(before)
            value = self._piece(first, count) * (count / self.problem.meta_batch)
            total += value.detach()
            if torch.is_grad_enabled():
                gradient = trees.add(gradient, torch.autograd.grad(value, leaves, materialize_grads=True))
        if ranks.count > 1:
            total, *summed = sums(ranks, [total, *gradient])
            gradient = tuple(summed)

        def pullback(v: Leaves) -> Leaves:
            return trees.mul(gradient, v[0])

        return attach((total,), pullback, leaves)[0]

    def rewind(self, state: dict[str, Any]) -> None:
        """Before a piece of a meta-batch: draw what the pieces before it drew. `state` is that of the step's begin."""

    def settle(self, ranks: Ranks) -> None:
        """After the last piece: go on to the next step. Each rank has had some of the tasks."""

    def evaluate(self, part: Part = "val", tasks: int | None = None) -> dict[str, float]:
        """Mean accuracy over tasks, half the width of its 95 % interval, and the mean loss.

        Args:
            part: whose classes; "val" while training, "test" for what is reported.
            tasks: how many; `eval_tasks` of the problem by default. They are the same at every evaluation.
        """
        count = self.problem.eval_tasks if tasks is None else tasks
        drawn = self.problem.tasks(part)
        cuts = list(self._cuts_of(count))
        right, losses = (torch.zeros(n, dtype=torch.float64, device="cpu") for n in (count, len(cuts)))
        split = ambient("tasks")
        ranks = ALONE if split is None else split.ranks
        with torch.no_grad(), random_state_kept(self._devices), evaluating(self.model.net):
            for i in range(ranks.rank, len(cuts), ranks.count):
                some = slice(cuts[i][0], sum(cuts[i]))
                episodes = drawn.batch(*cuts[i])
                logits = self.logits(episodes)
                right[some] = (logits.argmax(-1) == episodes.query_labels).double().mean(1).cpu()
                losses[i] = task_loss(logits, episodes.query_labels).double() * len(logits)
        accuracy, losses = ranks.sum(right), ranks.sum(losses)
        spread = float(accuracy.std()) if count > 1 else math.nan
        return {
            "accuracy": float(accuracy.mean()),
            "interval": 1.96 * spread / math.sqrt(count),
            "loss": float(losses.sum()) / count,
        }

    def _cuts_of(self, count: int) -> Iterator[tuple[int, int]]:
        for first in range(0, count, self.problem.meta_batch):
            yield from self.problem.cuts(first, min(self.problem.meta_batch, count - first))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """DropBlock and the like off, and afterwards as before."""
    before = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(before)
