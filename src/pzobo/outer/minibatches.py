"""Which rows come next? Minibatches in an order that is a pure function of a seed and a position."""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.errors import BatchError
from pzobo.options import whole
from pzobo.tensors.seeds import generator
from pzobo.tensors.sparse import SparseMatrix
from pzobo.tensors.trees import Tree


class Minibatches:
    """Batches of `size` rows of a tree of tensors, epoch after epoch, each a new permutation.

    Batch number k depends on (seed, k) alone, so a checkpoint needs no more than the number. What an epoch leaves over
    after its last whole batch is skipped.

    Args:
        data: a tree of tensors (or SparseMatrix) with the same number of rows.
        size: rows of a batch.
        seed: of the permutations.
    """

    def __init__(self, data: Tree, size: int, seed: int = 0) -> None:
        leaves: list[Any] = optree.tree_leaves(data)
        counts = {len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else -1 for leaf in leaves}
        if len(counts) != 1 or -1 in counts:
            found = f"tensors of {sorted(counts - {-1})} rows" if counts - {-1} else "no tensors with rows"
            raise BatchError(
                f"Minibatches need tensors with the same number of rows, in the problem's train or val; found {found}. "
                "Without a batch size the data is given to the loss as it is."
            )
        (self.rows,) = counts
        self.data, self.size, self.seed = data, whole("batch size", size), seed
        if self.size > self.rows:
            raise BatchError(f"A batch of {size} rows was asked of data with {self.rows}; use at most that many.")
        self.device = leaves[0].device
        self.position = 0
        self._epoch: tuple[int, Tensor] | None = None

    def next(self) -> Tree:
        """The next batch."""
        index = self.indices(1)[0]
        return optree.tree_map(lambda t: rows(t, index), self.data)

    def indices(self, count: int) -> Tensor:
        """The row numbers of the next `count` batches, one batch a row."""
        parts, each = [], self.rows // self.size
        while count > 0:
            epoch, place = divmod(self.position, each)
            if self._epoch is None or self._epoch[0] != epoch:
                order = torch.randperm(self.rows, generator=generator(self.seed, epoch), device="cpu")
                self._epoch = epoch, order.to(self.device)
            taken = min(count, each - place)
            parts.append(self._epoch[1][place * self.size : (place + taken) * self.size].view(taken, self.size))
            self.position, count = self.position + taken, count - taken
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def rows(data: Tensor, index: Tensor) -> Tensor:
    """Some rows of a tensor, dense or sparse."""
    return data.rows(index) if isinstance(data, SparseMatrix) else data.index_select(0, index)
