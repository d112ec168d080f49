"""How are many inner problems one? By a task dimension in y: the sum of their losses has the gradient of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import optree
import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.tensors.trees import Tree


def over_tasks(inner_loss: Callable[..., Tensor], *, z: Literal["shared", "each"] = "shared") -> Callable[..., Tensor]:
    """The inner loss of many tasks, from that of one: the sum over the first dimension of y and of the batch.

    g(z, y, batch) = sum_i inner_loss(z, y_i, batch_i), by `torch.vmap`. A solver whose update acts on each number by
    itself (GD, HeavyBall, Adam) then makes the steps of each task alone, all in one call. With `tol` all tasks make the
    steps that the sum needs.

    Args:
        inner_loss: that of one task, `inner_loss(z, y, batch) -> scalar`.
        z: "shared" by all tasks, as x itself; or "each" has its own in the first dimension, as the features have that
            `prepare` makes of the batch of each task.

    Returns:
        `inner_loss(z, y, batch)` of the stacked tasks. Tensors of y and of a batch have tasks in their first dimension.

    Raises:
        OptionError: `z` is neither "shared" nor "each".

    Examples:
        >>> def task_loss(x, y, batch):
        ...     return (y - x * batch).square().sum()
        >>> argmin = pzobo.Argmin(pzobo.over_tasks(task_loss), solver=pzobo.GD(0.25, 30), jacobian=pzobo.Unrolled())
        >>> y = argmin(torch.tensor(2.0), pzobo.for_tasks(torch.zeros(3), 4), torch.ones(4, 3))
        >>> y.shape                                 # 4 tasks with 3 numbers each
        torch.Size([4, 3])
    """
    if z not in ("shared", "each"):
        raise OptionError(f'over_tasks: z={z!r}: must be "shared" or "each".')

    def summed(shared: Tree, y: Tree, batch: Tree) -> Tensor:
        dims: Any = (None if z == "shared" else _dims(shared), _dims(y), _dims(batch))
        losses: Tensor = torch.vmap(inner_loss, dims, randomness="different")(shared, y, batch)
        return losses.sum()

    return summed


def _dims(tree: Tree) -> Any:
    """The first dimension of every tensor; what is no tensor is the same for all tasks."""
    return optree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, tree)


def for_tasks(y0: Tree, tasks: int) -> Tree:
    """y0 once for each task, in a new first dimension. A y0 that requires a gradient gets the sum over the tasks.

    Args:
        y0: where every task starts, any tree of tensors.
        tasks: how many there are.

    Returns:
        A tree like y0 with tensors of tasks x their shape.

    Examples:
        >>> pzobo.for_tasks({"w": torch.zeros(3, 2)}, 4)["w"].shape
        torch.Size([4, 3, 2])
    """
    return optree.tree_map(lambda t: t.expand(tasks, *t.shape).clone(), y0)
