"""Which run is this? What a problem, a method and an optimizer are, in words that another process finds too."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.problem import Problem
from pzobo.sparse import SparseMatrix


def plain(value: Any) -> Any:
    """The same as lists, dicts, numbers and strings."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def words(thing: Any) -> str:
    """What an object is, in words that another process finds too (no addresses of functions)."""
    if isinstance(thing, torch.optim.Optimizer):
        return f"{type(thing).__name__}({thing.defaults})"
    if hasattr(thing, "state_dict") and not hasattr(thing, "start"):  # a scheduler: its settings, not where it stands
        fixed = {k: v for k, v in thing.state_dict().items() if not k.startswith("_") and k != "last_epoch"}
        return f"{type(thing).__name__}({fixed})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def fingerprint(problem: Any) -> str:
    """A short text that tells one problem from another: of a `Problem`, a hash of its start and its data."""
    if not isinstance(problem, Problem):
        return words(problem)
    digest = hashlib.blake2b(digest_size=12)
    leaves: list[Any] = optree.tree_leaves((problem.x0, problem.y0, problem.train, problem.val))  # type: ignore[arg-type]
    for leaf in leaves:
        for part in leaf.parts if isinstance(leaf, SparseMatrix) else [leaf]:
            if isinstance(part, Tensor):
                flat = part.detach().contiguous().flatten().view(torch.uint8).cpu()
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(ctypes.string_at(flat.data_ptr(), flat.numel()))  # NumPy may not be installed
            else:
                digest.update(repr(part).encode())
    return f"{type(problem).__name__} {digest.hexdigest()}"
