"""Do all products give the same hypergradient: on networks that people have, and with random numbers in g?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import pzobo
from pzobo.errors import AuditWarning, RequirementError
from tests.helpers import normal, relative_error

SOLVERS: dict[str, Any] = {
    "GD": pzobo.GD(0.1, 4),
    "HeavyBall": pzobo.HeavyBall(0.05, 0.8, 4),
    "Adam": pzobo.Adam(0.01, 4, eps=1e-2),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 4, 8)
        with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no second derivative
            return self.out(self.norm(x + self.mix(x, x, x, need_weights=False)[0]).mean(1))


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return {
        "tanh": lambda: nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 3)),
        "BatchNorm, ReLU": lambda: nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        "convolution": lambda: nn.Sequential(
            nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 3)
        ),
        "attention": Attention,
        "dropout": lambda: nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 3)),
    }[kind]().double()


class Weighted:
    """A network whose training examples have weights."""

    def __init__(self, kind: str) -> None:
        self.net = network(kind)
        self.y0 = {name: p.detach() for name, p in self.net.named_parameters()}
        self.rows, self.labels = normal(12, 32, seed=1), torch.arange(12) % 3
        self.val, self.val_labels = normal(9, 32, seed=2), torch.arange(9) % 3

    def inner_loss(self, x: Tensor, y: Any, batch: Any) -> Tensor:
        losses = F.cross_entropy(functional_call(self.net, y, (self.rows,)), self.labels, reduction="none")
        return (x.sigmoid() * losses).mean() + 0.01 * sum(p.square().sum() for p in y.values())

    def hypergradient(self, solver: Any, jacobian: Any, **options: Any) -> Tensor:
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).requires_grad_()
        argmin = pzobo.Argmin(self.inner_loss, solver=solver, jacobian=jacobian, **options)
        torch.manual_seed(5)
        y = argmin(x, self.y0)
        outer = torch.stack([p.square().sum() + p.sum() for p in y.values()]).sum()
        outer.backward()
        assert x.grad is not None
        return x.grad


@pytest.mark.parametrize("kind", ["tanh", "BatchNorm, ReLU", "convolution", "attention", "dropout"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_unrolled_by_all_products(solver: str, kind: str) -> None:
    problem = Weighted(kind)
    exact = problem.hypergradient(SOLVERS[solver], pzobo.Unrolled())
    for jacobian, bound in (
        (pzobo.Unrolled(checkpoint=True), 1e-12),
        (pzobo.Unrolled(products="forward"), 1e-10),
        (pzobo.Unrolled(products="forward", last=2), None),
        (pzobo.Unrolled(products="difference"), 1e-6),
    ):
        found = problem.hypergradient(SOLVERS[solver], jacobian)
        if bound is None:
            torch.testing.assert_close(found, problem.hypergradient(SOLVERS[solver], pzobo.Unrolled(last=2)))
        else:
            assert relative_error(found, exact) < bound


@pytest.mark.parametrize("kind", ["tanh", "attention", "dropout"])
def test_implicit_by_all_products(kind: str) -> None:
    """The same linear system, whatever makes its products; with dropout, that of one mask."""
    problem = Weighted(kind)
    for inverse in (pzobo.Neumann(0.1, 5), pzobo.FixedPoint(4), pzobo.CG(5, damping=1.0)):
        exact = problem.hypergradient(SOLVERS["GD"], pzobo.Implicit(inverse))
        for products, bound in (("forward", 1e-9), ("difference", 1e-5)):
            jacobian = pzobo.Implicit(inverse, products)  # type: ignore[arg-type]
            assert relative_error(problem.hypergradient(SOLVERS["GD"], jacobian), exact) < bound


def test_nudged_draws_the_same_numbers_on_all_its_paths() -> None:
    """With other masks, the difference of its two slopes would be of the size of dropout, divided by 1e-5."""
    problem = Weighted("dropout")
    solver = pzobo.GD(0.3, 200)
    found = problem.hypergradient(solver, pzobo.Nudged(), audit=False)
    other = problem.hypergradient(solver, pzobo.Nudged(eps=1e-3), audit=False)
    assert relative_error(found, other) < 1e-2


@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(products="forward"), pzobo.Unrolled(checkpoint=True)], ids=str)
def test_random_numbers_go_on_as_if_there_were_no_backward_pass(jacobian: Any) -> None:
    problem = Weighted("dropout")
    problem.hypergradient(SOLVERS["GD"], pzobo.Unrolled())
    expected = torch.rand(3)
    problem.hypergradient(SOLVERS["GD"], jacobian)
    assert torch.equal(torch.rand(3), expected)


class NoJvp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.exp()

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return bar * y.exp()


def hypergradient(inner_loss: Callable[..., Tensor], jacobian: Any, **options: Any) -> Tensor:
    x = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(0.1, 5), jacobian=jacobian, **options)
    argmin(x, torch.ones(3, dtype=torch.float64)).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(products="forward"), pzobo.Implicit(pzobo.CG(5), "forward")])
def test_what_has_no_forward_derivative_is_refused(jacobian: Any) -> None:
    with pytest.raises(RequirementError, match=r'without a forward derivative.*products="autodiff"'):
        hypergradient(lambda x, y, batch: (x * NoJvp.apply(y)).sum() + y.square().sum(), jacobian)


def test_autodiff_takes_what_forward_does_not() -> None:
    g = lambda x, y, batch: (x * NoJvp.apply(y)).sum() + y.square().sum()  # noqa: E731
    plain = lambda x, y, batch: (x * y.exp()).sum() + y.square().sum()  # noqa: E731
    torch.testing.assert_close(hypergradient(g, pzobo.Unrolled()), hypergradient(plain, pzobo.Unrolled()))


@pytest.mark.parametrize("products", ["forward", "difference"])
@pytest.mark.parametrize("make", [lambda p: pzobo.Unrolled(products=p), lambda p: pzobo.Implicit(pzobo.CG(5), p)])
def test_a_gradient_that_is_none_is_said(make: Any, products: str) -> None:
    """Differences take d2g/dx dy for 2 y, which is y; forward mode takes d2g/dy2 for 1, which is 1 + x."""
    with pytest.warns(AuditWarning, match=r"d2g/d.* for 1\).*detach"):
        hypergradient(lambda x, y, batch: (x * y.detach() * y).sum() + 0.5 * y.square().sum(), make(products))


@pytest.mark.parametrize("solver", ["GD", "HeavyBall"])
def test_autocast_is_replayed(solver: str) -> None:
    """Backward passes outside of autocast take products of what the path computed: in bfloat16."""
    torch.manual_seed(0)
    X, t = torch.randn(40, 16), torch.randn(40)

    def run(jacobian: Any, inside: bool) -> Tensor:
        x = torch.zeros(16, requires_grad=True)
        argmin = pzobo.Argmin(
            lambda x, y, batch: ((X @ y).float() - t).square().mean() + (x.exp() * y.square()).sum(),
            solver=SOLVERS[solver],
            jacobian=jacobian,
            audit=False,
        )
        with torch.autocast("cpu", torch.bfloat16):
            loss = argmin(x, torch.full((16,), 0.3)).sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        assert x.grad is not None
        return x.grad

    for jacobian in (pzobo.Unrolled(products="forward"), pzobo.Unrolled(products="difference")):
        assert torch.equal(run(jacobian, True), run(jacobian, False))
    assert relative_error(run(pzobo.Unrolled(products="forward"), False), run(pzobo.Unrolled(), False)) < 0.02
