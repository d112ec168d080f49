"""What is MNIST? 60,000 and 10,000 handwritten digits of 28 x 28, in four idx files."""

from __future__ import annotations

import os

import torch

from pzobo.data.idx import parse_idx
from pzobo.data.images import for_lenet
from pzobo.data.lookup import DataError, Source, read
from pzobo.data.splits import Split, TrainTest

MEAN, STD = 0.1307, 0.3081  # of the training pixels, with white as 1
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def _source(name: str, sha256: str) -> Source:
    return Source(f"MNIST/raw/{name}", sha256, _URL + name)


SOURCES = {
    "train": (
        _source("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _source("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ),
    "test": (
        _source("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _source("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
}


def _split(part: str, root: str | os.PathLike[str] | None, lenet: bool) -> Split:
    images, labels = (parse_idx(read(source, root), source.path) for source in SOURCES[part])
    if images.dim() != 3 or labels.dim() != 1:
        raise DataError(
            f"MNIST's {part} part has images of shape {tuple(images.shape)}, labels of {tuple(labels.shape)}."
        )
    if len(images) != len(labels):
        raise DataError(f"MNIST's {part} part has {len(images)} images and {len(labels)} labels.")
    if lenet:
        images = for_lenet(images.to(torch.float32) / 255, MEAN, STD)
    return Split(images, labels.long())


def mnist(root: str | os.PathLike[str] | None = None, *, lenet: bool = False) -> TrainTest:
    """MNIST as published: images of n x 28 x 28 as uint8, 0 for the background, and labels.

    Args:
        root: the folder that has `MNIST/raw/`; see `docs/data.md` for where else the files are looked for.
        lenet: images of n x 1 x 32 x 32 as float32 instead, padded by zeros and normalised.
    """
    return TrainTest(_split("train", root, lenet), _split("test", root, lenet))
