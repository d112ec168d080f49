"""Is a value what it must be? One floating-point number, or finite; a sentence if it is not."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.errors import NonFiniteError, ScalarLossError, StaleError
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree


def scalar(value: Any, what: str) -> Tensor:
    """A loss's value, if it is one floating-point number."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point():
        return value
    if isinstance(value, Tensor):
        found, advice = f"a {value.dtype} tensor of shape {tuple(value.shape)}", "reduce it with .mean() or .sum()"
    else:
        found, advice = repr(type(value)), "return the tensor itself, with its graph"
    raise ScalarLossError(f"{what} returned {found}; expected one floating-point number: {advice}.")


@contextmanager
def untouched(tree: Tree, who: str, what: str, closely: bool) -> Iterator[None]:
    """Refuse code that writes into the tensors of a tree, which others read too.

    Torch counts its own writes. With `closely` the content is compared too, for those of NumPy: one reading of the data
    before, and one after.
    """
    tensors: list[Any] = [t for t in optree.tree_leaves(tree) if isinstance(t, Tensor) and not t.is_inference()]

    def state() -> list[Any]:
        return [(t._version, _checksum(t) if closely else None) for t in tensors]

    before = state()
    yield
    if state() != before:
        raise StaleError(f"{who} wrote into {what}, which other evaluations read too. Write into a copy: t.clone().")


def _checksum(t: Tensor) -> int | None:
    """Of the bytes that NumPy could write to."""
    if type(t) is not Tensor or t.layout != torch.strided or t.device.type != "cpu" or not t.numel():
        return None
    t = t.detach().contiguous()
    return zlib.crc32((ctypes.c_char * t.nbytes).from_address(t.data_ptr()))


def check_x(variables: Sequence[Tensor]) -> None:
    """Refuse an x that is not finite."""
    if not trees.is_finite(variables):
        raise NonFiniteError("x holds NaN or infinity; look at the last step of the outer optimizer.")
