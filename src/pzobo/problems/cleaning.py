"""What is data cleaning, as the field's benchmark has it? A weight for each image, many of whose labels are random."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from pzobo.data import Dataset, Split, TrainTest, fashion_mnist, mnist
from pzobo.errors import OptionError
from pzobo.options import in_range
from pzobo.problems.classification import as_dtype, classes, flat_digits, unknown
from pzobo.problems.data_reweighting import Reweighting, weighted


def data_cleaning(
    data: str | Dataset = "digits",
    *,
    corruption: float = 0.5,
    reg: float = 0.2,
    rows: int = 20_000,
    val_rows: int = 5_000,
    start: float = -2.0,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Reweighting:
    """Softmax regression y of d x c weights, and weights sigmoid(x) of its n training images, many with random labels.

    g = sum_i sigmoid(x_i) CE_i(A_2 y, labels_2) / n + reg |y|^2 and f = CE(A_1 y, labels_1), where the labels of f are
    right and CE is the mean cross-entropy. x0 = -2 and y0 = 0. The inputs have mean 0 and variance 1 on the training
    data.

    This is the data cleaning of benchopt's benchmark_bilevel, with a split of its own. A random label may be the right
    one by chance: `corrupted` says which are wrong. The inner batch is (inputs, labels, index), as in `reweighting`.

    Args:
        data: "digits", "mnist", "fashion" (FashionMNIST), or other data with inputs of n x d.
        corruption: the share of training labels that are drawn at random from all classes.
        reg: the l2 strength.
        rows: training images of MNIST or FashionMNIST.
        val_rows: validation images of them.
        start: every x at first; sigmoid(-2) is 0.12.
        seed: of the split, and of the labels.
        root: the folder that has MNIST or FashionMNIST; see `docs/data.md` for where else it is looked for.
        dtype: of the inputs and of all variables.

    Returns:
        A `Reweighting` with x of n numbers and y of d x c.

    Raises:
        DataError: the files are not there.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.data_cleaning("digits", corruption=0.5)
        >>> problem.x0.shape, problem.y0.shape
        (torch.Size([600]), torch.Size([64, 10]))
    """
    if not 0 <= corruption <= 1:
        raise OptionError(f"data_cleaning got corruption={corruption}; expected a share between 0 and 1.")
    in_range("data_cleaning: reg", reg, 0, float("inf"))
    if isinstance(data, Dataset):
        parts = data
    elif data == "digits":
        parts = flat_digits(seed)
    elif data == "mnist":
        parts = _images(mnist(root), rows, val_rows, seed)
    elif data == "fashion":
        parts = _images(fashion_mnist(root), rows, val_rows, seed)
    else:
        raise unknown(data, "'digits', 'mnist', 'fashion'")
    parts = _scaled(as_dtype(parts, dtype))
    n = len(parts.train.labels)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(n, generator=generator) < corruption
    others = torch.randint(classes(parts), (n,), generator=generator)
    labels = torch.where(drawn, others, parts.train.labels)
    return weighted(parts, labels, 2 * reg, torch.full((n,), float(start), dtype=dtype))


def _images(data: TrainTest, rows: int, val_rows: int, seed: int) -> Dataset:
    """Training and validation images from the first part, the second part for the test."""
    train, test = data
    if rows + val_rows > len(train.labels):
        raise OptionError(
            f"data_cleaning: rows={rows}, val_rows={val_rows}: there are {len(train.labels)} images for both."
        )
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))

    def part(images: Tensor, labels: Tensor) -> Split:
        return Split(images.flatten(1).float(), labels)

    first, second = order[:rows], order[rows : rows + val_rows]
    return Dataset(
        part(train.inputs[first], train.labels[first]), part(train.inputs[second], train.labels[second]), part(*test)
    )


def _scaled(data: Dataset) -> Dataset:
    """Inputs with mean 0 and variance 1 on the training data; pixels that never change stay 0."""
    inputs = data.train.inputs.double()
    mean, std = inputs.mean(0), inputs.std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    return Dataset(*(Split(((p.inputs.double() - mean) / std).to(p.inputs.dtype), p.labels) for p in data))
