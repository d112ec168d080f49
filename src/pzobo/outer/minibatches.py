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

    Where the data are on the host and the batches are wanted on a device, `fetch` starts the copies of those of the
    next step, and nothing waits for them.

    Args:
        data: a tree of tensors (or SparseMatrix) with the same number of rows.
        size: rows of a batch.
        seed: of the permutations.
        device: where batches of dense data on the host go; by default they stay there.
    """

    def __init__(self, data: Tree, size: int, seed: int = 0, device: torch.device | None = None) -> None:
        leaves: list[Any] = optree.tree_leaves(data)
        counts = {len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else -1 for leaf in leaves}
        if len(counts) != 1 or -1 in counts:
            found = f"tensors of {sorted(counts - {-1})} rows" if counts - {-1} else "no tensors with rows"
            raise BatchError(
                f"Minibatches need tensors with the same number of rows, in the problem's train or val; found {found}. "
                "Without a batch size the data is given to the loss as it is."
            )
        for leaf in leaves:
            if leaf.layout not in (torch.strided, torch.sparse_coo):
                raise BatchError(
                    f"Minibatches cannot take rows of a tensor in the layout {leaf.layout}: give "
                    "pzobo.SparseMatrix.from_torch(tensor)."
                )
        (self.rows,) = counts
        self.data, self.size, self.seed = data, whole("batch size", size), seed
        if self.size > self.rows:
            raise BatchError(f"A batch of {size} rows was asked of data with {self.rows}; use at most that many.")
        self.device = leaves[0].device
        self.position = 0
        self._epoch: tuple[int, Tensor] | None = None
        on_host = all(t.device.type == "cpu" and type(t) is Tensor and not t.requires_grad for t in leaves)
        self._to = device if on_host and device is not None and device.type != "cpu" else None
        self._ahead: dict[int, Tree] = {}
        """Batches on their way to the device, by their number."""
        self._given = 0
        """How many were given since the last `fetch`."""

    def next(self) -> Tree:
        """The next batch."""
        number, self.position, self._given = self.position, self.position + 1, self._given + 1
        return self._ahead.pop(number) if number in self._ahead else self._batch(number)

    def fetch(self) -> None:
        """Send the batches of the next step, as many as this one had, to the device, where they go to one."""
        if self._to is not None:
            numbers = range(self.position, self.position + self._given)
            self._ahead = {k: self._ahead[k] if k in self._ahead else self._batch(k) for k in numbers}
        self._given = 0

    def _batch(self, number: int) -> Tree:
        index, to = self._indices(number, 1)[0], self._to
        return optree.tree_map(lambda t: rows(t, index) if to is None else sent(t, index, to), self.data)

    def indices(self, count: int) -> Tensor:
        """The row numbers of the next `count` batches, one batch a row."""
        first, self.position = self.position, self.position + count
        return self._indices(first, count)

    def _indices(self, first: int, count: int) -> Tensor:
        parts, each = [], self.rows // self.size
        while count > 0:
            epoch, place = divmod(first, each)
            if self._epoch is None or self._epoch[0] != epoch:
                order = torch.randperm(self.rows, generator=generator(self.seed, epoch), device="cpu")
                self._epoch = epoch, order.to(self.device)
            taken = min(count, each - place)
            parts.append(self._epoch[1][place * self.size : (place + taken) * self.size].view(taken, self.size))
            first, count = first + taken, count - taken
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def rows(data: Tensor, index: Tensor) -> Tensor:
    """Some rows of a tensor, dense or sparse."""
    return data.rows(index) if isinstance(data, SparseMatrix) else data.index_select(0, index)


def sent(data: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """Some rows of a tensor of the host, on their way to a device: gathered in pinned memory, so that nothing waits."""
    shape = (len(index), *data.shape[1:])
    found = torch.empty(shape, dtype=data.dtype, device="cpu", pin_memory=_pins(device))
    return torch.index_select(data, 0, index, out=found).to(device, non_blocking=True)


def _pins(device: torch.device) -> bool:
    """Whether pinned memory of the host belongs to this kind of device."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device.type


def one_device(*parts: Tree) -> torch.device | None:
    """The device of all tensors of some trees; None where they are on several."""
    leaves: list[Any] = [leaf for part in parts for leaf in optree.tree_leaves(part)]
    found = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
    return found.pop() if len(found) == 1 else None
