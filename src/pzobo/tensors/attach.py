"""How does a value get an estimated derivative? A pullback v -> (dy/dx)^T v, attached as an ordinary autograd node."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import Tensor, nn

from pzobo.errors import RequirementError, StaleError
from pzobo.tensors.saved import graph_is_kept, no_saved_tensor_hooks
from pzobo.tensors.transforms import refuse_batched_gradients
from pzobo.tensors.trees import Leaves

Pullback = Callable[[Leaves], Sequence[Tensor]]


class Unchanged:
    """Tensors, arrays, and objects that hold tensors, which must keep their values.

    Torch counts its own writes into a tensor. Arrays of NumPy are read for a checksum, now and in `check`. Of an object
    that is no tree, such as a dataclass, the attributes that are tensors, or trees of them, must stay the same.
    """

    def __init__(self, things: Sequence[Any]) -> None:
        self._things = [(thing, mark) for thing in things if (mark := _mark(thing)) is not None]

    def check(self) -> None:
        for thing, mark in self._things:
            if _mark(thing, mark) != mark:
                kind = "tensor" if isinstance(thing, Tensor) else "NumPy array"
                named = f"{kind} of shape {tuple(thing.shape)}" if hasattr(thing, "shape") else type(thing).__name__
                raise StaleError(
                    f"A {named} (y, y0, a batch or a constant in x) was changed in place "
                    "between the forward and the backward pass, which needs it again. Change a copy (y.clone()), or "
                    "change it after backward()."
                )


def _mark(thing: Any, before: Any = None) -> Any:
    """What differs when a thing has been written into; None where that cannot be told."""
    if isinstance(thing, Tensor):
        return None if thing.is_inference() else thing._version
    if hasattr(thing, "__array_interface__"):
        return None if thing.dtype.hasobject else zlib.crc32(thing.tobytes())
    if isinstance(thing, (type, nn.Module)) or callable(thing):
        return None
    held = {
        name: [(id(t), t._version) for t in optree.tree_leaves(part) if isinstance(t, Tensor) and not t.is_inference()]
        for name, part in getattr(thing, "__dict__", {}).items()
    }
    # What is new may have been computed on the way.
    return {name: marks for name, marks in held.items() if (marks if before is None else name in before)} or None


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pullback: Pullback, y: Leaves, fixed: Unchanged, count: int, *inputs: Tensor) -> Leaves:
        ctx.pullback, ctx.fixed = pullback, fixed
        ctx.count = count
        # Saved for what PyTorch users expect of a graph: an error when x was changed in place, or the graph was freed.
        ctx.save_for_backward(*inputs)
        return tuple([t.detach() for t in y])

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        refuse_batched_gradients(v)
        ctx.fixed.check()
        with torch.no_grad(), no_saved_tensor_hooks():
            cotangents = ctx.pullback(tuple([t.detach() for t in v]))
        if not graph_is_kept():
            del ctx.pullback, ctx.fixed
        variables, others = inputs[: ctx.count], inputs[ctx.count :]
        answer = tuple([c.to(t.dtype) for c, t in zip(cotangents, variables, strict=True)])
        if torch.is_grad_enabled() and answer:
            answer = _Once.apply(len(answer), *answer, *inputs, *v)
        zeros = [torch.zeros_like(t) for t in others]
        return (None, None, None, None, *answer, *zeros)


class _Once(torch.autograd.Function):
    """Passes its first inputs on, and refuses to be differentiated, whichever input is asked about."""

    @staticmethod
    def forward(ctx: Any, count: int, *inputs: Tensor) -> Leaves:
        return tuple([t.clone() for t in inputs[:count]])

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:
        raise RequirementError(
            "The hypergradient cannot be differentiated again: y carries an estimate of its first derivative only. "
            "For second derivatives differentiate through a path of your own, written in plain PyTorch."
        )


def attach(
    y: Leaves,
    pullback: Pullback,
    variables: Sequence[Tensor],
    others: Sequence[Tensor] = (),
    fixed: Sequence[Any] = (),
) -> Leaves:
    """y as a function of `variables` with this pullback, and of `others` with derivative zero.

    The pullback needs y and what is in `fixed` again: they must not be changed in place before. What it holds is freed
    by the backward pass, unless the graph is retained.
    """
    attached: Leaves = _Attach.apply(pullback, y, Unchanged([*y, *fixed]), len(variables), *variables, *others)
    return attached
