"""What is few-shot data? Images by class, in three parts that share no class; scikit-learn's digits as an example."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pzobo.errors import OptionError, StructureError
from pzobo.extras import need

TURNS = 4


@dataclass(frozen=True, repr=False, eq=False)
class ImageClasses:
    """Images of several classes, the same number of each.

    Args:
        images: (classes, images, channels, height, width) of uint8, perhaps mapped from a file.
        names: k of them, one for each class.
        classes: (k,) of int64: which rows of `images` are meant, so that parts of one dataset share one tensor; all by
            default.
        mean: of each channel, with 255 as 1; `Tasks` subtracts it.
        std: of each channel, with 255 as 1; `Tasks` divides by it.

    Raises:
        StructureError: `images` are not classes x images x channels x height x width of uint8.

    Examples:
        >>> classes = pzobo.data.digits_few_shot().train
        >>> classes.images.shape[1:], classes.names[0]
        (torch.Size([174, 1, 16, 16]), '4/0')
    """

    images: Tensor
    names: tuple[str, ...]
    classes: Tensor | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.images.dim() != 5 or self.images.dtype != torch.uint8:
            raise StructureError(
                f"ImageClasses got images of shape {tuple(self.images.shape)} and {self.images.dtype}; expected uint8 "
                "of classes x images x channels x height x width."
            )
        if self.classes is None:
            object.__setattr__(self, "classes", torch.arange(len(self.images)))
        if len(self.names) != len(self):
            raise StructureError(f"ImageClasses got {len(self.names)} names for {len(self)} classes.")

    def __repr__(self) -> str:
        """Short, and another one for other data, so that a run can tell what it was started with."""
        first = bytes(self.images[self.rows[:1], 0].flatten().tolist())
        key = hashlib.blake2b("\n".join(self.names).encode() + first, digest_size=8).hexdigest()
        return f"ImageClasses({len(self)} x {self.per_class} images of {self.shape}, {key})"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> Tensor:
        """Where the classes stand in `images`."""
        assert self.classes is not None
        return self.classes

    @property
    def per_class(self) -> int:
        """How many images each class has."""
        return self.images.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.images.shape[2:]
        return channels, height, width

    def to(self, device: torch.device | str) -> ImageClasses:
        """The same with the images on another device."""
        return replace(self, images=self.images.to(device), classes=self.rows.to(device))

    def shrunk(self, size: int) -> ImageClasses:
        """The same classes with images of size x size, each pixel the mean of the area that it stands for."""
        side = min(self.shape[1:])
        if not 1 <= size <= side:
            raise OptionError(f"shrunk({size}): must be from 1 to {side}, the side of the images.")
        small = [interpolate(self.images[row].float(), (size, size), mode="area").round() for row in self.rows.tolist()]
        return replace(self, images=torch.stack(small).to(torch.uint8), classes=None)


class FewShotData(NamedTuple):
    """Classes in three parts; no class is in two of them.

    Attributes:
        train: the classes to learn from.
        val: the classes to choose settings by.
        test: the classes to report on.

    Examples:
        >>> data = pzobo.data.digits_few_shot()
        >>> set(data.train.names) & set(data.test.names)
        set()
    """

    train: ImageClasses
    val: ImageClasses
    test: ImageClasses

    def shrunk(self, size: int) -> FewShotData:
        """The same classes with images of size x size."""
        return FewShotData(*(part.shrunk(size) for part in self))


def turned(images: Tensor, names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Each class four times, its images turned by 0, 90, 180 and 270 degrees: four new classes beside each other."""
    stacked = torch.stack([images.rot90(k, (-2, -1)) for k in range(TURNS)], 1)
    return stacked.flatten(0, 1), tuple(f"{name}/{90 * k}" for name in names for k in range(TURNS))


def digits_few_shot(*, seed: int = 0) -> FewShotData:
    """scikit-learn's digits as 1 x 16 x 16, so that CNN4 takes them: 16, 6 and 6 classes of 174 images.

    Ten classes are too few, so turned digits are classes of their own, as with Omniglot. The ten digits are dealt to
    the parts by the seed: four for training, each by all four turns; three for validation and three for the test, each
    upright and turned by 90 degrees only, because a 0, 1 or 8 turned by 180 degrees is the same class again.

    Args:
        seed: decides which digits are in which part.

    Returns:
        A `FewShotData` of images of 1 x 16 x 16.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Examples:
        >>> data = pzobo.data.digits_few_shot()
        >>> len(data.train.names), len(data.val.names), len(data.test.names)
        (16, 6, 6)
    """
    bunch = need("sklearn.datasets").load_digits()
    pixels = torch.tensor(bunch.images, dtype=torch.float32)[:, None] * (255 / 16)
    large = interpolate(pixels, scale_factor=2, mode="bilinear").round().to(torch.uint8)
    labels = torch.tensor(bunch.target)
    count = int(labels.bincount().min())
    images, names = turned(torch.stack([large[labels == d][:count] for d in range(10)]), tuple(map(str, range(10))))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))

    def part(digits: Tensor, turns: int) -> ImageClasses:
        rows = (TURNS * digits[:, None] + torch.arange(turns)).flatten()
        return ImageClasses(images, tuple(names[i] for i in rows), rows, mean=(0.304,), std=(0.321,))

    return FewShotData(part(order[:4], TURNS), part(order[4:7], 2), part(order[7:], 2))
