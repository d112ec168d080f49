"""How precisely are functions of some tensors computed? By the coarsest of their dtype, autocast's and TF32's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

COARSE = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""The rounding of products of float32 matrices where a coarser format is allowed for them."""


def dtype_eps(leaves: Sequence[Tensor]) -> float:
    """The relative rounding of numbers that are stored as these are."""
    return max(torch.finfo(t.dtype).eps for t in leaves)


def working_eps(leaves: Sequence[Tensor]) -> float:
    """The relative rounding of a function of these tensors that is computed here and now."""
    eps = dtype_eps(leaves)
    for kind in {t.device.type for t in leaves} - {"meta"}:
        if torch.is_autocast_enabled(kind):
            eps = max(eps, torch.finfo(torch.get_autocast_dtype(kind)).eps)
        if any(t.dtype == torch.float32 and t.device.type == kind for t in leaves):
            eps = max(eps, *(COARSE.get(setting, 0.0) for setting in _allowed(kind)))
    return eps


def _allowed(kind: str) -> tuple[str, ...]:
    """What torch may use in place of float32, inside of matrix products and convolutions."""
    backends: Any = torch.backends
    if kind == "cuda":
        return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision
    if kind == "cpu":
        return backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision
    return ("",)
