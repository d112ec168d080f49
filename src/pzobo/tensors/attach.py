"""How does a value get an estimated derivative? A pullback v -> (dy/dx)^T v, attached as an ordinary autograd node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import RequirementError, StaleError
from pzobo.tensors.saved import no_saved_tensor_hooks
from pzobo.tensors.transforms import refuse_batched_gradients
from pzobo.tensors.trees import Leaves

Pullback = Callable[[Leaves], Sequence[Tensor]]


class Unchanged:
    """Tensors that must keep their values."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [(t, t._version) for t in tensors if not t.is_inference()]

    def check(self) -> None:
        for t, version in self._tensors:
            if t._version != version:
                raise StaleError(
                    f"A tensor of shape {tuple(t.shape)} (y0, a batch or a constant in x) was changed in place "
                    "between the forward and the backward pass, which solves the inner problem again. Change a "
                    "copy, or change it after backward()."
                )


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pullback: Pullback, y: Leaves, fixed: Unchanged, count: int, *inputs: Tensor) -> Leaves:
        ctx.pullback = pullback
        ctx.fixed = fixed
        ctx.count = count
        # Saved for what PyTorch users expect of a graph: an error when x was changed in place, or the graph was freed.
        ctx.save_for_backward(*inputs)
        # Copies: the pullback needs y as it is now, and the caller may write into the answer.
        return tuple([t.clone() for t in y])

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        refuse_batched_gradients(v)
        ctx.fixed.check()
        with torch.no_grad(), no_saved_tensor_hooks():
            cotangents = ctx.pullback(tuple([t.detach() for t in v]))
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
    fixed: Sequence[Tensor] = (),
) -> Leaves:
    """y as a function of `variables` with this pullback, and of `others` with derivative zero.

    The tensors in `fixed` are needed again by the pullback and must not be changed in place before.
    """
    attached: Leaves = _Attach.apply(pullback, y, Unchanged(fixed), len(variables), *variables, *others)
    return attached
