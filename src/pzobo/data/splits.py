"""What does a reader of data return? Inputs with their labels, in two or three parts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """Inputs, one a row (a tensor or a SparseMatrix), and their labels as int64."""

    inputs: Tensor
    labels: Tensor


class TrainTest(NamedTuple):
    """The two parts that a dataset was published in."""

    train: Split
    test: Split


class Dataset(NamedTuple):
    """Data of a bilevel problem: `train` for the inner loss, `val` for the outer one, `test` for neither."""

    train: Split
    val: Split
    test: Split
