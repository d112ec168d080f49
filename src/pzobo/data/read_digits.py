"""What data needs no file? scikit-learn's 1,797 handwritten digits of 8 x 8."""

from __future__ import annotations

import torch

from pzobo.data.images import for_lenet
from pzobo.data.splits import Dataset, Split
from pzobo.errors import OptionError
from pzobo.extras import need

MEAN, STD = 0.3053, 0.3761  # of all pixels, with black as 1


def digits(*, train: int = 600, val: int = 600, lenet: bool = False, seed: int = 0) -> Dataset:
    """Images of n x 8 x 8 as float32 between 0 (background) and 1; what `train` and `val` leave is the test part.

    Args:
        train: how many images the inner loss gets.
        val: how many images the outer loss gets.
        lenet: images of n x 1 x 32 x 32 instead, enlarged and normalised.
        seed: decides which image is in which part.

    Returns:
        A `Dataset` of three parts: images of n x 8 x 8, or of n x 1 x 32 x 32 with `lenet`.

    Raises:
        OptionError: the parts are larger than the 1,797 images.
        StructureError: scikit-learn gave other images than are known.
        MissingExtraError: scikit-learn is not installed.

    Examples:
        >>> data = pzobo.data.digits(train=800, val=500)
        >>> data.train.inputs.shape, data.test.labels.shape
        (torch.Size([800, 8, 8]), torch.Size([497]))
    """
    bunch = need("sklearn.datasets").load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    if train < 1 or val < 1 or train + val >= len(labels):
        raise OptionError(f"digits got train={train}, val={val}; expected positive numbers below {len(labels)} in all.")
    if lenet:
        images = for_lenet(images, MEAN, STD)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split([train, train + val])
    return Dataset(*(Split(images[part], labels[part]) for part in parts))
