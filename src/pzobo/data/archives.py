"""How is a zip archive read that may be cut off, or unpack to more than there is? Part by part, within a limit."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pzobo.data.lookup import DataError
from pzobo.extras import need

LARGEST = 2**32
"""Bytes that an archive may unpack to; miniImageNet's have a tenth of it."""


def members(content: bytes, name: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Path and content of each wanted file of an archive, in the order of the paths.

    Raises:
        DataError: it is not a whole archive, or would unpack to more than `LARGEST`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(part.file_size for part in archive.infolist())
            if size > LARGEST:
                raise DataError(f"{name} would unpack to {size} bytes; expected at most {LARGEST}.")
            for path in sorted(path for path in archive.namelist() if wanted(path)):
                yield path, archive.read(path)
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib, bz2 and lzma each have errors of their own
        raise DataError(f"{name} is not a whole zip archive ({error}).") from error


def arrays(content: bytes, name: str, dimensions: Mapping[str, int]) -> dict[str, Any]:
    """The arrays of an npz file, by name.

    Args:
        content: the file.
        name: for the error.
        dimensions: the arrays that must be there, each with its number of dimensions.
    """
    files = {f"{key}.npy": key for key in dimensions}
    found = {
        files[path]: _array(part, f"{path} in {name}") for path, part in members(content, name, files.__contains__)
    }
    for key, count in dimensions.items():
        if key not in found:
            raise DataError(f"{name} has no array {key!r}.")
        if found[key].ndim != count:
            raise DataError(f"{key!r} in {name} has {found[key].ndim} dimensions, expected {count}.")
    return {key: found[key] for key in dimensions}


def _array(content: bytes, name: str) -> Any:
    """An npy file, whose header must not claim more than there is."""
    layout = need("numpy").lib.format
    file = io.BytesIO(content)
    try:
        read = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}[layout.read_magic(file)]
        shape, _, dtype = read(file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"its header claims {dtype} of shape {shape}")
        file.seek(0)
        return layout.read_array(file, allow_pickle=False)
    except Exception as error:  # the header is a piece of Python, and raises what parsing one raises
        raise DataError(f"{name} is not a whole array ({error}).") from error
