"""What does a step get, apart from derivatives? Batches, rates and random numbers, which a checkpoint repeats."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.algorithms.rates import Rate, number_at
from pzobo.algorithms.vector import Vector
from pzobo.errors import StructureError
from pzobo.outer.minibatches import Minibatches, rows
from pzobo.tensors import trees
from pzobo.tensors.seeds import generator, mix
from pzobo.tensors.trees import Tree


class Feed:
    """The streams of batches and random numbers of an algorithm, and the number of its step.

    Args:
        train: all the data of g.
        val: all the data of f.
        sizes: rows of the batches of g and of f; None for all.
        seed: of the batches and of all random numbers.
        device: where batches of data on the host go; by default they stay there.

    Attributes:
        k: outer steps made.
        calls: how often f and g were differentiated on a batch, and how many products were taken.
        last_inner_batch: the last batch of g that was drawn.
        last_outer_batch: the last batch of f.
    """

    def __init__(
        self,
        train: Tree,
        val: Tree,
        sizes: tuple[int | None, int | None],
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        self.train, self.val, self._seed = train, val, seed
        self._streams = [
            None if size is None else Minibatches(data, size, mix(seed, 2 * i), device)
            for i, (data, size) in enumerate(zip((train, val), sizes, strict=True))
        ]
        self.last_inner_batch, self.last_outer_batch = train, val
        self.k, self._draws = 0, 0
        self.calls: Counter[str] = Counter(f=0, g=0, products=0)

    def state_dict(self) -> dict[str, Any]:
        positions = [None if s is None else s.position for s in self._streams]
        return {"k": self.k, "draws": self._draws, "batches": positions, "calls": dict(self.calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, position in zip(self._streams, state["batches"], strict=True):
            if (stream is None) != (position is None):
                raise StructureError(f"A stream of batches stands at {position!r} in the saved state.")
            if stream is not None:
                stream.position = int(position)
        self.k, self._draws, self.calls = int(state["k"]), int(state["draws"]), Counter(state["calls"])

    # Rates

    def rate(self, rate: Rate, ago: int = 0, most: float = math.inf) -> float:
        """A rate at this outer step, or at one some steps ago; more than `most` makes no sense."""
        return number_at(rate, self.k - ago, most)

    def series_rate(self, rate: Rate | None, lr: Rate) -> float:
        """The step of a Neumann series: its own, or else that of y at the first step. It must not decay with k."""
        return number_at(lr if rate is None else rate, 0)

    # Batches

    def inner_batch(self) -> Tree:
        """The next batch of g."""
        stream = self._streams[0]
        self.last_inner_batch = self.train if stream is None else stream.next()
        return self.last_inner_batch

    def outer_batch(self) -> Tree:
        """The next batch of f."""
        stream = self._streams[1]
        self.last_outer_batch = self.val if stream is None else stream.next()
        return self.last_outer_batch

    def fetch(self) -> None:
        """Send the batches of the next step to the device, where they go to one."""
        for stream in self._streams:
            if stream is not None:
                stream.fetch()

    def some_batches(self, most: int) -> list[tuple[Tree, Tensor | None]]:
        """The next batches of g, 0 to `most` of them with the same chance; the others are passed over.

        Compiled code gets all of them, each with a truth value: whether it counts.
        """
        p, stream = self.draw(most + 1), self._streams[0]
        batches: list[tuple[Tree, Tensor | None]] = [(self.inner_batch(), None) for _ in range(p)]
        if stream is not None:
            stream.position += most - p
        return batches

    # Random numbers

    def generator(self) -> torch.Generator:
        """The next source of random numbers; number j follows from the seed and j alone."""
        self._draws += 1
        return generator(mix(self._seed, 3), self._draws - 1)

    def draw(self, count: int) -> int:
        """A whole number below `count`, each with the same chance."""
        return int(torch.randint(count, (), generator=self.generator(), device="cpu"))

    def noise(self, count: int, dtype: torch.dtype) -> Tensor:
        """Independent N(0, 1)."""
        return torch.randn(count, generator=self.generator(), dtype=dtype, device="cpu")

    def normal(self, like: Vector) -> Vector:
        """A vector of independent N(0, 1)."""
        # Drawn in one piece, so that the same numbers come whatever the tree looks like.
        first, count = like.leaves[0], sum(t.numel() for t in like.leaves)
        return like.shaped(self.noise(count, trees.wide(first.dtype)).to(first.device))

    # For many steps at once

    def row_numbers(self, level: int, steps: int, batches: int) -> Tensor:
        """Those of the next batches of g (level 0) or f: steps x batches x rows of a batch."""
        stream = self._streams[level]
        if stream is None or not batches:
            return torch.zeros(steps, 0, 0, dtype=torch.int64, device="cpu")
        return stream.indices(steps * batches).view(steps, batches, -1)

    def passed(self, steps: int, calls: Counter[str], last: tuple[Tensor, Tensor]) -> None:
        """So many steps were made elsewhere, with these calls in each; the last had batches of these rows, of g and of
        f."""
        self.k += steps
        for name, count in calls.items():
            self.calls[name] += steps * count
        inner, outer = last
        if len(inner):
            self.last_inner_batch = optree.tree_map(lambda t: rows(t, inner[-1]), self.train)
        if len(outer):
            self.last_outer_batch = optree.tree_map(lambda t: rows(t, outer[-1]), self.val)
