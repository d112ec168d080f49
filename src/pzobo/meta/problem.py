"""What is a few-shot problem? Classes to draw tasks from, a backbone, and how BatchNorm sees a task."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from pzobo.data.few_shot import FewShotData
from pzobo.errors import OptionError
from pzobo.meta.tasks import Episodes, Tasks
from pzobo.networks import CNN4, Backbone
from pzobo.options import whole
from pzobo.tensors.replay import devices_of, forked

Norm = Literal["transductive", "inductive"]
Part = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Model:
    """A backbone as a function of its weights x["backbone"], under one policy of BatchNorm for every learner.

    Args:
        net: the backbone. Its own weights are only where x starts.
        norm: "transductive" or "inductive", as in `FewShot`.
        ways: classes in a task.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> model = problem.model(seed=0)
        >>> episodes = problem.tasks("train", seed=0).batch(0, 2)
        >>> support, query = model.both({"backbone": model.weights()}, episodes)
        >>> support.shape, query.shape                                   # tasks x images x features
        (torch.Size([2, 5, 64]), torch.Size([2, 10, 64]))
    """

    net: Backbone
    norm: Norm
    ways: int

    def _features(self, x: Any, images: Tensor, support: int | None = None) -> Tensor:
        features: Tensor = functional_call(self.net, x["backbone"], (images, support))
        return features

    def support(self, x: Any, episodes: Episodes) -> Tensor:
        """Features of the support images, tasks x images x features, the whole meta-batch in one forward pass."""
        return self._features(x, episodes.support)

    def query(self, x: Any, episodes: Episodes) -> Tensor:
        """Features of the query images."""
        return self._features(x, episodes.query) if self.norm == "transductive" else self.both(x, episodes)[1]

    def both(self, x: Any, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Features of the support and of the query images."""
        if self.norm == "transductive":
            return self.support(x, episodes), self.query(x, episodes)
        count = episodes.support.shape[1]
        features = self._features(x, torch.cat([episodes.support, episodes.query], 1), count)
        return features[:, :count], features[:, count:]

    def weights(self) -> dict[str, Tensor]:
        """The backbone's weights as they are now, as outer variables."""
        return {name: p.detach().clone().requires_grad_() for name, p in self.net.named_parameters()}


@dataclass(frozen=True)
class FewShot:
    """n-way k-shot learning with a meta-batch of tasks at each outer step (section 4.3 and appendix of the paper).

    Args:
        data: classes in three parts, as from `pzobo.data.omniglot()`.
        backbone: called as `backbone(channels, size)`: `CNN4`, `ResNet12`, `partial(CNN4, filters=32)`, or your own.
        ways: classes in a task.
        shots: images of each class to adapt to.
        queries: other images of each class, on which the outer loss and the accuracy are taken.
        meta_batch: tasks in an outer step, and at once in an evaluation.
        norm: "transductive": BatchNorm normalises the support images of a task by their own statistics, and its query
            images by theirs. "inductive": both by those of the support images, so that the answer for a query does not
            depend on the other queries. Statistics never mix tasks.
        train_tasks: how many different training tasks there are, or None for no end to them.
        eval_tasks: how many tasks an evaluation takes.
        pieces: in how many pieces a meta-batch is differentiated, one after the other. With more, less is in memory at
            once. The numbers are the same to rounding where nothing is random but directions in x: `PZOBO(at="x")` and
            ES-MAML take one direction for all pieces. Directions in z and the masks of DropBlock repeat from piece
            to piece; and a few steps of `CG` see other Krylov spaces.
        dtype: of images and weights.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> problem.tasks("train", seed=0).batch(0, 2).support.shape     # tasks x images x channels x height x width
        torch.Size([2, 5, 1, 16, 16])
    """

    data: FewShotData
    backbone: Callable[[int, int], Backbone] = CNN4
    ways: int = 5
    shots: int = 5
    queries: int = 15
    meta_batch: int = 16
    norm: Norm = "transductive"
    train_tasks: int | None = 20_000
    eval_tasks: int = 600
    pieces: int = 1
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.norm not in ("transductive", "inductive"):
            raise OptionError(f'FewShot: norm={self.norm!r}: must be "transductive" or "inductive".')
        for name in ("meta_batch", "eval_tasks", "pieces"):
            whole(f"FewShot: {name}", getattr(self, name))
        if self.pieces > self.meta_batch:
            raise OptionError(f"FewShot: pieces={self.pieces}: there are meta_batch={self.meta_batch} tasks to cut.")
        for part in ("train", "val", "test"):
            self.tasks(part)

    def tasks(self, part: Part, seed: int = 0) -> Tasks:
        """The tasks of one part of the data."""
        total = self.train_tasks if part == "train" else None
        images = getattr(self.data, part)
        return Tasks(images, self.ways, self.shots, self.queries, seed=seed, total=total, dtype=self.dtype)

    def model(self, seed: int = 0) -> Model:
        """The backbone with first weights that follow from the seed."""
        channels, size, _ = self.data.train.shape
        with forked(seed, devices_of([self.data.train.images])):
            net = self.backbone(channels, size)
        return Model(net.to(self.data.train.images.device, self.dtype), self.norm, self.ways)

    def cuts(self, first: int, count: int) -> list[tuple[int, int]]:
        """Some tasks in pieces that are as equal as can be: the first of each, and how many. No piece has more tasks
        than those of a meta-batch have."""
        most = -(-self.meta_batch // self.pieces)
        pieces = -(-count // most)
        ends = [first + count * i // pieces for i in range(pieces + 1)]
        return [(begin, end - begin) for begin, end in itertools.pairwise(ends)]

    def to(self, device: str | torch.device) -> FewShot:
        """The same problem with its images, and so its weights, on another device."""
        return replace(self, data=FewShotData(*(part.to(device) for part in self.data)))
