"""What may be given to an argmin? Inner variables, a solver's state, and batches without graphs; a sentence if not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import BatchError, OptionError, StructureError
from pzobo.inner.kernel import Kernel
from pzobo.inner.solver import Iterative
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Taken, Tree

MISSING: Any = object()
"""In place of an argument that was not given, where None is one that can be."""


def batches_of(solver: Any, batch: Tree, batches: Sequence[Tree] | None) -> tuple[list[Taken], bool, bool]:
    """The batches of a path, whether there is one for each step, and whether any were given."""
    if batches is None:
        given = batch is not MISSING
        return [Taken.of(batch if given else None)], False, given
    if batch is not MISSING:
        raise BatchError("Got both batch= and batches=; give the one batch of all steps, or one batch for each step.")
    taken = [Taken.of(batch) for batch in batches]
    if "function" in solver.gives:
        raise BatchError("A closed form has no steps: give it one batch=, not batches=.")
    steps = getattr(solver, "steps", len(taken))
    if len(taken) != steps or not taken:
        raise BatchError(
            f"Got {len(taken)} batches for {steps} inner steps; batches= must hold exactly one for each step."
        )
    return taken, True, True


def inner_variable(leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout != torch.strided:
        found = f"a tensor of {leaf.dtype}, {leaf.layout}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
        raise StructureError(
            f"y0 holds {found}; the inner variables must be dense floating-point tensors, in any nesting of dicts, "
            "lists and tuples. Those of a module are pzobo.Functional(module).weights()."
        )
    # Forward derivatives write into copies of y, which then need memory for each element.
    return leaf.detach().contiguous() if 0 in leaf.stride() else leaf.detach()


def known_state(state: Any, kernel: Kernel, solver: Any, y: Leaves) -> Leaves:
    """A solver's state, if it is one of this solver for this y."""
    if not isinstance(solver, Iterative):
        raise OptionError(f"state= is that of a solver which makes steps; {type(solver).__name__} makes none.")
    expected = kernel.solver.init(y)
    if trees.signature(state) != trees.signature(expected):
        raise StructureError(
            f"state= is not one of {type(solver).__name__} for this y0: give argmin.last.state of a call with the same "
            "solver and the same structure of y0."
        )
    return tuple(t.detach() for t in state)


def refuse_variables(leaves: Sequence[Any]) -> None:
    """Refuse a batch that would get no gradient although it asks for one."""
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise StructureError(
                f"A tensor of shape {tuple(leaf.shape)} in the batch requires a gradient, but the batch is a constant "
                "and gets none. Give it as a part of x, or without its graph: t.detach()."
            )
