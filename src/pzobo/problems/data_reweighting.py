"""What is data reweighting? A weight for each training example, so that examples with wrong labels lose theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pzobo.data import Dataset
from pzobo.errors import OptionError
from pzobo.problems.classification import Classification, as_dtype, classes, flat_digits, linear, unknown

Batch = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Reweighting(Classification):
    """A `Classification` that also says which training labels were changed.

    Args:
        corrupted: (n,) of bool, one for each of n training examples: whether its label was changed.

    Examples:
        >>> problem = pzobo.problems.reweighting("digits")
        >>> type(problem).__name__, problem.corrupted.shape
        ('Reweighting', torch.Size([600]))
    """

    corrupted: Tensor


def reweighting(
    data: str | Dataset = "digits",
    *,
    corruption: float = 0.4,
    gamma: float = 1e-2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Reweighting:
    """Linear classifier y of d x c weights, and weights sigmoid(x) of its n training examples, some mislabelled.

    g = sum_i sigmoid(x_i) CE_i(A_2 y, labels_2) / n + gamma |y|^2 / 2 and f = CE(A_1 y, labels_1), where the labels of
    f are right and CE is the mean cross-entropy.

    g is strongly convex in y with modulus gamma, so y*(x) is unique; it has no closed form. f is at least 0, and log c
    at y0 = 0. `corrupted` says which labels were changed: the weights 0 for these and 1 for the others are a good
    answer to compare with, though not the optimum, which may also weigh right examples differently.

    The inner batch is (inputs, labels, index): the i-th row has the weight of x[index[i]], so minibatches are rows of
    all three.

    Args:
        data: "digits", or other data.
        corruption: the share of training labels that is changed to another class, drawn uniformly.
        gamma: the l2 strength.
        seed: of the split, and of which labels are changed to what.
        dtype: of the inputs and of all variables.

    Returns:
        A `Reweighting` with x of n numbers and y of d x c.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.reweighting("digits", corruption=0.4)
        >>> problem.x0.shape, problem.y0.shape, round(problem.corrupted.float().mean().item(), 1)
        (torch.Size([600]), torch.Size([64, 10]), 0.4)
    """
    if not 0 <= corruption <= 1:
        raise OptionError(f"reweighting got corruption={corruption}; expected a share between 0 and 1.")
    if not isinstance(data, Dataset) and data != "digits":
        raise unknown(data, "'digits'")
    parts = as_dtype(data if isinstance(data, Dataset) else flat_digits(seed), dtype)
    n, c = len(parts.train.labels), classes(parts)
    generator = torch.Generator().manual_seed(seed)
    corrupted = torch.zeros(n, dtype=torch.bool)
    corrupted[torch.randperm(n, generator=generator)[: round(corruption * n)]] = True
    shift = torch.randint(1, c, (n,), generator=generator)
    labels = torch.where(corrupted, (parts.train.labels + shift) % c, parts.train.labels)
    return weighted(parts, labels, gamma, torch.zeros(n, dtype=dtype))


def weighted(parts: Dataset, labels: Tensor, gamma: float, x0: Tensor) -> Reweighting:
    """A weight sigmoid(x) for each example of the training inputs with these labels; others are the wrong ones.

    In a last fit on all data the validation examples have the weight 1.
    """

    def prepare(x: Tensor, batch: Batch) -> Tensor:
        return x[batch[2]].sigmoid()

    def logits(x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        return linear(inputs, y)

    def inner_loss(weights: Tensor, y: Tensor, batch: Batch) -> Tensor:
        each = cross_entropy(linear(batch[0], y), batch[1], reduction="none")
        return (weights * each).mean() + 0.5 * gamma * y.square().sum()

    def outer_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(linear(batch[0], y), batch[1])

    def all_data(x: Tensor, train: Batch, val: tuple[Tensor, Tensor]) -> tuple[Tensor, Batch]:
        weights = torch.cat([x[train[2]].sigmoid(), x.new_ones(len(val[1]))])
        inputs, labels = (torch.cat(pair) for pair in zip(train[:2], val, strict=True))
        return weights, (inputs, labels, torch.arange(len(labels), device=labels.device))

    return Reweighting(
        inner_loss,
        outer_loss,
        x0,
        torch.zeros(parts.train.inputs.shape[1], classes(parts), dtype=x0.dtype),
        (parts.train.inputs, labels, torch.arange(len(labels))),
        tuple(parts.val),
        prepare=prepare,
        all_data=all_data,
        logits=logits,
        test=parts.test,
        corrupted=labels != parts.train.labels,
    )
