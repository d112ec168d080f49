"""What does a reader of data return? Inputs with their labels, in two or three parts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """Inputs and their labels.

    Attributes:
        inputs: (n, d), n rows of d features, as a tensor or a SparseMatrix; or n images.
        labels: (n,) of int64: classes, counted from 0.

    Examples:
        >>> inputs, labels = pzobo.data.digits().train
        >>> inputs.shape, labels.dtype
        (torch.Size([600, 8, 8]), torch.int64)
    """

    inputs: Tensor
    labels: Tensor


class TrainTest(NamedTuple):
    """The two parts that a dataset was published in.

    Attributes:
        train: the part that was published to learn from.
        test: the part that was published to be judged by.

    Examples:
        >>> part = pzobo.data.Split(torch.zeros(2, 28, 28), torch.zeros(2, dtype=torch.int64))
        >>> pzobo.data.TrainTest(train=part, test=part).train.inputs.shape
        torch.Size([2, 28, 28])
    """

    train: Split
    test: Split


class Dataset(NamedTuple):
    """Data of a bilevel problem, in three parts.

    Attributes:
        train: what the inner loss gets.
        val: what the outer loss gets.
        test: what is reported on. As a rule neither loss gets it.

    Examples:
        >>> data = pzobo.data.digits()
        >>> [len(part.labels) for part in (data.train, data.val, data.test)]
        [600, 600, 597]
    """

    train: Split
    val: Split
    test: Split
