"""How is a picture read that may be damaged? By Pillow, in the formats that data comes in, up to a size."""

from __future__ import annotations

from typing import Any

from pzobo.data.lookup import DataError
from pzobo.extras import need

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Not all that Pillow knows: for some of them it starts another program."""
LARGEST = 2**26
"""Pixels; a few bytes of a file can claim any number of them."""


def picture(file: Any, name: str) -> Any:
    """The picture in a file or at a path, decoded.

    Raises:
        DataError: it is missing, damaged, no picture, or too large.
    """
    image = need("PIL.Image")
    try:
        with image.open(file, formats=FORMATS) as opened:
            if opened.width * opened.height > LARGEST:
                raise ValueError(f"it has {opened.width} x {opened.height} pixels")
            opened.load()
            return opened.copy()
    except Exception as error:  # each format of Pillow's has errors of its own
        raise DataError(f"{name} is missing or not a picture ({error}).") from error


def resized(opened: Any, size: int) -> Any:
    """A square picture, by Pillow's Lanczos filter."""
    return opened.resize((size, size), need("PIL.Image").Resampling.LANCZOS)
