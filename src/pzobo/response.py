"""How does a value get an estimated derivative? A pullback v -> (dy/dx)^T v, attached as an ordinary autograd node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pzobo.trees import Leaves

Pullback = Callable[[Leaves], Sequence[Tensor]]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pullback: Pullback, y: Leaves, count: int, *inputs: Tensor) -> Leaves:
        ctx.pullback = pullback
        ctx.count = count
        # Saved for what PyTorch users expect of a graph: an error when x was changed in place, or the graph was freed.
        ctx.save_for_backward(*inputs)
        return tuple(t.detach() for t in y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *v: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        cotangents = ctx.pullback(v)
        variables, others = inputs[: ctx.count], inputs[ctx.count :]
        answer = [c.to(t.dtype) for c, t in zip(cotangents, variables, strict=True)]
        return (
            None,
            None,
            None,
            *answer,
            *(torch.zeros((), dtype=t.dtype, device=t.device).expand_as(t) for t in others),
        )


def attach(y: Leaves, pullback: Pullback, variables: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Leaves:
    """y as a function of `variables` with this pullback, and of `others` with derivative zero."""
    attached: Leaves = _Attach.apply(pullback, y, len(variables), *variables, *others)
    return attached
