"""On which real problems are hypergradients compared? Constructors, in any precision and size: tests use small ones."""

import codecs
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pydoc_data.topics import topics
from typing import Any

import optree
import torch
from torch import Tensor
from torch.nn import functional as F

import pzobo
from pzobo.data import Dataset, Split, digits, mnist
from pzobo.data import newsgroups as read_newsgroups
from pzobo.problems import deep_hr, linear_hr, logistic_ho, two_layer_hr

Weights = dict[str, Tensor]


def character_transformer(
    width: int = 64,
    blocks: int = 1,
    context: int = 32,
    rows: int = 8,
    heads: int = 4,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sources: int = 3,
) -> pzobo.Problem:
    """A transformer y (GELU, LayerNorm; 64,159 weights) learns to write like three texts, whose weights are softmax(x).

    The texts come with Python: its documentation, a module's source, and the documentation in rot13. The outer loss is
    that of other documentation.

    Args:
        width: of the embedding.
        blocks: of attention and MLP.
        context: characters of a row.
        rows: of each text.
        heads: of the attention; they divide the width.
        seed: of the weights at the start.
        dtype: of all variables.
        sources: how many of the texts there are: 1 to 3, one outer variable each.
    """
    train, val, characters = _texts(rows, context)
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return (scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype)

    def constant(value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=dtype)

    y0: Weights = {"token": normal(characters, width, scale=0.1), "place": normal(context, width, scale=0.1)}
    for b in range(blocks):
        y0 |= {
            f"{b}.norm1": torch.stack([constant(1, width), constant(0, width)]),
            f"{b}.norm2": torch.stack([constant(1, width), constant(0, width)]),
            f"{b}.qkv": normal(width, 3 * width, scale=width**-0.5),
            f"{b}.out": normal(width, width, scale=width**-0.5),
            f"{b}.up": normal(width, 4 * width, scale=width**-0.5),
            f"{b}.up bias": constant(0, 4 * width),
            f"{b}.down": normal(4 * width, width, scale=0.5 * width**-0.5),
            f"{b}.down bias": constant(0, width),
        }
    y0 |= {
        "norm": torch.stack([constant(1, width), constant(0, width)]),
        "head": normal(width, characters, scale=0.5 * width**-0.5),
        "bias": constant(0, characters),
    }
    hidden = torch.ones(context, context, dtype=torch.bool).triu(1)

    def attention(h: Tensor, y: Weights, b: int) -> Tensor:
        # Written out: the fused kernel has no second derivative.
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (h @ y[f"{b}.qkv"]).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) * (width / heads) ** -0.5
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(2) @ y[f"{b}.out"]

    def norm(h: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(h, (width,), weight[0], weight[1])

    def entropies(y: Weights, text: Tensor) -> Tensor:
        """The mean cross-entropy of the next character, for each row."""
        h = y["token"][text[:, :-1]] + y["place"]
        for b in range(blocks):
            h = h + attention(norm(h, y[f"{b}.norm1"]), y, b)
            up = F.gelu(norm(h, y[f"{b}.norm2"]) @ y[f"{b}.up"] + y[f"{b}.up bias"])
            h = h + up @ y[f"{b}.down"] + y[f"{b}.down bias"]
        logits = norm(h, y["norm"]) @ y["head"] + y["bias"]
        each = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="none")
        return each.unflatten(0, (len(text), -1)).mean(1)

    def inner_loss(x: Tensor, y: Weights, texts: Tensor) -> Tensor:
        each = entropies(y, texts.flatten(0, 1)).unflatten(0, texts.shape[:2]).mean(1)
        return (x.softmax(0) * each).sum()

    def outer_loss(x: Tensor, y: Weights, text: Tensor) -> Tensor:
        return entropies(y, text).mean()

    return pzobo.Problem(inner_loss, outer_loss, torch.zeros(sources, dtype=dtype), y0, train[:sources], val)


def _texts(rows: int, context: int) -> tuple[Tensor, Tensor, int]:
    """Training rows of three texts, validation rows of the first, and how many characters there are."""
    prose = " ".join("\n".join(topics[name] for name in sorted(topics)).split())
    code = inspect.getsource(textwrap)
    kept = [chr(i) for i in range(32, 127)]
    number = {c: i for i, c in enumerate(kept)}
    length = rows * (context + 1)

    def take(text: str, start: int) -> Tensor:
        text = "".join(c for c in text if c in number)[start : start + length]
        return torch.tensor([number[c] for c in text]).reshape(rows, context + 1)

    train = [take(prose, 0), take(code, 0), take(codecs.encode(prose, "rot13"), 0)]
    return torch.stack(train), take(prose, 10 * length), len(kept)


def digits_cnn(
    activation: Callable[[Tensor], Tensor] = F.relu,
    batch_norm: bool = True,
    pool: bool = True,
    rows: int = 200,
    channels: tuple[int, int] = (8, 16),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> pzobo.Problem:
    """A small convolutional network y on digits; x is a weight for each class, and the log of a weight decay (p = 11).

    BatchNorm takes the statistics of its batch.

    Args:
        activation: after each convolution.
        batch_norm: before it.
        pool: by the maximum of four; else by their mean.
        rows: training images, and as many for validation.
        channels: of the two convolutions.
        seed: of the split and of the weights.
        dtype: of all variables.
    """
    data = digits(seed=seed)
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, fan: int) -> Tensor:
        return ((2 / fan) ** 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype)

    a, b = channels
    y0 = {
        "conv1": normal(a, 1, 3, 3, fan=9),
        "norm1": torch.stack([torch.ones(a, dtype=dtype), torch.zeros(a, dtype=dtype)]),
        "conv2": normal(b, a, 3, 3, fan=9 * a),
        "norm2": torch.stack([torch.ones(b, dtype=dtype), torch.zeros(b, dtype=dtype)]),
        "head": 0.5 * normal(4 * b, 10, fan=4 * b),
        "bias": torch.zeros(10, dtype=dtype),
    }

    def layer(h: Tensor, kernel: Tensor, norm: Tensor) -> Tensor:
        h = F.conv2d(h, kernel, padding=1)
        if batch_norm:
            h = F.batch_norm(h, None, None, norm[0], norm[1], training=True)
        h = activation(h)
        return F.max_pool2d(h, 2) if pool else F.avg_pool2d(h, 2)

    def entropies(y: Weights, batch: Split) -> Tensor:
        h = layer(layer(batch[0], y["conv1"], y["norm1"]), y["conv2"], y["norm2"])
        return F.cross_entropy(h.flatten(1) @ y["head"] + y["bias"], batch[1], reduction="none")

    def inner_loss(x: Weights, y: Weights, batch: Split) -> Tensor:
        decay = sum((t.square().sum() for t in y.values()), start=torch.zeros((), dtype=dtype))
        return (2 * x["class"].sigmoid()[batch[1]] * entropies(y, batch)).mean() + 0.5 * x["decay"].exp() * decay

    def outer_loss(x: Weights, y: Weights, batch: Split) -> Tensor:
        return entropies(y, batch).mean()

    def part(split: Split) -> Any:
        return split.inputs[:rows].reshape(-1, 1, 8, 8).to(dtype) / split.inputs.max(), split.labels[:rows]

    x0 = {"class": torch.zeros(10, dtype=dtype), "decay": torch.tensor(-6.0, dtype=dtype)}
    return pzobo.Problem(inner_loss, outer_loss, x0, y0, part(data.train), part(data.val))


def data_cleaning(
    rows: int = 4000, data: str = "mnist", *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> pzobo.Problem:
    """MNIST with half of the labels random: a weight sigmoid(x_i) for each of them, softmax regression with 0.2 |y|^2.

    x starts at -2 and y at 0, as in the field's own benchmark (which has 20,000 rows).

    Args:
        rows: training images, and a quarter as many for validation.
        data: "mnist", or the "digits" that come with scikit-learn (at most 960 rows).
        seed: of what is taken, and of the labels.
        dtype: of all variables.
    """
    if data == "mnist":
        images, labels = mnist().train
    else:
        parts = digits(seed=seed)
        images, labels = (torch.cat(pair) for pair in zip(parts.train, parts.val, strict=True))
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=g)

    def part(index: Tensor) -> tuple[Tensor, Tensor]:
        return images[index].flatten(1).to(dtype) / images.max(), labels[index].clone()

    inputs, targets = part(order[:rows])
    wrong = torch.randperm(rows, generator=g)[: rows // 2]
    targets[wrong] = torch.randint(0, 10, (len(wrong),), generator=g)

    def prepare(x: Tensor, batch: Any) -> Tensor:
        return x[batch[2]].sigmoid()

    def inner_loss(w: Tensor, y: Tensor, batch: Any) -> Tensor:
        each = F.cross_entropy(batch[0] @ y, batch[1], reduction="none")
        return (w * each).mean() + 0.2 * y.square().sum()

    def outer_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(batch[0] @ y, batch[1])

    return pzobo.Problem(
        inner_loss,
        outer_loss,
        torch.full((rows,), -2.0, dtype=dtype),
        torch.zeros(inputs.shape[1], 10, dtype=dtype),
        (inputs, targets, torch.arange(rows)),
        part(order[rows : rows + rows // 4]),
        prepare=prepare,
    )


def lenet_head(rows: int = 600, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> pzobo.Problem:
    """`deep_hr` on digits: LeNet's features are x, a linear head is y.

    Args:
        rows: training images, and as many for validation.
        seed: of the features and of the split.
        dtype: of all variables.
    """
    data = digits(lenet=True, seed=seed)
    few = [Split(part.inputs[:rows], part.labels[:rows]) for part in data]
    return deep_hr(Dataset(*few), seed=seed, dtype=dtype)


def linear(m: int = 64, d: int = 128, n: int = 500, *, dtype: torch.dtype = torch.float32) -> pzobo.Problem:
    """Linear hyper-representation as the paper has it: p = 8,192."""
    return _rounded(linear_hr(m, d, n, dtype=torch.float64), dtype)


def two_layer(
    m: int = 256, q: int = 512, d: int = 256, n: int = 1000, *, dtype: torch.dtype = torch.float32
) -> pzobo.Problem:
    """Two-layer hyper-representation with a fifth of the paper's rows: p = 262,144."""
    return _rounded(two_layer_hr(m, q, d, n, dtype=torch.float64), dtype)


def _rounded(problem: pzobo.Problem, dtype: torch.dtype) -> pzobo.Problem:
    """The same numbers in another precision; drawn in it, they would be others."""

    def cast(tree: Any) -> Any:
        return optree.tree_map(lambda t: t.to(dtype), tree)

    names = ("x0", "y0", "train", "val")
    return replace(problem, **{name: cast(getattr(problem, name)) for name in names})


WORDS = 10_000
"""Of 20 Newsgroups, the most frequent ones: with all 130,107 a hypergradient takes minutes on one core."""


def newsgroups(dtype: torch.dtype = torch.float32) -> pzobo.Problem:
    """One l2 strength for each of 10,000 x 20 weights of a classifier of 20 Newsgroups, by its most frequent words."""
    given = read_newsgroups()
    posts = (given.train.csr > 0).sum(0).A1  # that have a word
    words = sorted((-posts).argsort(kind="stable")[:WORDS])

    def chosen(part: Any) -> Split:
        return Split(pzobo.SparseMatrix.from_scipy(part.csr[:, words], dtype), torch.as_tensor(part.labels))

    data = Dataset(*(chosen(part) for part in (given.train, given.val, given.test)))
    return logistic_ho(data, start=3.0, dtype=dtype)  # a strength of 1e-4
