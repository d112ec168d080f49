"""What other data needs no file? The small tables that scikit-learn ships: iris, wine, breast_cancer."""

from __future__ import annotations

import torch

from pzobo.data.splits import Dataset, Split
from pzobo.errors import OptionError
from pzobo.extras import need

NAMES = ("breast_cancer", "iris", "wine")


def tabular(name: str, *, train: float = 0.4, val: float = 0.3, seed: int = 0) -> Dataset:
    """A table of scikit-learn's for classification, its columns standardised by the training part.

    Args:
        name: "breast_cancer" (569 rows, 30 columns, 2 classes), "iris" (150, 4, 3) or "wine" (178, 13, 3).
        train: the share of rows that the inner loss gets.
        val: the share of rows that the outer loss gets; the rest is the test part.
        seed: decides which row is in which part.

    Returns:
        A `Dataset` of three parts, rows of n x d.

    Raises:
        OptionError: there is no such table, or the shares are none.
        MissingExtraError: scikit-learn is not installed.

    Examples:
        >>> data = pzobo.data.tabular("wine")
        >>> data.train.inputs.shape, data.val.inputs.shape, data.test.inputs.shape
        (torch.Size([71, 13]), torch.Size([54, 13]), torch.Size([53, 13]))
    """
    if name not in NAMES:
        raise OptionError(f"tabular({name!r}): there are {', '.join(NAMES)}; digits has a reader of its own.")
    if not (train > 0 and val > 0 and train + val < 1):
        raise OptionError(f"tabular got train={train}, val={val}; expected positive shares of less than 1 in all.")
    bunch = getattr(need("sklearn.datasets"), f"load_{name}")()
    rows = torch.tensor(bunch.data, dtype=torch.float32)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split([round(train * len(order)), round((train + val) * len(order))])
    mean, std = rows[parts[0]].mean(0), rows[parts[0]].std(0)
    return Dataset(*(Split((rows[part] - mean) / std, labels[part]) for part in parts))
