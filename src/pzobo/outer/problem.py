"""What is a bilevel problem? Two losses, where they start, their data, and what is known of the answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import optree
import torch
from torch import Tensor, nn

from pzobo import deprecated
from pzobo.argmin import Argmin
from pzobo.jacobians.base import Jacobian
from pzobo.solvers import Solver
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree


@deprecated.fields(loss="inner_loss")
@dataclass(frozen=True)
class Problem:
    """min_x f(x, y*(x)) with y*(x) = argmin_y g(x, y), as `outer_loss(x, y, val)` and `inner_loss(z, y, train)`.

    Args:
        inner_loss: g as `inner_loss(z, y, batch) -> scalar`, where z = prepare(x, batch), or x itself.
        outer_loss: f as `outer_loss(x, y, batch) -> scalar`.
        x0: where the outer variables start, any tree of tensors.
        y0: where the inner variables start, any tree of tensors.
        train: the batch that g gets, any tree of tensors and other things.
        val: the batch that f gets, any tree of tensors and other things.
        prepare: as in `Argmin`.
        hypergradient: the exact gradient of f(x, y*(x)) as a function of x, where it is known.
        solution: y* as a differentiable function of (z, train), where there is a formula.
        all_data: what g gets where the model is fitted again on all data: `all_data(x, train, val) -> (z, batch)`, with
            the validation data in the batch too. For `fit(..., refit=True)`.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (y - x).square().sum()
        >>> problem = pzobo.Problem(inner_loss, lambda x, y, batch: y.sum(), x0=torch.ones(2), y0=torch.zeros(2))
        >>> x = problem.start()
        >>> problem.objective(problem.argmin(pzobo.GD(lr=0.5, steps=1), pzobo.Unrolled()), x).backward()
        >>> x.grad
        tensor([1., 1.])
    """

    inner_loss: Callable[[Any, Any, Any], Tensor]
    outer_loss: Callable[[Any, Any, Any], Tensor]
    x0: Tree
    y0: Tree
    train: Tree = None
    val: Tree = None
    prepare: Callable[[Any, Any], Any] | None = None
    hypergradient: Callable[[Any], Any] | None = None
    solution: Callable[[Any, Any], Any] | None = None
    all_data: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None

    def argmin(self, solver: Solver, jacobian: Jacobian, **options: Any) -> Argmin:
        """The inner problem as a differentiable function."""
        return Argmin(self.inner_loss, solver=solver, jacobian=jacobian, prepare=self.prepare, **options)

    def objective(self, argmin: Argmin, x: Tree, y0: Tree = None) -> Tensor:
        """f(x, y^N(x)): call `.backward()` on it for the hypergradient."""
        y = argmin(x, optree.tree_map(trees.detach, self.y0) if y0 is None else y0, self.train)
        return self.outer_loss(x, y, self.val)

    def start(self) -> Tree:
        """A fresh copy of x0 whose tensors need gradients: those that do in x0, or all if none does there.

        Tied tensors stay tied.
        """
        leaves: list[Any] = [t for t in optree.tree_leaves(self.x0) if isinstance(t, Tensor)]
        chosen = [t for t in leaves if t.requires_grad] or [t for t in leaves if t.is_floating_point()]
        wanted = {id(t) for t in chosen}
        made = {id(t): t.detach().clone().requires_grad_(id(t) in wanted) for t in leaves}
        return optree.tree_map(lambda t: made.get(id(t), t), self.x0)

    def metrics(self, x: Tree, y: Tree) -> dict[str, float]:
        """What else is worth knowing at (x, y), for evaluations: f on all the validation data."""
        return {"val_loss": float(self.outer_loss(x, y, self.val))}

    def to(self, device: str | torch.device) -> Self:
        """The same problem with all its tensors, and losses that are modules, on another device.

        Tied tensors stay tied. Modules are copied: those of this problem stay where they are.
        """
        moved: dict[int, Any] = {}

        def move(leaf: Any) -> Any:
            if isinstance(leaf, nn.Module):
                return moved.setdefault(id(leaf), copy.deepcopy(leaf).to(device))
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) not in moved:
                moved[id(leaf)] = leaf.to(device)
            return moved[id(leaf)]

        parts: Any = {f.name: optree.tree_map(move, getattr(self, f.name)) for f in fields(self)}
        return replace(self, **parts)
