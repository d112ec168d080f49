"""How is an idx file read? A header that gives type and shape, big-endian, then the numbers (MNIST's format)."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib

import torch
from torch import Tensor

from pzobo.data.lookup import DataError

_UINT8 = 0x08
LARGEST = 2**29
"""Bytes that are unpacked; a file of zeros is a thousand times as large as what it is packed in."""


def parse_idx(content: bytes, name: str = "the idx file") -> Tensor:
    """The uint8 tensor in a gzipped idx file: bytes 0, 0, type, number of dimensions, then each of them as 4 bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            raw = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole gzip file ({error}).") from error
    if len(raw) > LARGEST:
        raise DataError(f"{name} unpacks to more than {LARGEST} bytes; MNIST's files have less than a tenth of that.")
    if len(raw) < 4 or raw[:3] != bytes([0, 0, _UINT8]):
        raise DataError(f"{name} starts with {raw[:4].hex(' ')}, expected 00 00 08: an idx file of unsigned bytes.")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{name} ends in its header, after {len(raw)} of {start} bytes.")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{name} has {len(raw) - start} bytes of numbers where its shape {shape} needs another number.")
    # A bytearray, because torch warns of memory that cannot be written to.
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)[start:]
    try:
        return flat.reshape(shape)
    except RuntimeError as error:  # 0 x 2^32 x 2^32, say
        raise DataError(f"{name} has the shape {shape}, which no tensor can have.") from error
