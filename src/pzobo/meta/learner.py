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
from pzobo.meta.problem import FewShot, Model, Part
from pzobo.meta.tasks import Episodes
from pzobo.outer.objective import Objective
from pzobo.tensors.seeds import mix
from pzobo.tensors.trees import Tree


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
    """A way to learn whose predictions are one differentiable function of x: define `logits`."""

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
    """

    def __init__(self, problem: FewShot, learner: Any, seed: int = 0) -> None:
        self.problem = problem
        self.learner = learner
        self.seed = seed
        self.step = 0
        self.model = problem.model(seed)
        self.tasks = problem.tasks("train", seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
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
        episodes = self.tasks.batch(self.step * count, count)
        with torch.random.fork_rng():
            torch.manual_seed(mix(self.seed, self.step))
            value = self.outer(episodes)
        self.step += 1
        return value

    def evaluate(self, part: Part = "val", tasks: int | None = None) -> dict[str, float]:
        """Mean accuracy over tasks, half the width of its 95 % interval, and the mean loss.

        Args:
            part: whose classes; "val" while training, "test" for what is reported.
            tasks: how many; `eval_tasks` of the problem by default. They are the same at every evaluation.
        """
        count = self.problem.eval_tasks if tasks is None else tasks
        drawn = self.problem.tasks(part)
        right, losses = [], []
        with torch.no_grad(), torch.random.fork_rng(), evaluating(self.model.net):
            for first in range(0, count, self.problem.meta_batch):
                episodes = drawn.batch(first, min(self.problem.meta_batch, count - first))
                logits = self.logits(episodes)
                right.append((logits.argmax(-1) == episodes.query_labels).double().mean(1))
                losses.append(task_loss(logits, episodes.query_labels).double() * len(logits))
        accuracy = torch.cat(right)
        spread = float(accuracy.std()) if count > 1 else math.nan
        return {
            "accuracy": float(accuracy.mean()),
            "interval": 1.96 * spread / math.sqrt(count),
            "loss": float(torch.stack(losses).sum()) / count,
        }

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
