"""How precisely are functions of some tensors computed? By the coarsest of their dtype, autocast's and TF32's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

COARSE = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""The rounding of products of float32 matrices where a coarser format is allowed for them."""


def dtype_eps(leaves: Sequence[Tensor]) -> float:
    """The relative rounding of numbers that are stored as these are."""
    return max(torch.finfo(t.dtype).eps for t in leaves)


def working_eps(leaves: Sequence[Tensor], autocast: Mapping[str, torch.dtype] | None = None) -> float:
    """The relative rounding of a function of these tensors, where these devices autocast to these dtypes: by default
    those that do so here and now."""
    eps = dtype_eps(leaves)
    for kind in {t.device.type for t in leaves} - {"meta"}:
        if autocast is None and torch.is_autocast_enabled(kind):
            eps = max(eps, torch.finfo(torch.get_autocast_dtype(kind)).eps)
        if autocast is not None and kind in autocast:
            eps = max(eps, torch.finfo(autocast[kind]).eps)
        if any(t.dtype == torch.float32 and t.device.type == kind for t in leaves):
            eps = max(eps, *(COARSE.get(setting, 0.0) for setting in _allowed(kind)))
    return eps


class Coarsest(TorchFunctionMode):
    """Notes the coarsest of the half precisions that code inside computes with: autocast in a loss, or a cast by hand.

    Only what has a derivative counts: data may be stored as they like. Autocast around all of it is not noted here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0
        self._around = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        if not self._around:
            for t in answer if isinstance(answer, (tuple, list)) else (answer,):
                if isinstance(t, Tensor) and t.dtype in (torch.bfloat16, torch.float16) and t.requires_grad:
                    self.eps = max(self.eps, torch.finfo(t.dtype).eps)
        return answer


def _allowed(kind: str) -> tuple[str, ...]:
    """What torch may use in place of float32, inside of matrix products and convolutions."""
    backends: Any = torch.backends
    if kind == "cuda":
        return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision
    if kind == "cpu":
        return backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision
    return ("",)
