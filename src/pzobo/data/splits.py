"""What does a reader of data return? Inputs with their labels, in two or three parts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """Inputs and their labels.

    Attributes:
        inputs: one a row: a tensor of n x d or of n images, or a SparseMatrix of n x d.
        labels: n classes, counted from 0, as int64.
    """

    inputs: Tensor
    labels: Tensor


class TrainTest(NamedTuple):
    """The two parts that a dataset was published in.

    Attributes:
        train: the part that was published to learn from.
        test: the part that was published to be judged by.
    """

    train: Split
    test: Split


class Dataset(NamedTuple):
    """Data of a bilevel problem, in three parts.

    Attributes:
        train: what the inner loss gets.
        val: what the outer loss gets.
        test: what is reported on. As a rule neither loss gets it.
    """

    train: Split
    val: Split
    test: Split
