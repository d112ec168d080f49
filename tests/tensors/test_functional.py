"""Is a module as a function of its weights the module itself, and do weights go back into it?"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pzobo
from pzobo.errors import StructureError


class Tied(nn.Module):
    """Two layers that share a weight, one frozen layer, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3).requires_grad_(False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, t: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return scale * self.frozen(self.norm(torch.tanh(self.b(torch.tanh(self.a(t))))))


def test_weights_are_copies_by_name_tied_ones_once_and_frozen_ones_not() -> None:
    module = Tied()
    net = pzobo.Functional(module)
    y = net.weights()
    assert list(y) == ["a.weight", "a.bias", "b.bias", "norm.weight", "norm.bias"]
    assert not any(t.requires_grad for t in y.values())
    assert all(t.requires_grad for t in net.weights(requires_grad=True).values())
    y["a.weight"].zero_()
    assert module.a.weight.any()
    assert not hasattr(y["a.bias"], "grad_fn") or y["a.bias"].grad_fn is None


def test_the_call_uses_these_weights_in_both_places_of_a_tied_one() -> None:
    torch.manual_seed(0)
    module, other, t = Tied(), Tied(), torch.randn(5, 4)
    other.frozen.load_state_dict(module.frozen.state_dict())
    found = pzobo.Functional(module)(pzobo.Functional(other).weights(), t, scale=2.0)
    torch.testing.assert_close(found, other(t, scale=2.0))
    y = pzobo.Functional(module).weights(requires_grad=True)
    pzobo.Functional(module)(y, t).square().sum().backward()
    module.norm.reset_running_stats()
    module(t).square().sum().backward()
    torch.testing.assert_close(y["a.weight"].grad, module.a.weight.grad)


def test_the_trained_weights_go_back() -> None:
    torch.manual_seed(0)
    module, t, labels = Tied(), torch.randn(20, 4), torch.randint(3, (20,))
    net = pzobo.Functional(module)

    def inner_loss(x: torch.Tensor, y: dict[str, torch.Tensor], batch: None) -> torch.Tensor:
        return nn.functional.cross_entropy(net(y, t), labels) + x.exp() * y["a.weight"].square().sum()

    argmin = pzobo.Argmin(inner_loss, solver=pzobo.HeavyBall(0.3, 0.5, 30), jacobian=pzobo.Direct())
    y = argmin(torch.tensor(-4.0), net.weights())
    before = float(nn.functional.cross_entropy(module(t), labels))
    net.put_back(y)
    assert float(nn.functional.cross_entropy(module(t), labels)) < before - 0.1
    assert module.b.weight is module.a.weight
    assert torch.equal(module.a.weight, y["a.weight"])


def test_what_does_not_fit_is_refused_and_nothing_is_written() -> None:
    module = Tied()
    net = pzobo.Functional(module)
    before = module.a.bias.clone()
    for wrong in (
        {name: t for name, t in net.weights().items() if name != "norm.bias"},
        {**net.weights(), "c": torch.ones(1)},
        {**net.weights(), "a.bias": torch.ones(4), "norm.bias": torch.ones(5)},
        {**net.weights(), "a.bias": torch.ones(4, dtype=torch.float64)},
    ):
        with pytest.raises(StructureError, match="put_back got"):
            net.put_back(wrong)
        assert torch.equal(module.a.bias, before)
    with pytest.raises(StructureError, match=r"Tied has no parameter or buffer 'a\.wieght'"):
        net({"a.wieght": module.a.weight}, torch.ones(2, 4))
    with pytest.raises(StructureError, match="call the lazy module once"):
        pzobo.Functional(nn.LazyLinear(3))
    with pytest.raises(StructureError, match="takes an nn"):
        pzobo.Functional(torch.ones(2))  # type: ignore[arg-type]
