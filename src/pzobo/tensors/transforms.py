"""Is somebody transforming this call? `torch.func`, `vmap` and forward-mode derivatives are refused with a sentence.

The answer of an argmin has one derivative, the pullback of its Jacobian. What asks for another one would silently get
that of the steps, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pzobo.errors import RequirementError

ADVICE = (
    "Call it outside of the transform and use backward() or torch.autograd.grad. For many problems at once, put a task "
    "dimension into y and sum their losses."
)


def refuse_transforms(tensors: Iterable[Tensor]) -> None:
    """Refuse a call inside of a transform, whatever it was given, and dual tensors."""
    functorch = _functorch()
    if functorch is not None and functorch.peek_interpreter_stack() is not None:
        raise RequirementError(f"An argmin cannot be called inside of torch.func transforms or vmap. {ADVICE}")
    for tensor in tensors:
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise RequirementError(f"An argmin has no forward-mode derivative, and got a dual tensor. {ADVICE}")
    if getattr(forward_ad, "_current_level", -1) >= 0:  # a loss may have dual tensors of its own, by a closure
        raise RequirementError(
            "An argmin cannot be called inside of forward_ad.dual_level(), nor while another thread is in one: torch "
            'has one for the whole process, and ForwardMode and products="forward" use it. Run threads with those one '
            f"after the other, or processes. {ADVICE}"
        )


def refuse_batched_gradients(tensors: Iterable[Tensor]) -> None:
    """Refuse cotangents that are many at once."""
    for tensor in tensors:
        if _wrapped(tensor):
            raise RequirementError(
                "The backward of an argmin takes one cotangent at a time: without is_grads_batched=True, vmap and "
                "torch.func transforms, in a loop."
            )


def _wrapped(tensor: Tensor) -> bool:
    """Whether a transform has wrapped a tensor."""
    functorch = _functorch()
    if functorch is None:
        return False
    return bool(functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor))


def _functorch() -> Any:
    """What torch knows of transforms. There is no public way to ask; without it, its own errors must do."""
    return getattr(torch._C, "_functorch", None)
