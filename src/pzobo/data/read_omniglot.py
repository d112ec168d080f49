"""What is Omniglot? 1,623 handwritten characters of 50 alphabets, 20 drawings of each, in two zip archives."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch import Tensor

from pzobo.data.archives import members
from pzobo.data.cache import cached
from pzobo.data.few_shot import TURNS, FewShotData, ImageClasses, turned
from pzobo.data.lookup import DataError, Source, read
from pzobo.data.pictures import picture, resized
from pzobo.errors import OptionError
from pzobo.extras import need

SIZE = 28
DRAWINGS = 20
CHARACTERS = 1623
TRAIN = 1200
"""Characters that are not for the test, as usual since Santoro et al. (2016)."""

_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"

# The sha256 are of the same files packed without compression, the MD5 of the publisher's archives.
SOURCES = (
    Source(
        "omniglot/images_background.zip",
        "12f28f39d6d0baaa9b94998e145067e51cc8bdac385d5b3c8994ade9a99f11a2",
        _URL + "images_background.zip",
        "68d2efa1b9178cc56df9314c21c6e718",
    ),
    Source(
        "omniglot/images_evaluation.zip",
        "7fd4f63de21cc4a4e0abb7d2f4b8d5491637b42651c1817c538392ae00186206",
        _URL + "images_evaluation.zip",
        "6b91aef0f799c5bb55b94e3f2daec811",
    ),
)


def decode(archive: bytes, name: str = "the archive") -> dict[str, list[Any]]:
    """Drawings of 28 x 28 by "alphabet/character", ink as 255, in the order of their file names.

    105 x 105 pixels of one bit become 28 x 28 grey ones by Pillow's Lanczos filter.
    """
    np = need("numpy")
    found: dict[str, list[Any]] = {}
    for path, content in members(archive, name, lambda path: path.endswith(".png")):
        small = resized(picture(io.BytesIO(content), f"{path} in {name}").convert("L"), SIZE)
        found.setdefault("/".join(path.split("/")[-3:-1]), []).append(255 - np.asarray(small))
    return found


def characters(root: str | os.PathLike[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """All characters x drawings x 1 x 28 x 28 in the order of the archives and of their names, and these names."""
    found: dict[str, list[Any]] = {}
    for source in SOURCES:
        found |= decode(read(source, root), source.path)
    if {len(drawings) for drawings in found.values()} != {DRAWINGS}:
        raise DataError(f"Omniglot's archives hold characters with another number of drawings than {DRAWINGS}.")
    images = need("numpy").stack([drawing for drawings in found.values() for drawing in drawings])
    return torch.from_numpy(images).reshape(-1, DRAWINGS, 1, SIZE, SIZE), tuple(found)


def omniglot(root: str | os.PathLike[str] | None = None, *, val: int = 100, seed: int = 0) -> FewShotData:
    """Images of 1 x 28 x 28, ink as 255 (1.0 in tasks); each character turned by 0, 90, 180 and 270 degrees is four
    classes of 20 images.

    The 1,623 characters, in the order of the two archives and of their names, are permuted by `torch.randperm` with a
    generator of this seed. The first 1,200 - val are for training, the next `val` for validation, the last 423 for the
    test: 4,400, 400 and 1,692 classes. The four turns of a character are always in the same part.

    Args:
        root: the folder that has `omniglot/`; see `docs/data.md` for where else the files are looked for.
        val: how many of the 1,200 characters are for validation.
        seed: decides which character is in which part.

    Returns:
        A `FewShotData` of images of 1 x 28 x 28.

    Raises:
        DataError: the files are not there, or are not the known ones.
        OptionError: `val` is not between 1 and 1,199.

    Examples:
        >>> len(pzobo.data.omniglot().train.names)        # doctest: +SKIP
        4400
    """
    if not 0 < val < TRAIN:
        raise OptionError(f"omniglot got val={val}; expected a number between 1 and {TRAIN - 1}.")

    def make() -> tuple[Any, tuple[str, ...]]:
        images, names = turned(*characters(root))
        return images.numpy(), names

    images, names = cached("omniglot-28", make)
    order = torch.randperm(len(images) // TURNS, generator=torch.Generator().manual_seed(seed))

    def part(rows: Tensor) -> ImageClasses:
        rows = (TURNS * rows[:, None] + torch.arange(TURNS)).flatten()
        return ImageClasses(images, tuple(names[i] for i in rows), rows)

    return FewShotData(*(part(rows) for rows in order.tensor_split([TRAIN - val, TRAIN])))
