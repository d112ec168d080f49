"""How does one seed become many? Mixed with a number, so that neighbours are unrelated.

splitmix64 (Steele et al., 2014): integer arithmetic alone: the same on every machine and device.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", int, Tensor)

# The constants as signed numbers, since int64 tensors have no others; their arithmetic wraps around as it should.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mix(key: Number, number: Number | int) -> Number:
    """The seed of 63 bits that belongs to a key and a number: whole numbers, or int64 tensors of them."""
    step = (number + 1) * _STEP
    if isinstance(step, int):  # as a number that a tensor can hold
        step = (step + 2**63) % 2**64 - 2**63
    z = _wrapped(key + step)
    z = _wrapped((z ^ ((z >> 30) & (2**34 - 1))) * _FIRST)
    z = _wrapped((z ^ ((z >> 27) & (2**37 - 1))) * _SECOND)
    return (z ^ ((z >> 31) & (2**33 - 1))) & (2**63 - 1)


def _wrapped(z: Number) -> Number:
    """The last 64 bits; those of a tensor are all that there are."""
    return z if isinstance(z, Tensor) else z & (2**64 - 1)


def generator(key: int, number: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for the stream of this number among those that belong to a key."""
    return torch.Generator(device).manual_seed(mix(key, number))
