"""Are buffers of modules as they were, whatever a piece of code does to them?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import StructureError
from pzobo.inner import compiled
from pzobo.tensors.modules import calls, conditions
from pzobo.tensors.replay import watched
from tests.helpers import ZERO, leaf, normal

JACOBIANS = {
    "PZOBO at x": pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), at="x"),
    "PZOBO at z": pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), at="z"),
    "ForwardMode": pzobo.ForwardMode(3, pzobo.Orthogonal(seed=0), at="z"),
    "Unrolled": pzobo.Unrolled(checkpoint=True),
}
each = pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)


class Mean(nn.Module):
    """A running mean of numbers that is kept in one of several ways; the answer depends on it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.part = way, nn.Module()
        zero = torch.zeros(3, dtype=torch.float64)
        if way != "made":
            (self.part if way.startswith("part") else self).register_buffer("mean", zero)

    def forward(self, x: Tensor, number: float = 1.0) -> Tensor:
        new = torch.full((3,), number, dtype=torch.float64)
        if self.way == "written":
            self.mean.mul_(0.5).add_(new)
        elif self.way == "replaced":
            self.mean = 0.5 * self.mean + new
        elif self.way == "part written":
            self.part.mean.mul_(0.5).add_(new)
        elif self.way == "part replaced":
            self.part.mean = 0.5 * self.part.mean + new
        elif "mean" not in self._buffers:
            self.register_buffer("mean", new)
        # A copy: autograd saves it, and refuses a graph whose saved tensors are written into.
        return x.sin() * (self.part.mean if self.way.startswith("part") else self.mean).clone()


WAYS = ("written", "replaced", "part written", "part replaced", "made")


def fitted(z: Tensor, y: Tensor, batch: Any) -> Tensor:
    return 0.5 * (y - z).square().sum() + 0.05 * y.pow(4).sum()


@each
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("way", WAYS)
def test_every_path_sees_the_buffers_of_the_base_path(
    way: str, compile: bool, jacobian: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls move a buffer twice, and each answer has the derivative at the buffers of its own call."""
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graph.forward)
    net, x = Mean(way), leaf(3)
    argmin = pzobo.Argmin(
        fitted,
        solver=pzobo.GD(0.2, 10),
        jacobian=jacobian,
        prepare=lambda x, batch: net(x, batch),
        compile=compile,
    )
    answers, expected, mean = [], [], torch.zeros(3, dtype=torch.float64)
    for number in (1.0, 3.0):
        answers.append(argmin(x, ZERO, number))
        if way != "made":
            mean = 0.5 * mean + number
        elif not expected:
            mean = mean + number
        z = (x.sin() * mean).detach().requires_grad_()
        y = ZERO
        for _ in range(10):
            y = y - 0.2 * (y - z + 0.2 * y.pow(3))
        expected.append(torch.autograd.grad(y.sum(), z)[0] * x.detach().cos() * mean)
        torch.testing.assert_close(answers[-1].detach(), y.detach())
    for answer, gradient in zip(answers, expected, strict=True):
        tolerance = 1e-3 if isinstance(jacobian, pzobo.PZOBO) else 1e-9
        torch.testing.assert_close(torch.autograd.grad(answer.sum(), x)[0], gradient, rtol=tolerance, atol=1e-5)
    assert argmin.last.inner_loss == pytest.approx(float(fitted(z, answers[-1], None).detach()))
    (found,) = net.buffers()
    assert torch.equal(found, mean), "no trace of the other paths, nor of statistics"


@pytest.mark.parametrize("where", ["loss", "prepare", "smooth"])
def test_spectral_normalisation_in_training(where: str) -> None:
    """Each evaluation goes on with the power iteration. A path that began with the buffers that the base path left
    would differ from it by more than its x, and the quotient by that over mu."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3).double())
    for buffer in layer.buffers():  # far from where the power iteration ends
        buffer.copy_(nn.functional.normalize(normal(3, seed=7), dim=0))
    fresh = copy.deepcopy(layer)

    def loss(z: Tensor, y: Tensor, batch: Any) -> Tensor:
        return fitted(layer(z) if where == "loss" else z, y, batch)

    x, sampler = leaf(3), pzobo.Orthogonal(seed=0)
    argmin = pzobo.Argmin(
        loss,
        solver=pzobo.GD(0.2, 3),
        jacobian=pzobo.PZOBO(1e-6, 3, sampler, at="x"),
        prepare=(lambda x, batch: layer(x)) if where == "prepare" else None,
    )
    answer = argmin(x, ZERO) if where != "smooth" else pzobo.smooth(layer, x, mu=1e-6, directions=3, sampler=sampler)
    y, other = ZERO, x.detach().clone().requires_grad_()
    z = fresh(other) if where != "loss" else other
    for _ in range(3):
        y = y - 0.2 * (y - (fresh(z) if where == "loss" else z) + 0.2 * y.pow(3))
    expected = torch.autograd.grad((z if where == "smooth" else y).sum(), other)[0]
    torch.testing.assert_close(torch.autograd.grad(answer.sum(), x)[0], expected, rtol=1e-4, atol=1e-5)
    for found, wanted in zip(layer.buffers(), fresh.buffers(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_buffers_that_functional_call_puts_in_are_not_left_behind() -> None:
    """Neither what it swaps in for a moment, nor what replaces that."""
    for way in ("written", "replaced"):
        net = Mean(way)
        own, other = net.mean, torch.ones(3, dtype=torch.float64)
        with watched():
            torch.func.functional_call(net, {"mean": other}, (ZERO,))
        assert net.mean is own
        assert torch.equal(own, torch.zeros(3, dtype=torch.float64))
        assert torch.equal(other, torch.ones(3, dtype=torch.float64))


def test_a_graph_does_not_notice() -> None:
    norm, rows = nn.BatchNorm1d(3).double().eval(), normal(8, 3).requires_grad_()
    answer = norm(rows).sum()
    with watched():
        norm.train()(normal(8, 3, seed=1))
    answer.backward()
    assert rows.grad is not None


@pytest.mark.parametrize("compile", [False, True])
def test_a_lazy_module_is_told_of(compile: bool) -> None:
    """What its buffers were before they had a size cannot be kept."""
    net: Callable[..., Tensor] = nn.LazyBatchNorm1d()
    argmin = pzobo.Argmin(
        lambda x, y, batch: (net(batch) @ y.float() - x.sum()).square().mean(),
        solver=pzobo.GD(0.1, 2),
        jacobian=pzobo.Unrolled(),
        compile=compile,
    )
    with pytest.raises(StructureError, match=r"LazyBatchNorm1d has a buffer without a size.*Call it once"):
        argmin(leaf(3), ZERO, torch.ones(4, 3))


def test_what_a_piece_of_code_calls() -> None:
    norm, silent = nn.BatchNorm1d(3), nn.Linear(3, 3)
    net = nn.Sequential(silent, norm)
    with calls() as found:
        net(torch.ones(4, 3))
    assert set(found.modules) == {net, silent, norm}
    assert found.writers == [norm]
    before = conditions(found.modules)
    assert conditions(found.modules) == before
    with watched():
        assert conditions(found.modules) == before, "our own hooks do not count"
    handle = silent.register_forward_hook(lambda *_: None)
    assert conditions(found.modules) != before
    handle.remove()
    assert conditions(found.modules) == before
    norm.eval()
    assert conditions(found.modules) != before
