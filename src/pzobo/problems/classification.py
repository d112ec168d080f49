"""What do problems that classify have in common? Logits, test data and an accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.data import Dataset, Split, digits
from pzobo.errors import OptionError
from pzobo.outer.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Classification(Problem):
    """A `Problem` that also says what its model predicts.

    Args:
        logits: what is predicted, `logits(x, y, inputs)`, n x classes.
        test: n inputs and their labels, which the accuracy is reported on.

    Examples:
        >>> problem = pzobo.problems.logistic_ho("digits")
        >>> problem.logits(problem.x0, problem.y0, problem.test[0]).shape      # n x classes
        torch.Size([597, 10])
        >>> 0 <= problem.accuracy(problem.x0, problem.y0) <= 1
        True
    """

    logits: Callable[[Any, Any, Any], Tensor]
    test: Split

    @torch.no_grad()
    def accuracy(self, x: Any, y: Any, batch: Any = None) -> float:
        """The share of right answers on a batch of (inputs, labels), or on the test data."""
        inputs, labels = (self.test if batch is None else batch)[:2]
        return float((self.logits(x, y, inputs).argmax(1) == labels).double().mean())

    def metrics(self, x: Any, y: Any) -> dict[str, float]:
        """f and the accuracy on the validation data, and the accuracy on the test data."""
        found = {**super().metrics(x, y), "accuracy": self.accuracy(x, y, self.val)}
        return {**found, "test_accuracy": self.accuracy(x, y)}


def linear(inputs: Tensor, y: Tensor) -> Tensor:
    """inputs @ y, n x classes.

    Where both are dense it is the transpose of y^T inputs^T: with few columns the BLAS of PyTorch is several times
    slower the other way round. y^T is copied, so that the derivative in y is taken this way round too.
    """
    if inputs.layout != torch.strided or inputs.dim() != 2 or type(inputs) is not Tensor:
        return inputs @ y
    # Not .mT, which torch.compile does not take inside of a loop (torch 2.13).
    scores: Tensor = (y.t().contiguous() @ inputs.t()).t()
    return scores


def as_dtype(data: Dataset, dtype: torch.dtype) -> Dataset:
    """The same data with inputs of another dtype."""
    return Dataset(*(Split(part.inputs.to(dtype), part.labels) for part in data))


def flat_digits(seed: int) -> Dataset:
    """scikit-learn's digits as rows of 64 pixels."""
    return Dataset(*(Split(part.inputs.flatten(1), part.labels) for part in digits(seed=seed)))


def classes(data: Dataset) -> int:
    """How many classes the labels name."""
    return 1 + max(int(part.labels.max()) for part in data)


def unknown(data: object, names: str) -> OptionError:
    """The error for data= of another name."""
    return OptionError(f"data={data!r} is not known here; expected {names} or a pzobo.data.Dataset.")
