"""What are MNIST and FashionMNIST? 60,000 and 10,000 images of 28 x 28, digits or clothes, in four idx files."""

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


def _fashion(name: str, md5: str) -> Source:
    return Source(f"FashionMNIST/raw/{name}", "", None, md5)


FASHION = {
    "train": (
        _fashion("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _fashion("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    ),
    "test": (
        _fashion("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        _fashion("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def _split(
    name: str, part: str, sources: tuple[Source, ...], root: str | os.PathLike[str] | None, lenet: bool = False
) -> Split:
    images, labels = (parse_idx(read(source, root), source.path) for source in sources)
    if images.dim() != 3 or labels.dim() != 1:
        raise DataError(
            f"{name}'s {part} part has images of shape {tuple(images.shape)}, labels of {tuple(labels.shape)}."
        )
    if len(images) != len(labels):
        raise DataError(f"{name}'s {part} part has {len(images)} images and {len(labels)} labels.")
    if lenet:
        images = for_lenet(images.to(torch.float32) / 255, MEAN, STD)
    return Split(images, labels.long())


def mnist(root: str | os.PathLike[str] | None = None, *, lenet: bool = False) -> TrainTest:
    """MNIST as published: images of n x 28 x 28 as uint8, 0 for the background, and labels.

    Args:
        root: the folder that has `MNIST/raw/`; see `docs/data.md` for where else the files are looked for.
        lenet: images of n x 1 x 32 x 32 as float32 instead, padded by zeros and normalised.

    Returns:
        A `TrainTest` of 60,000 and 10,000 images.

    Raises:
        DataError: the files are not there, or are not the known ones.

    Examples:
        >>> pzobo.data.mnist().train.inputs.shape        # doctest: +SKIP
        torch.Size([60000, 28, 28])
    """
    return TrainTest(*(_split("MNIST", part, sources, root, lenet) for part, sources in SOURCES.items()))


def fashion_mnist(root: str | os.PathLike[str] | None = None) -> TrainTest:
    """FashionMNIST as published: images of n x 28 x 28 as uint8, 0 for the background, and labels. Not downloaded.

    Args:
        root: the folder that has `FashionMNIST/raw/`; see `docs/data.md` for where else the files are looked for.

    Returns:
        A `TrainTest` of 60,000 and 10,000 images.

    Raises:
        DataError: the files are not there, or are not the known ones.

    Examples:
        >>> pzobo.data.fashion_mnist().test.inputs.shape        # doctest: +SKIP
        torch.Size([10000, 28, 28])
    """
    return TrainTest(*(_split("FashionMNIST", part, sources, root) for part, sources in FASHION.items()))
