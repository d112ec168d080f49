"""How is a loss over many rows shared? Each rank takes some rows; values and all their derivatives are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.distributed.ranks import Ranks
from pzobo.distributed.splits import Split
from pzobo.errors import BatchError, RequirementError
from pzobo.tensors.replay import random_state_kept
from pzobo.tensors.sparse import SparseMatrix
from pzobo.tensors.trees import Plan, Tree


class Handed(torch.autograd.Function):
    """What all ranks have, as each rank's own: the identity. Its transpose is `Summed`, so any derivative goes through.

    (The pair f and g of Megatron-LM, Shoeybi et al., 2019.)
    """

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple([t.clone() for t in tensors])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Summed.apply(*gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tuple([None if t is None else t.clone() for t in tangents])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
        return Handed.apply(*tensors), in_dims


class Summed(torch.autograd.Function):
    """The sum of what the ranks have, on all of them. Its transpose is `Handed`."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(sums(Split("data").ranks, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Handed.apply(*gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        there = [t for t in tangents if t is not None]
        found = iter(Summed.apply(*there) if there else ())
        return tuple([None if t is None else next(found) for t in tangents])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
        return Summed.apply(*tensors), in_dims


def sums(ranks: Ranks, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum of each tensor over the ranks; all of them in one call for each dtype."""
    found: list[Tensor] = list(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):  # in the same order on all ranks
        places = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        flat = ranks.sum(torch.cat([tensors[i].reshape(-1) for i in places]))
        for i, part in zip(places, flat.split([tensors[i].numel() for i in places]), strict=True):
            found[i] = part.view(tensors[i].shape).clone()
    return found


class OverRows:
    """A loss fn(x or z, y, batch), a mean over the rows of the batch, of which each rank takes some.

    The sum over ranks of n_r / n fn(..., rows of rank r) is fn itself if fn is a mean over rows, and terms in which no
    row occurs. `check` refuses other functions.

    Args:
        fn: the loss.
        prepared: whether its first argument was made by `OverRows.prepare` from this rank's rows.
    """

    def __init__(self, fn: Callable[[Any, Any, Any], Tensor], prepared: bool = False) -> None:
        self.fn, self.prepared = fn, prepared
        self._kept: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return repr(self.fn)

    def __call__(self, z: Tree, y: Tree, batch: Tree) -> Tensor:
        ranks = Split("data").used()
        if ranks.count == 1:
            return self.fn(z, y, batch)
        rows, part = self.share(batch, ranks)
        z, y = (z, handed(y)) if self.prepared else handed((z, y))
        found: tuple[Tensor, ...] = Summed.apply(explained(self.fn, z, y, rows) * part)
        return found[0]

    def share(self, batch: Tree, ranks: Ranks) -> tuple[Tree, float]:
        """This rank's rows of a batch, and which part of all they are. Those of a sparse matrix are kept."""
        leaves = [t for t in optree.tree_leaves(batch) if isinstance(t, Tensor)]
        marks = [(id(t), t._version) for t in leaves]
        sparse = any(isinstance(t, SparseMatrix) for t in leaves)
        if sparse and self._kept and self._kept[0] == (ranks.rank, ranks.count, marks):
            return self._kept[1], self._kept[2]
        found = share(batch, ranks)
        if sparse:
            self._kept = ((ranks.rank, ranks.count, marks), *found, leaves)
        return found


class PreparedRows:
    """`prepare` on this rank's rows: z = prepare(x, rows), with the gradient of x summed over the ranks."""

    def __init__(self, fn: Callable[[Any, Any], Any], rows: OverRows) -> None:
        self.fn, self._rows = fn, rows

    def __repr__(self) -> str:
        return repr(self.fn)

    def __call__(self, x: Tree, batch: Tree) -> Tree:
        ranks = Split("data").ranks
        if ranks.count == 1:
            return self.fn(x, batch)
        return explained(self.fn, handed(x), self._rows.share(batch, ranks)[0])


def over_rows(loss: Any, prepare: Any = None) -> tuple[Any, Any]:
    """A loss and its `prepare` over the rows of all ranks; what is so already stays."""
    if loss is None or isinstance(loss, OverRows):
        return loss, prepare
    rows = OverRows(loss, prepared=prepare is not None)
    return rows, None if prepare is None else PreparedRows(prepare, rows)


def handed(tree: Tree) -> Tree:
    """A tree of numbers that all ranks have, as this rank's own."""
    leaves, plan = Plan.take(tree)
    numbers = [i for i, t in enumerate(leaves) if is_number(t)]
    found = dict(zip(numbers, Handed.apply(*(leaves[i] for i in numbers)), strict=True)) if numbers else {}
    return plan.build([found.get(i, leaf) for i, leaf in enumerate(leaves)])


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a dense tensor of real numbers."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, SparseMatrix) and leaf.is_floating_point()


def share(batch: Tree, ranks: Ranks) -> tuple[Tree, float]:
    """Rows n r/R to n (r + 1)/R of each tensor of a batch, and which part of all rows they are."""
    leaves: list[Any] = [t for t in optree.tree_leaves(batch) if isinstance(t, Tensor)]
    counts = {len(t) if t.ndim else -1 for t in leaves}
    if len(counts) != 1 or -1 in counts:
        raise BatchError(
            f'split="data" needs a batch of tensors with the same number of rows; found {sorted(counts - {-1})}. Put '
            "what has no rows into x or y0, or into the loss itself."
        )
    (count,) = counts
    if count < ranks.count:
        raise BatchError(f'split="data": a batch of {count} rows is too small for {ranks.count} ranks.')
    first, last = (count * r // ranks.count for r in (ranks.rank, ranks.rank + 1))

    def mine(leaf: Any) -> Any:
        if isinstance(leaf, SparseMatrix):
            return leaf.rows(torch.arange(first, last, device=leaf.device))
        return leaf[first:last] if isinstance(leaf, Tensor) else leaf

    return optree.tree_map(mine, batch), (last - first) / count


def explained(fn: Callable[..., Any], *arguments: Any) -> Any:
    """fn on some rows; what goes wrong gets a note that they are not all."""
    try:
        return fn(*arguments)
    except Exception as error:
        error.add_note(
            'With split="data" a loss gets some rows of its batch at a time. Where x has an entry for each row, the '
            "batch must hold the numbers of its rows."
        )
        raise


def check_mean(loss: Any, prepare: Any, x: Tree, y: Tree, batch: Tree, name: str) -> None:
    """Refuse a loss that is no mean over rows: what the ranks have together must be what one has on all rows.

    It is looked at where x and y are, and at a point nearby, where weights of rows are no longer all alike.

    Args:
        loss: an `OverRows`, with its `prepare`.
        prepare: as `over_rows` gave it.
        x: the outer variables.
        y: the inner variables.
        batch: the data.
        name: what the loss is called.
    """
    if Split("data").ranks.count == 1:
        return
    with torch.no_grad(), random_state_kept():
        for at in ((x, y), (_near(x, 1), _near(y, 2))):
            z = at[0] if prepare is None else prepare(at[0], batch)
            together = loss(z, at[1], batch)
            z = at[0] if prepare is None else prepare.fn(at[0], batch)
            whole = float(loss.fn(z, at[1], batch))
            eps = torch.finfo(together.dtype).eps
            if abs(float(together) - whole) > 1e3 * eps * max(abs(whole), 1e-3):
                raise RequirementError(
                    f'split="data": the {name} is no mean over the rows of its batch. The ranks have '
                    f"{float(together):.6g} together, and on all rows it is {whole:.6g}. Take a mean of a term for "
                    "each row, without random numbers and without statistics of the batch (BatchNorm), and terms in "
                    "which no row occurs."
                )


def _near(tree: Tree, seed: int) -> Tree:
    stream = torch.Generator().manual_seed(seed)

    def moved(leaf: Any) -> Any:
        if not is_number(leaf):
            return leaf
        return leaf.detach() + 0.1 * torch.randn(leaf.shape, generator=stream, device="cpu").to(leaf)

    return optree.tree_map(moved, tree)
