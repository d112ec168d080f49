"""What is a few-shot task? A few classes with a few images of each to adapt to, and others to be judged by.

Task i of a seed is a pure function of (seed, i), in integer arithmetic alone: the same in every process and on every
machine, whatever was drawn before it. So a training run that is resumed needs no more than the number of its step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pzobo.data.few_shot import ImageClasses
from pzobo.errors import OptionError
from pzobo.options import whole
from pzobo.tensors.seeds import mix

_APART = 0xBF58476D1CE4E5B9 - 2**64
"""Any number will do that has about as many ones as zeros among its bits."""


def _choose(keys: Tensor, n: int, k: int) -> Tensor:
    """k different numbers below n for each key: Floyd's subset of n, and then a shuffle, which the subset needs."""
    draws = mix(0, keys[..., None] + torch.arange(1, 2 * k + 1, device="cpu"))
    chosen = draws[..., :k] % torch.arange(n - k + 1, n + 1, device="cpu")
    for j in range(1, k):
        again = (chosen[..., :j] == chosen[..., j : j + 1]).any(-1)
        chosen[..., j].masked_fill_(again, n - k + j)
    return chosen.gather(-1, draws[..., k:].argsort(-1))


class Episodes(NamedTuple):
    """Some tasks, stacked.

    Attributes:
        support: (tasks, ways * shots, channels, height, width): images that each task is adapted to, class by class.
        support_labels: (tasks, ways * shots) of int64: their classes, from 0 to ways - 1.
        query: (tasks, ways * queries, channels, height, width): other images that it is judged by, class by class.
        query_labels: (tasks, ways * queries) of int64: their classes, from 0 to ways - 1.

    Examples:
        >>> tasks = pzobo.meta.Tasks(pzobo.data.digits_few_shot().train, ways=5, shots=1, queries=2)
        >>> episodes = tasks.batch(0, 4)
        >>> episodes.query.shape, episodes.support_labels[0]
        (torch.Size([4, 10, 1, 16, 16]), tensor([0, 1, 2, 3, 4]))
    """

    support: Tensor
    support_labels: Tensor
    query: Tensor
    query_labels: Tensor

    def task(self, i: int) -> Episodes:
        """One of the tasks, as a stack of one."""
        return self.some(i, i + 1)

    def some(self, first: int, last: int) -> Episodes:
        """The tasks from `first` to before `last`."""
        return Episodes(*(part[first:last] for part in self))


@dataclass(frozen=True)
class Tasks:
    """The tasks of a seed: for each, `ways` classes in random order, `shots` and `queries` different images of each.

    Args:
        images: the classes to choose from.
        ways: classes in a task.
        shots: images of each class in the support set.
        queries: other images of each class in the query set.
        seed: another seed gives other tasks.
        total: how many different tasks there are, after which they begin again; as many as asked for by default.
        dtype: of the images, normalised by the mean and deviation of the classes.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> tasks = pzobo.meta.Tasks(pzobo.data.digits_few_shot().train, ways=5, shots=1, queries=2, seed=7)
        >>> episodes = tasks.batch(100, 4)                               # tasks 100, 101, 102, 103
        >>> episodes.support.shape, episodes.query_labels.shape
        (torch.Size([4, 5, 1, 16, 16]), torch.Size([4, 10]))
    """

    images: ImageClasses
    ways: int = 5
    shots: int = 5
    queries: int = 15
    seed: int = 0
    total: int | None = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "queries"):
            whole(f"Tasks: {name}", getattr(self, name))
        if self.total is not None:
            whole("Tasks: total", self.total)
        if self.ways > len(self.images):
            raise OptionError(f"Tasks: ways={self.ways}: there are only {len(self.images)} classes.")
        if self.shots + self.queries > self.images.per_class:
            raise OptionError(
                f"Tasks: shots={self.shots} and queries={self.queries} are more than the {self.images.per_class} "
                "images of a class."
            )

    def draw(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Classes (count x ways) and images (count x ways x (shots + queries)) of the tasks first, first + 1, ..."""
        numbers = torch.arange(first, first + count, device="cpu")
        if self.total is not None:
            numbers %= self.total
        keys = mix(0, mix(0, self.seed) + numbers)
        classes = _choose(keys, len(self.images), self.ways)
        # A key for each class of a task, far from the numbers that chose the classes.
        each = mix(0, mix(0, keys ^ _APART)[:, None] + torch.arange(self.ways, device="cpu"))
        return classes, _choose(each, self.images.per_class, self.shots + self.queries)

    def batch(self, first: int, count: int) -> Episodes:
        """The tasks first, ..., first + count - 1."""
        classes, drawn = self.draw(first, count)
        device = self.images.images.device
        places = self.images.rows[classes.to(device)][..., None] * self.images.per_class + drawn.to(device)
        labels = torch.arange(self.ways, device=device)

        def part(places: Tensor) -> tuple[Tensor, Tensor]:
            return self.pixels(places.flatten(1)), labels.repeat_interleave(places.shape[-1]).expand(count, -1)

        return Episodes(*part(places[..., : self.shots]), *part(places[..., self.shots :]))

    def pixels(self, places: Tensor) -> Tensor:
        """Images by their places among all images of all classes, normalised."""
        images = self.images.images
        # Whole rows of a matrix are copied many times faster than what other indexing finds.
        found = images.flatten(0, 1).flatten(1).index_select(0, places.flatten()).to(self.dtype)
        mean, std = (255 * found.new_tensor(t)[:, None, None] for t in (self.images.mean, self.images.std))
        return found.view(*places.shape, *self.images.shape).sub_(mean).div_(std)
