"""How are many tensors changed in few launches? By torch's operations on lists of them; without those, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TOGETHER = 2**22
"""So many bytes, or one tensor, make a group. A launch is short beside more, and what it makes takes memory."""


def many(name: str, tensors: Sequence[Tensor], *others: Any, **options: Any) -> list[Tensor]:
    """`tensor.name(other, ...)` for each tensor, in the same bits; one launch on a GPU, however many there are.

    Args:
        name: a method of tensors that torch has for lists too, such as "add" or "mul_".
        tensors: those whose method is called.
        others: what it gets: one for each tensor in a list or tuple, or one for all.
        options: the same for all.
    """
    # There is no public name for them, although torch's own optimizers are made of them.
    at_once = None if len(tensors) < 2 else getattr(torch, f"_foreach_{name}", None)
    if at_once is not None:
        found = at_once(list(tensors), *others, **options)
        return list(tensors) if found is None else list(found)
    rows = [[o[i] if type(o) in (list, tuple) else o for o in others] for i in range(len(tensors))]
    return [getattr(t, name)(*row, **options) for t, row in zip(tensors, rows, strict=True)]


def groups(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Neighbours of one device and dtype, as many as have `TOGETHER` bytes: what is made on the way stays small."""
    if len(tensors) == 1:
        yield slice(0, 1)
        return
    first, size, kind = 0, 0, None
    for i, t in enumerate(tensors):
        mine = t.device, t.dtype
        if i > first and (mine != kind or size + t.nbytes > TOGETHER):
            yield slice(first, i)
            first, size = i, 0
        size, kind = size + t.nbytes, mine
    if tensors:
        yield slice(first, len(tensors))
