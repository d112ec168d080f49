"""How does SAGA remember? Data in fixed blocks, drawn at random, and a table with a row for each block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.vector import Vector
from pzobo.outer.minibatches import Minibatches, rows
from pzobo.tensors import trees
from pzobo.tensors.trees import Plan, Tree


class Blocks:
    """Data in blocks of `size` rows, in their order; the last may be smaller. All of it is one block without a size.

    A block is drawn as often as it has rows: so the mean of what is found on them is that of the data.
    """

    def __init__(self, data: Tree, size: int | None) -> None:
        self.data, self.size = data, size
        self.rows = 1 if size is None else Minibatches(data, size).rows
        self.count = 1 if size is None else -(-self.rows // size)

    def weight(self, block: int) -> float:
        """Its share of the rows."""
        if self.size is None:
            return 1.0
        return (min(self.rows, (block + 1) * self.size) - block * self.size) / self.rows

    def batch(self, block: int) -> Tree:
        if self.size is None:
            return self.data
        leaves, plan = Plan.take(self.data)
        start = block * self.size
        index = torch.arange(start, min(self.rows, start + self.size), device=leaves[0].device)
        return plan.build([rows(leaf, index) for leaf in leaves])

    def draw(self, at: Oracles) -> int:
        """A block at random."""
        return 0 if self.size is None else at.draw(self.rows) // self.size


@dataclass(frozen=True)
class Table:
    """What was last found on each block (rows of `memory`), and its mean with the blocks' weights."""

    memory: Vector
    mean: Vector

    @classmethod
    def zeros(cls, like: Vector, count: int) -> Table:
        return cls(Vector(tuple([t.new_zeros((count, *t.shape)) for t in like.leaves])), like.zeros())

    def direction(self, block: int, new: Vector) -> Vector:
        """new - memory[block] + mean: unbiased, and exact where the memory is (Defazio, Bach, Lacoste-Julien, 2014)."""
        return new - self._row(block) + self.mean

    def put(self, block: int, new: Vector, weight: float) -> Table:
        """The table with a new row. The memory itself is written into: it is as large as the data has blocks."""
        mean = Vector(trees.add(self.mean.leaves, (new - self._row(block)).leaves, weight))
        for table, leaf in zip(self.memory.leaves, new.leaves, strict=True):
            table[block] = leaf
        return Table(self.memory, mean)

    def _row(self, block: int) -> Vector:
        return Vector(tuple([t[block] for t in self.memory.leaves]))
