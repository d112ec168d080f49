"""Do networks that people have work with the Jacobians that docs/networks.md names, and are the others refused?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import pzobo
from pzobo.errors import RequirementError, SmoothingError
from tests.helpers import relative_error

STEPS, LR = 4, 0.3
FUSED = "differentiated twice.*MATH|without a forward derivative.*MATH|forward AD.*PZOBO"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, t: Tensor) -> Tensor:
        q, k, v = self.qkv(t).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.out = kind(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, t: Tensor) -> Tensor:
        return self.out(self.cells(t)[0][:, -1])


class Layers(nn.Module):
    """Two layers with something between them; `tied`, they share a weight."""

    def __init__(self, between: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.between, self.out = nn.Linear(8, 8), nn.Linear(8, 8), between, nn.Linear(8, 3)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, t: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.between(self.first(t.mean(1)))))))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))


NETWORKS = {
    "attention": Attention,
    "transformer layer": encoder,
    "RNN": lambda: Recurrent(nn.RNN),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "BatchNorm": lambda: Layers(nn.BatchNorm1d(8)),
    "BatchNorm without statistics": lambda: Layers(nn.BatchNorm1d(8, track_running_stats=False)),
    "dropout": lambda: Layers(nn.Dropout(0.3)),
    "tied weights": lambda: Layers(nn.Identity(), tied=True),
}

JACOBIANS = {
    "autodiff": pzobo.Unrolled(),
    "checkpoint": pzobo.Unrolled(checkpoint=True),
    "forward": pzobo.Unrolled(products="forward"),
    "difference": pzobo.Unrolled(products="difference"),
    "ForwardMode": pzobo.ForwardMode(4, pzobo.Orthogonal(seed=0), shrink=False),
    "PZOBO": pzobo.PZOBO(1e-4, 4, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True),
    "PZOBO, vmap": pzobo.PZOBO(1e-4, 4, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True, batching="vmap"),
}
SECOND = ("autodiff", "checkpoint", "forward", "ForwardMode")
REFUSED = {
    # An LSTM in float32 is refused too, below: torch runs it in another form there.
    "attention": dict.fromkeys(SECOND, FUSED),
    "transformer layer": dict.fromkeys(SECOND, FUSED),
    "BatchNorm": dict.fromkeys(("ForwardMode", "PZOBO, vmap"), "writes into its buffers.*track_running_stats=False"),
}


def problem(name: str, math: bool, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Tensor, Any, Any]:
    """Class weights and a weight decay as x, a network as y."""
    torch.manual_seed(0)
    net = pzobo.Functional(NETWORKS[name]().to(dtype))
    batches = [(torch.randn(20, 5, 8, dtype=dtype), torch.randint(3, (20,))) for _ in range(2)]

    def inner_loss(x: Tensor, y: dict[str, Tensor], batch: Any) -> Tensor:
        t, labels = batch
        with sdpa_kernel(SDPBackend.MATH) if math else nullcontext():
            losses = cross_entropy(net(y, t).to(dtype), labels, reduction="none")
        return (losses * x[:3].exp()[labels]).mean() + x[3].exp() * sum(w.square().sum() for w in y.values())

    def outer_loss(y: dict[str, Tensor]) -> Tensor:
        return sum((w * torch.linspace(-1, 1, w.numel(), dtype=dtype).view_as(w)).sum() for w in y.values())

    return inner_loss, outer_loss, torch.tensor([0.0, 0.1, -0.1, -4.0], dtype=dtype).requires_grad_(), net, batches[0]


def by_hand(name: str) -> Tensor:
    """Autograd through the path, with attention that is not fused."""
    inner_loss, outer_loss, x, net, batch = problem(name, math=True)
    y = net.weights(requires_grad=True)
    torch.manual_seed(1)
    for _ in range(STEPS):
        slopes = torch.autograd.grad(inner_loss(x, y, batch), list(y.values()), create_graph=True)
        y = {key: t - LR * slope for (key, t), slope in zip(y.items(), slopes, strict=True)}
    return torch.autograd.grad(outer_loss(y), x)[0]


def by_argmin(name: str, jacobian: Any, math: bool = False, **options: Any) -> Tensor:
    inner_loss, outer_loss, x, net, batch = problem(name, math)
    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian, audit="error", **options)
    torch.manual_seed(1)
    return torch.autograd.grad(outer_loss(argmin(x, net.weights(), batch)), x)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_of_networks(name: str) -> None:
    truth = by_hand(name)
    for kind, jacobian in JACOBIANS.items():
        refusal = REFUSED.get(name, {}).get(kind)
        if refusal is not None:
            with pytest.raises(RequirementError, match=refusal):
                by_argmin(name, jacobian)
            continue
        error = relative_error(by_argmin(name, jacobian), truth)
        assert error < (1e-9 if kind in SECOND else 1e-4), f"{kind}: {error:.1e}"


@pytest.mark.parametrize("name", ["attention", "transformer layer"])
def test_attention_that_is_not_fused_has_all_derivatives(name: str) -> None:
    truth = by_hand(name)
    for kind in SECOND:
        assert relative_error(by_argmin(name, JACOBIANS[kind], math=True), truth) < 1e-9, kind


def test_a_fused_attention_within_implicit() -> None:
    """Products by differences agree with exact ones in the form that is not fused."""
    exact = by_argmin("attention", pzobo.Implicit(pzobo.CG(30, damping=1.0)), math=True)
    with pytest.raises(RequirementError, match=r"differentiated twice.*MATH"):
        by_argmin("attention", pzobo.Implicit(pzobo.CG(30, damping=1.0)))
    found = by_argmin("attention", pzobo.Implicit(pzobo.CG(30, damping=1.0), products="difference"))
    assert relative_error(found, exact) < 1e-5


def test_an_lstm_in_float32_has_no_forward_derivative() -> None:
    inner_loss, outer_loss, x, net, batch = problem("LSTM", math=False, dtype=torch.float32)
    for jacobian in (pzobo.Unrolled(products="forward"), pzobo.ForwardMode()):
        argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian)
        with pytest.raises(RequirementError, match="mkldnn_rnn_layer"):
            outer_loss(argmin(x, net.weights(), batch)).backward()


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
def test_a_short_step_drowns_in_the_rounding_of_bfloat16_and_is_refused(inside: bool) -> None:
    """Also where autocast is inside of the loss, and nothing outside tells of it."""
    inner_loss, outer_loss, x, net, batch = problem("tied weights", math=False, dtype=torch.float32)

    def narrow(x: Tensor, y: Any, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return inner_loss(x, y, batch)

    argmin = pzobo.Argmin(narrow, solver=pzobo.GD(LR, STEPS), jacobian=pzobo.PZOBO(1e-4))
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        y = argmin(x, net.weights(), batch)
    with pytest.raises(SmoothingError, match="mu is too small for this precision"):
        outer_loss(y).backward()


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
def test_autocast_in_bfloat16(inside: bool) -> None:
    """All agree to the few digits that bfloat16 has; nothing is said against them. The path is the same in all."""
    inner_loss, outer_loss, x, net, batch = problem("tied weights", math=False, dtype=torch.float32)

    def autocast(wanted: bool) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=wanted)

    def narrow(x: Tensor, y: Any, batch: Any) -> Tensor:
        with autocast(inside):
            return inner_loss(x, y, batch)

    found = {}
    for kind, jacobian in JACOBIANS.items():
        mu = {"mu": 0.1} if isinstance(jacobian, pzobo.PZOBO) else {}
        jacobian = type(jacobian)(**{**vars(jacobian), **mu})
        argmin = pzobo.Argmin(narrow if inside else inner_loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian)
        with autocast(not inside):
            y = argmin(x, net.weights(), batch)
        found[kind] = torch.autograd.grad(outer_loss(y), x)[0]
    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(LR, STEPS), jacobian=pzobo.Unrolled())
    exact = torch.autograd.grad(outer_loss(argmin(x, net.weights(), batch)), x)[0]
    for kind, answer in found.items():
        assert relative_error(answer, exact) < (0.05 if "PZOBO" in kind else 0.02), kind
