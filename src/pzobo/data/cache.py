"""Where are decoded images kept? In array files below the cache folder, which are mapped into memory and not read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pzobo.data.lookup import DataError, cache_folder
from pzobo.extras import need
from pzobo.files import remove_leftovers, replacing, write_atomically

Named = tuple[Any, tuple[str, ...]]
"""A NumPy array of images, and the names of its rows."""


def cached(name: str, make: Callable[[], Named]) -> tuple[Tensor, tuple[str, ...]]:
    """The array and the names kept under this name; made and written first where they are not there yet.

    The tensor is a private view of the file: pages are read when they are needed, and writing to it changes no file.
    """
    path = cache_folder() / "images" / f"{name}.npy"
    kept = _load(path)
    if kept is None:
        remove_leftovers(path.parent)  # a killed process may have left gigabytes
        array, names = make()
        for text in names:
            if not text or not text.isprintable():
                raise DataError(f"{name} has a class called {text!r}; expected names that can be printed.")
        try:
            # The names first: where the array is, they are.
            write_atomically(path.with_suffix(".json"), json.dumps(names).encode())
            with replacing(path) as file:  # without a copy of the array in memory
                need("numpy").save(file, array, allow_pickle=False)
        except OSError as error:
            warnings.warn(f"{path} could not be written ({error.strerror}): images are decoded anew.", stacklevel=3)
            return torch.from_numpy(array), names
        del array
        kept = _load(path)
        assert kept is not None
    return torch.from_numpy(kept[0]), kept[1]


def _load(path: Path) -> Named | None:
    try:
        array = need("numpy").load(path, mmap_mode="c", allow_pickle=False)
        names = tuple(json.loads(path.with_suffix(".json").read_bytes()))
        if array.ndim != 5 or array.dtype != "uint8" or len(names) != len(array) or not all(map(_is_text, names)):
            raise ValueError("it holds something else")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception:  # NumPy raises nearly anything for a damaged file
        warnings.warn(f"{path} could not be read and is made again.", stacklevel=4)
        return None
    return array, names


def _is_text(name: Any) -> bool:
    return isinstance(name, str)
