"""Which run is this? What a problem, a method and an optimizer are, in words that another process finds too."""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.outer.problem import Problem
from pzobo.tensors.sparse import SparseMatrix


def identity(
    problem: Any,
    method: Any,
    optimizer: Any,
    scheduler: Any,
    seed: int,
    config: Mapping[str, Any],
    scaler: Any = None,
) -> dict[str, Any]:
    """All that makes a run what it is, as JSON. Two functions of the same name cannot be told apart: `config` can."""
    parts = {
        "problem": fingerprint(problem),
        "method": words(method),
        "optimizer": words(optimizer),
        "scheduler": words(scheduler),
        "seed": seed,
        **({} if scaler is None else {"scaler": scaler}),
    }
    try:
        settings = plain(config)
    except Exception as error:  # a dict that holds itself, or an object that cannot be told in words
        raise OptionError(
            f"config= cannot be kept as JSON ({type(error).__name__}: {error}): give strings, numbers, lists and dicts "
            "of them."
        ) from error
    return {**{name: plain(part) for name, part in parts.items()}, "config": settings}


def plain(value: Any) -> Any:
    """The same as lists, dicts, numbers and strings."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))  # a NaN is not equal to itself
    return value if value is None or isinstance(value, (bool, int, str)) else words(value)


def words(thing: Any) -> str:
    """What an object is, in words that another process finds too (no addresses of functions)."""
    if isinstance(thing, torch.optim.Optimizer):
        groups = [{k: v for k, v in group.items() if k != "params"} for group in thing.param_groups]
        return f"{type(thing).__name__}({_no_address(groups[0] if len(groups) == 1 else groups)})"
    if hasattr(thing, "state_dict") and not hasattr(thing, "start"):  # a scheduler: its settings, not where it stands
        fixed = {k: v for k, v in thing.state_dict().items() if not k.startswith("_") and k != "last_epoch"}
        return f"{type(thing).__name__}({_no_address(fixed)})"
    return _no_address(thing)


def _no_address(thing: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing), flags=re.IGNORECASE)


def fingerprint(problem: Any) -> str:
    """A short text that tells one problem from another: of a `Problem`, a hash of its functions' names and its data."""
    if not isinstance(problem, Problem):
        return words(problem)
    digest = hashlib.blake2b(digest_size=12)
    for function in (problem.inner_loss, problem.outer_loss, problem.prepare):
        digest.update(words(function).encode())
    data: Any = (problem.x0, problem.y0, problem.train, problem.val)
    leaves, structure = optree.tree_flatten(data)
    digest.update(str(structure).encode())
    for leaf in leaves:
        for part in _parts(leaf):
            if isinstance(part, Tensor):
                flat = part.detach().contiguous().flatten().view(torch.uint8).cpu()
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(ctypes.string_at(flat.data_ptr(), flat.numel()))  # NumPy may not be installed
            else:
                digest.update(words(part).encode())
    return f"{type(problem).__name__} {digest.hexdigest()}"


def _parts(leaf: Any) -> Iterator[Any]:
    """The dense tensors that a tensor is made of, or anything else as it is."""
    if isinstance(leaf, SparseMatrix):
        yield from leaf.parts
    elif isinstance(leaf, Tensor) and leaf.layout == torch.sparse_coo:
        yield from (leaf.coalesce().indices(), leaf.coalesce().values())
    elif isinstance(leaf, Tensor) and leaf.layout == torch.sparse_csr:
        yield from (leaf.crow_indices(), leaf.col_indices(), leaf.values())
    else:
        yield leaf
