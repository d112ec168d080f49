"""Are products by differences right on real networks, and where few of many variables matter?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, gelu

import pzobo
from tests.helpers import relative_error


class Transformer(nn.Module):
    """A small transformer for characters: attention, LayerNorm and GELU."""

    def __init__(self, words: int = 64, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "mixed": nn.Linear(width, width),
                    "between": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.after = nn.LayerNorm(width)
        self.out = nn.Linear(width, words)

    def forward(self, text: Tensor) -> Tensor:
        count, length = text.shape
        z = self.embedding(text)
        mask = torch.full((length, length), -torch.inf).triu(1)
        for block in self.blocks:
            q, k, v = block["qkv"](block["before"](z)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            seen = ((q @ k.mT) / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v
            z = z + block["mixed"](seen.transpose(1, 2).reshape(count, length, -1))
            z = z + block["down"](gelu(block["up"](block["between"](z))))
        return self.out(self.after(z))


@pytest.mark.parametrize("solver", [pzobo.GD(0.1, 10), pzobo.HeavyBall(0.05, 0.9, 10)], ids=["GD", "HeavyBall"])
def test_a_transformer_in_float32(solver: Any) -> None:
    """Weights of three sources of text; 60,000 inner variables of very different sizes."""
    torch.manual_seed(0)
    net = Transformer()
    train, val = torch.randint(64, (24, 17)), torch.randint(64, (24, 17))
    y0 = {name: p.detach().clone() for name, p in net.named_parameters()}

    def losses(y: Any, text: Tensor) -> Tensor:
        logits = functional_call(net, y, (text[:, :-1],))
        return cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="none").view(len(text), -1).mean(1)

    def inner_loss(x: Tensor, y: Any, text: Tensor) -> Tensor:
        return (3 * x.softmax(0).repeat_interleave(8) * losses(y, text)).mean()

    def hypergradient(jacobian: Any) -> Tensor:
        x = torch.zeros(3, requires_grad=True)
        argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=jacobian)
        losses(argmin(x, y0, train), val).mean().backward()
        assert x.grad is not None
        return x.grad

    exact = hypergradient(pzobo.Unrolled(checkpoint=True))
    assert relative_error(hypergradient(pzobo.Unrolled(products="difference")), exact) < 1e-3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-7)], ids=str)
@pytest.mark.parametrize("d", [100, 10_000])
def test_an_outer_loss_that_looks_at_one_of_many_variables(d: int, dtype: torch.dtype, tolerance: float) -> None:
    def gradient(jacobian: Any) -> Tensor:
        x = torch.tensor(1.0, dtype=dtype, requires_grad=True)
        argmin = pzobo.Argmin(
            lambda x, y, batch: (0.5 * (y - x).square() + 0.1 * y.pow(4)).sum(),
            solver=pzobo.GD(0.2, 10),
            jacobian=jacobian,
        )
        argmin(x, torch.ones(d, dtype=dtype))[0].backward()
        assert x.grad is not None
        return x.grad

    assert relative_error(gradient(pzobo.Unrolled(products="difference")), gradient(pzobo.Unrolled())) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-8)], ids=str)
@pytest.mark.parametrize("large", [30.0, 1e3, 1e5])
def test_one_large_variable_beside_a_small_one(large: float, dtype: torch.dtype, tolerance: float) -> None:
    """Each has its own x, and g bends on the scale of its own size."""
    sizes = torch.tensor([large, 0.01], dtype=dtype)

    def inner_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (sizes.square() * (0.5 * (y / sizes - x).square() + 0.1 * (y / sizes).pow(4))).sum()

    def gradient(jacobian: Any) -> Tensor:
        x = torch.ones(2, dtype=dtype, requires_grad=True)
        argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(0.2, 10), jacobian=jacobian)
        argmin(x, 0.8 * sizes)[1].backward()
        assert x.grad is not None
        return x.grad

    assert relative_error(gradient(pzobo.Unrolled(products="difference")), gradient(pzobo.Unrolled())) < tolerance


@pytest.mark.parametrize("steps", [10, 40])
def test_cotangents_that_become_smaller_than_the_smallest_number(steps: int) -> None:
    """At lr = 1 / L a step's derivative is zero but for rounding, so that cotangents shrink by 1e15 with each step."""
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - 3.0 * x).square().sum(),
        solver=pzobo.GD(1.0, steps),
        jacobian=pzobo.Unrolled(products="difference"),
    )
    for _ in range(3):  # lengths of differences are found in the first passes
        (gradient,) = torch.autograd.grad(argmin(x, torch.ones(1, dtype=torch.float64)).sum(), x)
        assert abs(float(gradient) - 3.0) < 1e-6
