"""Which sources of data are worth learning from? One weight for each source, and a small set of what is wanted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pzobo.data import Dataset, Split, digits, mnist
from pzobo.errors import OptionError
from pzobo.options import whole
from pzobo.problems.classification import Classification, as_dtype, classes, unknown

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class SourceWeights(Classification):
    """A `Classification` that also says how bad each source is.

    Args:
        wrong: (K,), one for each of K sources: the share of its labels that is wrong.
        clean: (n,) of int64, the right labels of the n training images.

    Examples:
        >>> problem = pzobo.problems.source_weights("digits", sources=4, size=50)
        >>> type(problem).__name__, len(problem.clean)
        ('SourceWeights', 200)
    """

    wrong: Tensor
    clean: Tensor


def source_weights(
    data: str | Dataset = "digits",
    *,
    sources: int = 8,
    size: int | None = None,
    target: int = 60,
    hidden: int = 32,
    gamma: float = 1e-3,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> SourceWeights:
    """A tanh network y trained on K sources of images, and a weight sigmoid(x_k) for each source.

    g = sum_i sigmoid(x_k(i)) CE_i / n + gamma |y|^2 / 2 over the n images of all sources, and f = CE on a few target
    images. In source k = 0, ..., K - 1 a share k / (K - 1) of the labels is wrong. Few outer variables and any training
    inside: f(x, y^N(x)) is what everybody asks who mixes data.

    The inner batch is (inputs, labels, source). The network starts at random weights that follow from the seed.

    Args:
        data: "digits", "mnist", or other data, whose training part is split into the sources.
        sources: K.
        size: images of each source; 150 with 8 sources of digits, and else as many as there are, up to 2,000.
        target: images of the target set.
        hidden: units of the network's hidden layer.
        gamma: the l2 strength.
        seed: of the split, the labels and the network.
        root: the folder that has MNIST; see `docs/data.md` for where else it is looked for.
        dtype: of the inputs and of all variables.

    Returns:
        A `SourceWeights` with x of K numbers, one for each source.

    Raises:
        DataError: the files are not there.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.source_weights("digits", sources=4, size=50)
        >>> problem.x0.shape, problem.wrong
        (torch.Size([4]), tensor([0.0000, 0.3333, 0.6667, 1.0000]))
    """
    k, target, hidden = (
        whole(f"source_weights: {name}", v)
        for name, v in (("sources", sources), ("target", target), ("hidden", hidden))
    )
    parts = as_dtype(_parts(data, target, seed, root), dtype)
    size = min(2000, len(parts.train.labels) // k) if size is None else whole("source_weights: size", size)
    if k * size > len(parts.train.labels) or not size:
        raise OptionError(
            f"source_weights: {k} sources of {size} images were asked of {len(parts.train.labels)}; give fewer."
        )
    c, generator = classes(parts), torch.Generator().manual_seed(seed)
    source = torch.arange(k).repeat_interleave(size)
    wrong = torch.linspace(0, 1, k) if k > 1 else torch.zeros(1)
    place = torch.arange(size).repeat(k)
    changed = place < (wrong[source] * size).round()
    inputs, labels = (t[: k * size] for t in parts.train)
    shift = torch.randint(1, c, (k * size,), generator=generator)
    clean, labels = labels, torch.where(changed, (labels + shift) % c, labels)
    inputs = inputs.flatten(1)
    d = inputs.shape[1]
    y0 = {
        "first": torch.randn(d, hidden, generator=generator).to(dtype) / d**0.5,
        "bias": torch.zeros(hidden, dtype=dtype),
        "last": torch.randn(hidden, c, generator=generator).to(dtype) / hidden**0.5,
    }

    def logits(x: Tensor, y: Weights, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs.flatten(1) @ y["first"] + y["bias"]) @ y["last"]

    def inner_loss(weights: Tensor, y: Weights, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        each = cross_entropy(logits(weights, y, batch[0]), batch[1], reduction="none")
        squares = torch.stack([t.square().sum() for t in y.values()]).sum()
        return (weights[batch[2]] * each).mean() + 0.5 * gamma * squares

    def outer_loss(x: Tensor, y: Weights, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(logits(x, y, batch[0]), batch[1])

    def all_data(x: Tensor, train: Any, val: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        """The target images are one more source, of weight 1."""
        inputs, labels = (torch.cat(pair) for pair in zip(train[:2], val, strict=True))
        return torch.cat([x.sigmoid(), x.new_ones(1)]), (inputs, labels, torch.cat([train[2], 0 * val[1] + len(x)]))

    return SourceWeights(
        inner_loss,
        outer_loss,
        torch.zeros(k, dtype=dtype),
        y0,
        (inputs, labels, source),
        (parts.val.inputs.flatten(1), parts.val.labels),
        prepare=lambda x, batch: x.sigmoid(),
        all_data=all_data,
        logits=logits,
        test=Split(parts.test.inputs.flatten(1), parts.test.labels),
        wrong=wrong,
        clean=clean,
    )


def _parts(data: str | Dataset, target: int, seed: int, root: str | os.PathLike[str] | None) -> Dataset:
    """Images for the sources, `target` others, and a test set."""
    if isinstance(data, Dataset):
        return data
    if data == "digits":
        return digits(train=1200, val=target, seed=seed)
    if data != "mnist":
        raise unknown(data, "'digits', 'mnist'")
    train, test = mnist(root)
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))
    mine, rest = order[:target], order[target:]

    def part(images: Tensor, labels: Tensor) -> Split:
        return Split(images.float() / 255, labels)

    return Dataset(
        part(train.inputs[rest], train.labels[rest]), part(train.inputs[mine], train.labels[mine]), part(*test)
    )
