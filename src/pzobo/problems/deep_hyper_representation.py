"""What is deep hyper-representation? LeNet's features are the outer variables, its linear head the inner ones."""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear

from pzobo.data import Dataset, Split, digits, mnist
from pzobo.networks.lenet import FEATURES, LeNet
from pzobo.problems.classification import Classification, as_dtype, classes, unknown


def _dataset(data: str | Dataset, root: str | os.PathLike[str] | None, seed: int) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if data == "digits":
        return digits(lenet=True, seed=seed)
    if data == "mnist":
        # As in the authors' code, the small part is the inner data; they report accuracy on the outer data.
        outer, inner = mnist(root, lenet=True)
        return Dataset(inner, outer, outer)
    raise unknown(data, "'digits', 'mnist'")


def deep_hr(
    data: str | Dataset = "digits",
    *,
    root: str | os.PathLike[str] | None = None,
    gamma: float = 1e-3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Classification:
    """LeNet features T(.; x) with 84 numbers for each image, and a linear head y = (W, b) on them: fig. 3 of the paper.

    g = CE(T(X_2; x) W^T + b, labels_2) + gamma (|W|^2 + |b|^2) / 2 and f = CE(T(X_1; x) W^T + b, labels_1), where CE is
    the mean cross-entropy.

    g is strongly convex in y with modulus gamma, so y*(x) is unique; it has no closed form. f is at least 0, and
    log(number of classes) at y0 = 0. The outer problem is not convex.

    Args:
        data: "digits" (600 inner, 600 outer, 597 test images), "mnist" (the published test part of 10,000 is the inner
            data, the 60,000 are the outer data and the test data, as in the paper), or images of n x 1 x 32 x 32.
        root: where MNIST is, as in `pzobo.data.mnist`.
        gamma: the l2 strength.
        seed: of the first features and of the split of the digits.
        dtype: of the images and of all variables.

    Returns:
        A `Classification` with x a dict of LeNet's weights by name, and y = (W, b) of classes x 84 and classes.

    Raises:
        DataError: the files are not there.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.deep_hr("digits")
        >>> {name: t.shape for name, t in problem.y0.items()}
        {'weight': torch.Size([10, 84]), 'bias': torch.Size([10])}
        >>> problem.train[0].shape
        torch.Size([600, 1, 32, 32])
    """
    parts = as_dtype(_dataset(data, root, seed), dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features = LeNet().features.to(dtype)
    x0 = {name: p.detach() for name, p in features.named_parameters()}
    c = classes(parts)
    y0 = {"weight": torch.zeros(c, FEATURES, dtype=dtype), "bias": torch.zeros(c, dtype=dtype)}

    def prepare(x: dict[str, Tensor], batch: Split) -> Tensor:
        z: Tensor = functional_call(features, x, (batch[0],))
        return z

    def logits(x: dict[str, Tensor], y: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return linear(functional_call(features, x, (inputs,)), y["weight"], y["bias"])

    def inner_loss(z: Tensor, y: dict[str, Tensor], batch: Split) -> Tensor:
        squares = y["weight"].square().sum() + y["bias"].square().sum()
        return cross_entropy(linear(z, y["weight"], y["bias"]), batch[1]) + 0.5 * gamma * squares

    def outer_loss(x: dict[str, Tensor], y: dict[str, Tensor], batch: Split) -> Tensor:
        return cross_entropy(logits(x, y, batch[0]), batch[1])

    train, val = tuple(parts.train), tuple(parts.val)
    return Classification(inner_loss, outer_loss, x0, y0, train, val, prepare=prepare, logits=logits, test=parts.test)
