"""How does one seed become many? By splitmix64, whose numbers for neighbouring seeds are unrelated."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

# Steele, Lea and Flood (2014). As signed numbers: int64 tensors take no others, and wrap around as they should.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@overload
def mix(seed: int, number: int = 0) -> int: ...
@overload
def mix(seed: Tensor, number: int | Tensor = 0) -> Tensor: ...
@overload
def mix(seed: int, number: Tensor) -> Tensor: ...
def mix(seed: int | Tensor, number: int | Tensor = 0) -> int | Tensor:
    """Number 0, 1, 2, ... of the sequence that splitmix64 makes from a seed, without its highest bit.

    z = seed + (number + 1) G, then z ^= z >> 30, z *= A, z ^= z >> 27, z *= B, z ^= z >> 31, all modulo 2^64. So it is
    a seed for `torch.manual_seed`, from 0 to 2^63 - 1.

    Args:
        seed: an int, or a tensor of int64; the results are the same.
        number: an int, or a tensor of int64 whose shape broadcasts with that of `seed`.
    """
    z = _wrapped(_wrapped(seed) + _wrapped((number + 1) * _STEP))
    z = _wrapped((z ^ (z >> 30 & 2**34 - 1)) * _FIRST)  # the shift of a signed number brings its sign along
    z = _wrapped((z ^ (z >> 27 & 2**37 - 1)) * _SECOND)
    return (z ^ (z >> 31 & 2**33 - 1)) & 2**63 - 1


def _wrapped(z: int | Tensor) -> int | Tensor:
    """An int as int64 holds it; a tensor has wrapped around by itself."""
    return z if isinstance(z, Tensor) else (z + 2**63) % 2**64 - 2**63


def shuffled(seed: int, number: int, count: int) -> int:
    """Where `number` goes in the permutation of 0 .. count - 1 that belongs to a seed.

    A long permutation is not written out: a Feistel network of six rounds permutes the next power of four, and a number
    that leaves the range goes through it again. On a short one such a network would not be fair.
    """
    if count <= 2**12:
        return int(torch.randperm(count, generator=generator(seed, 0), device="cpu")[number])
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = 2**half - 1
    while True:
        left, right = number >> half, number & mask
        for turn in range(6):
            left, right = right, left ^ (mix(seed, 8 * right + turn) & mask)
        number = left << half | right
        if number < count:
            return number


def generator(seed: int, number: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for the stream of this number among those that belong to a seed."""
    return torch.Generator(device).manual_seed(mix(seed, number))
