"""Does compiled code follow what people write in a loss, and what they change between two calls?

Each loss is called four times: twice as it is, once after a global, an attribute and constants of the batch have
changed, and once with fewer rows. What is compiled is traced, not made into machine code: for that see
test_compiled_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pzobo
from pzobo.errors import CompileError
from pzobo.inner import compiled
from tests.helpers import normal


class Setting:
    weight = 1.0


setting, scale = Setting(), [1.0]
MATRIX, TARGET = normal(12, 4, seed=1), normal(12, seed=2)
CLASSES, MASK = torch.arange(12) * 7 % 4, normal(12, seed=4) > 0
BATCH = {"a": MATRIX, "t": TARGET, "i": CLASSES, "m": MASK, "k": 3, "f": 0.5, "name": "s", "none": None}
X, Y = normal(4, seed=5), normal(4, seed=6)

Loss = Callable[[Any, Any, Any], Tensor]


def fit(x: Tensor, y: Tensor, b: Any) -> Tensor:
    return (b["a"] @ y - b["t"]).square().mean() + (x.exp() * y.square()).sum()


def in_place(x: Tensor, y: Tensor, b: Any) -> Tensor:
    r = (b["a"] @ y - b["t"]).clone()
    r.mul_(2.0)
    r[3:6].add_(x[0])
    r[::2].sub_(x.sum())
    return r.square().mean() + (x.exp() * y.square()).sum()


def transposed(x: Tensor, y: Tensor, b: Any) -> Tensor:
    return ((b["a"] @ y).tanh() - b["t"][:, None]).square().mean() + (x.exp()[:, None] * y.square()).sum()


def no_dimensions(x: Tensor, y: Any, b: Any) -> Tensor:
    s, (w, cube) = y["a"], y["b"]
    return (b["a"] @ w * s - b["t"]).square().mean() + s**2 + (cube.sum((0, 1)) - x[:2]).square().sum() + (x * w).norm()


def globals_and_attributes(x: Tensor, y: Tensor, b: Any) -> Tensor:
    return fit(x, y, b) * scale[0] + y.square().sum() * setting.weight


def where(x: Tensor, y: Tensor, b: Any) -> Tensor:
    r = b["a"] @ y - b["t"]
    return torch.where(b["m"], r.abs(), r.square()).mean() + torch.where(y > 0, y**3, y**2).sum() * 0.1 + fit(x, y, b)


def scatter(x: Tensor, y: Tensor, b: Any) -> Tensor:
    sums = torch.zeros(4, dtype=y.dtype).index_add(0, b["i"], b["a"] @ y - b["t"])
    return (sums - x).square().sum() * 0.05 + y.square().sum()


def embedding(x: Tensor, y: Tensor, b: Any) -> Tensor:
    rows = F.embedding(b["i"], y)
    return (rows.sum(1) * x.sum() - b["t"]).square().mean() + (x.exp()[:, None] * y.square()).sum()


def sorting(x: Tensor, y: Tensor, b: Any) -> Tensor:
    r = b["a"] @ y - b["t"]
    most = r.abs().sort().values[-5:].square().sum() + torch.topk(r, 3).values.sum()
    return most * 0.1 + r.cumsum(0).square().mean() * 0.05 + fit(x, y, b)


def convolution(x: Tensor, y: Tensor, b: Any) -> Tensor:
    images = b["a"].view(-1, 1, 2, 2).repeat(1, 1, 3, 3)
    pooled = F.avg_pool2d(F.conv2d(images, y, padding=1).tanh(), 2).mean(1, keepdim=True)
    return (pooled - F.conv2d(images, x, stride=2, padding=1).tanh()).square().mean() + 0.1 * y.square().sum()


def log_sums(x: Tensor, y: Tensor, b: Any) -> Tensor:
    return torch.logsumexp(b["a"] * y * x, 1).mean() + F.softplus(b["a"] @ y).mean() + (y - x).square().sum()


def gradient_inside(x: Tensor, y: Tensor, b: Any) -> Tensor:
    slope = torch.func.grad(lambda t: (b["a"] @ t).sin().sum())(y)
    return (slope * 0.1).square().mean() + (y - x).square().sum()


def linear_algebra(x: Tensor, y: Tensor, b: Any) -> Tensor:
    h = b["a"].T @ b["a"] + torch.diag(x.exp())
    return (torch.linalg.solve(h, y) - x).square().sum() + y.square().sum() * 0.3 + torch.linalg.norm(y - 1)


def constants_of_the_batch(x: Tensor, y: Tensor, b: Any) -> Tensor:
    named = 1.0 if b["name"] == "s" else 7.0
    return fit(x, y, b) * b["k"] * b["f"] + named * y.sum() + (0.0 if b["none"] is None else 1e3)


def fourier(x: Tensor, y: Tensor, b: Any) -> Tensor:
    return torch.fft.rfft(y * x).abs().square().sum() + fit(x, y, b)


def unused(x: Tensor, y: Any, b: Any) -> Tensor:
    return fit(x, y[0], b)


def numbers_of_rows(x: Tensor, y: Tensor, b: Any) -> Tensor:
    n = len(b["a"])
    return (b["a"] @ y - b["t"]).square().sum() / n + (x.exp() * y.square()).sum() * (2 if n in (12, 13) else 5)


LOSSES: dict[Loss, tuple[Tensor, Any]] = {
    in_place: (X, Y),
    transposed: (X, normal(3, 4, seed=6).t()),
    no_dimensions: (X, {"a": normal(seed=8), "b": [Y, normal(2, 2, 2, seed=7)]}),
    globals_and_attributes: (X, Y),
    where: (X, Y),
    scatter: (X, Y),
    embedding: (X, normal(4, 4, seed=6)),
    sorting: (X, Y),
    convolution: (normal(1, 1, 3, 3, seed=5), normal(2, 1, 3, 3, seed=6)),
    log_sums: (X, Y),
    gradient_inside: (X, Y),
    linear_algebra: (X, Y),
    constants_of_the_batch: (X, Y),
    fourier: (X, Y),
    unused: (X, (Y, normal(4, seed=7))),
    numbers_of_rows: (X, Y),
}


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **options: graph.forward)
    monkeypatch.setattr(setting, "weight", 1.0)
    scale[0] = 1.0


def called(argmin: pzobo.Argmin, x0: Tensor, y0: Any) -> list[Tensor]:
    """y and the hypergradient of four calls."""
    changed = {**BATCH, "k": 4, "f": 0.7, "name": "t"}
    short = {name: t[:9] if isinstance(t, Tensor) else t for name, t in BATCH.items()}
    found = []
    for batch, other in ((BATCH, 1.0), (BATCH, 1.0), (changed, 1.5), (short, 1.0)):
        scale[0] = setting.weight = other
        x = x0.clone().requires_grad_()
        leaves: list[Any] = optree.tree_leaves(argmin(x, y0, batch))
        outer: Any = sum((t.sin() * (i + 1)).sum() for i, t in enumerate(leaves))
        found += [*(t.detach() for t in leaves), *torch.autograd.grad(outer, x)]
    return found


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_compiled_and_eager_agree(loss: Loss) -> None:
    for jacobian in (pzobo.Unrolled(), pzobo.PZOBO(0.01, 2, pzobo.Gaussian(seed=0))):
        options: Any = {"solver": pzobo.HeavyBall(0.05, 0.5, 6), "audit": False}
        eager, fast = (
            called(pzobo.Argmin(loss, jacobian=jacobian.at_start(), compile=compile, **options), *LOSSES[loss])
            for compile in (False, True)
        )
        assert any(not torch.equal(a, b) for a, b in zip(eager[:2], eager[-2:], strict=True)), "fewer rows change it"
        for a, b in zip(eager, fast, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-10)


def test_a_branch_on_y_is_refused() -> None:
    """Which step takes which branch cannot be known when it is compiled."""

    def loss(x: Tensor, y: Tensor, b: Any) -> Tensor:
        return fit(x, y, b) * (2.0 if float(y[0].detach()) > 0.1 else 1.0)

    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.05, 6), jacobian=pzobo.Unrolled(), compile=True)
    with pytest.raises(CompileError, match="cannot take this loss"):
        argmin(X.clone().requires_grad_(), Y, BATCH)
