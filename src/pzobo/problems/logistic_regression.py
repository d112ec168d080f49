"""What is per-weight hyperparameter optimization? Logistic regression with one l2 strength for each of its weights."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pzobo.data import Dataset, Split, newsgroups
from pzobo.problems.classification import Classification, as_dtype, classes, flat_digits, linear, unknown
from pzobo.tensors.sparse import SparseMatrix


def _dataset(data: str | Dataset, root: str | os.PathLike[str] | None, seed: int, dtype: torch.dtype) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if data == "digits":
        return flat_digits(seed)
    if data == "newsgroups":
        return newsgroups(root, seed=seed).dataset(dtype)
    raise unknown(data, "'digits', 'newsgroups'")


def _stacked(a: Tensor, b: Tensor) -> Tensor:
    """The rows of both, dense or sparse."""
    return a.above(b) if isinstance(a, SparseMatrix) and isinstance(b, SparseMatrix) else torch.cat([a, b])


def logistic_ho(
    data: str | Dataset = "digits",
    *,
    root: str | os.PathLike[str] | None = None,
    start: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Classification:
    """Linear classifier y of d x c weights and their l2 strengths exp(x), x of the same shape: fig. 5 of the paper.

    g = CE(A_2 y, labels_2) + sum_ij exp(x_ij) y_ij^2 / (2 d c) and f = CE(A_1 y, labels_1), where CE is the mean
    cross-entropy. The mean over the weights is that of Grazzi et al. (2020), whom the paper follows; with it, the
    paper's step size of 100 is stable on 20 Newsgroups.

    g is strongly convex in y with modulus min exp(x) / (d c), so y*(x) is unique: exp(x) y / (d c) is minus the
    gradient of CE there. It has no closed form. f is at least 0, and log c at y0 = 0. The outer optimum may lie at
    infinity: a weight that only does harm wants an infinite strength. A weight of an input that is 0 in all training
    rows, and starts at 0, stays there, and its hypergradient is 0.

    Args:
        data: "digits" (dense, 64 x 10 weights), "newsgroups" (sparse, 130,107 x 20), or other data; sparse inputs
            are `pzobo.SparseMatrix`.
        root: where 20 Newsgroups is, as in `pzobo.data.newsgroups`.
        start: the first value of every x_ij. A strength of s in s |y|^2 / 2 is start = log(s d c). On 20 Newsgroups 0
            is 4e-7, which a few steps hardly feel: in float32, PZOBO refuses mu = 0.01 there. For s = 0.001 it is 7.86.
        seed: of the split.
        dtype: of the inputs and of all variables.

    Returns:
        A `Classification` with x and y of d x c.

    Raises:
        DataError: the files are not there.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.logistic_ho("digits")
        >>> problem.x0.shape, problem.y0.shape, problem.train[0].shape
        (torch.Size([64, 10]), torch.Size([64, 10]), torch.Size([600, 64]))
    """
    parts = as_dtype(_dataset(data, root, seed, dtype), dtype)
    shape = (parts.train.inputs.shape[1], classes(parts))

    def prepare(x: Tensor, batch: Split) -> Tensor:
        return x.exp()

    def logits(x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        return linear(inputs, y)

    def inner_loss(strength: Tensor, y: Tensor, batch: Split) -> Tensor:
        return cross_entropy(linear(batch[0], y), batch[1]) + 0.5 * (strength * y.square()).mean()

    def outer_loss(x: Tensor, y: Tensor, batch: Split) -> Tensor:
        return cross_entropy(linear(batch[0], y), batch[1])

    def all_data(x: Tensor, train: Split, val: Split) -> tuple[Tensor, Any]:
        return x.exp(), (_stacked(train[0], val[0]), torch.cat([train[1], val[1]]))

    return Classification(
        inner_loss,
        outer_loss,
        torch.full(shape, start, dtype=dtype),
        torch.zeros(shape, dtype=dtype),
        tuple(parts.train),
        tuple(parts.val),
        prepare=prepare,
        all_data=all_data,
        logits=logits,
        test=parts.test,
    )
