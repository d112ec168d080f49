"""Do the library's own solvers pass the checks that it offers for others, and are wrong ones found?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pzobo
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves
from pzobo.testing import check_solver

SOLVERS = [
    pzobo.GD(0.1, 1),
    pzobo.GD(0.1, 1, weight_decay=0.2),
    pzobo.HeavyBall(0.1, 0.7, 1),
    pzobo.HeavyBall(0.1, 0.7, 1, weight_decay=0.2, nesterov=True),
    pzobo.Adam(0.1, 1, eps=1e-4, weight_decay=0.2),
    pzobo.AdamW(0.1, 1, eps=1e-4, weight_decay=0.2),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_solvers_of_the_library_pass(solver: Any) -> None:
    seen = check_solver(solver)
    assert len(seen) == 4
    assert "lr" in seen[-1]


@dataclass(frozen=True)
class Trust(pzobo.Iterative):
    """Gradient descent whose steps are no longer than a radius."""

    lr: float
    radius: float
    steps: int
    numbers = ("lr", "radius")
    linear = False

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        length = self.lr * trees.norm(gradient)
        return trees.add(y, gradient, -self.lr * torch.clamp(self.radius / length, max=1.0)), state


@dataclass(frozen=True)
class Lion(pzobo.Iterative):
    """Lion (Chen et al., 2023): steps of the sign of an average."""

    lr: float
    steps: int
    keep: float = 0.9
    numbers = ("lr", "keep")
    linear = False

    def init(self, y: Leaves) -> Leaves:
        return trees.zeros(y)

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        average = trees.add(trees.mul(state, self.keep), gradient, 1 - self.keep)
        return trees.add(y, [t.sign() for t in average], -self.lr), average


def test_solvers_of_ones_own_pass() -> None:
    assert "radius" in check_solver(Trust(0.3, 0.2, 1))[-1]
    assert "keep" in check_solver(Lion(0.1, 1))[-1]


def test_the_sign_of_lion_has_no_slope_and_the_audit_says_so() -> None:
    """What the documentation says of it: an exact derivative of zero, where a difference of some length sees more."""
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    y0 = torch.linspace(-1, 1, 40, dtype=torch.float64)
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - x).square().sum(), solver=Lion(0.05, 40), jacobian=pzobo.Unrolled()
    )
    with pytest.warns(pzobo.errors.AuditWarning, match="got exactly zero from Unrolled"):
        assert not torch.autograd.grad(argmin(x, y0).mean(), x)[0].any()
    argmin.jacobian = pzobo.PZOBO(mu=0.3, shrink=False, antithetic=True, sampler=pzobo.Rademacher(seed=0))
    assert float(torch.autograd.grad(argmin(x, y0).mean(), x)[0]) == pytest.approx(1.0, abs=0.2)


class Writes(pzobo.GD):
    numbers = ()

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        y[0].sub_(gradient[0], alpha=0.1)
        return y, state


class WrongPull(pzobo.HeavyBall):
    numbers = ()

    def pull(self, gradient: Any, y: Any, state: Any, y_bar: Any, state_bar: Any) -> Any:
        a, b, c = super().pull(gradient, y, state, y_bar, state_bar)
        return a, b, trees.mul(c, 2.0)


class NotLinear(Trust):
    numbers = ()
    linear = True


class Affine(pzobo.GD):
    numbers = ()
    linear = True

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return tuple(t + 0.1 for t in super().update(gradient, y, state)[0]), state


class Random(pzobo.GD):
    numbers = ()

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return tuple(t + torch.randn_like(t) for t in y), state


class Forgets(pzobo.HeavyBall):
    """Detaches its momentum, so that autograd does not see it."""

    numbers = ("lr", "momentum")
    pull = pzobo.HeavyBall.pull

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return super().update(gradient, y, tuple(t.detach() for t in state))


class Shapes(pzobo.GD):
    numbers = ()

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return tuple(t.float() for t in y), state


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (Writes(0.1, 1), "writes into its arguments"),
        (WrongPull(0.1, 0.7, 1), "pull is not the transposed derivative"),
        (NotLinear(0.3, 0.2, 1), "is not linear"),
        (Affine(0.3, 1), "moves a y of zeros"),
        (Random(0.1, 1), "is it random"),
        (Forgets(0.1, 0.7, 1), "pull is not the transposed derivative"),
        (Shapes(0.1, 1), "shapes and dtypes"),
        (pzobo.GD(lambda x: x, 1), "give constants"),
        (pzobo.ClosedForm(lambda z, batch: z), "is no Iterative"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_is_wrong_is_said(solver: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_solver(solver)


class Clipped(pzobo.GD):
    """Neither linear, as GD is, nor with GD's transpose; it says neither."""

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return trees.add(y, [t / (1 + t.square()) for t in gradient], -self.lr), state


@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
def test_what_is_known_of_an_update_is_not_inherited_by_another_one(products: Any) -> None:
    x = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    y0 = torch.zeros(2, dtype=torch.float64)

    def inner_loss(x: Any, y: Any, batch: None) -> Any:
        return (y - x).square().sum() + (x * y**3).sum()

    y = y0.clone().requires_grad_()
    for _ in range(4):
        (slope,) = torch.autograd.grad(inner_loss(x, y, None), y, create_graph=True)
        y = y - 0.1 * slope / (1 + slope.square())
    (expected,) = torch.autograd.grad(y.sum(), x)
    argmin = pzobo.Argmin(inner_loss, solver=Clipped(0.1, 4), jacobian=pzobo.Unrolled(products=products))
    (found,) = torch.autograd.grad(argmin(x, y0).sum(), x)
    assert torch.allclose(found, expected, rtol=1e-6)
