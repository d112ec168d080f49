"""Which variables get which gradient: unused, frozen, tied, nested ones, and those of a module?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pzobo
from tests.helpers import (
    STEPS,
    ZERO,
    bowl,
    descend,
    each,
    exact,
    leaf,
    make,
    normal,
)

# Which variables get what


def unused(jacobian: Any, prepared: bool) -> dict[str, Tensor]:
    """Outer variables of which the inner problem uses one, with their gradients."""
    x = {"used": leaf(3), "unused": leaf(2, seed=1), "also": leaf(seed=2)}
    if prepared:
        argmin = make(jacobian, prepare=lambda x, batch: x["used"])
    else:
        argmin = make(jacobian, lambda x, y, batch: bowl(x["used"], y))
    argmin(x, ZERO).sum().backward()
    return x


@each
@pytest.mark.parametrize("prepared", [False, True])
def test_variables_that_the_inner_problem_does_not_use_get_zero(jacobian: Any, prepared: bool) -> None:
    """Where a directional estimate perturbs x itself, nobody can know what a problem does not use: see below."""
    directional = isinstance(jacobian, pzobo.PZOBO | pzobo.ForwardMode)
    x = unused(jacobian, prepared or directional)
    assert torch.equal(x["unused"].grad, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(x["also"].grad, torch.zeros((), dtype=torch.float64))
    x["unused"].grad.add_(1)  # and it is memory of its own
    assert torch.equal(x["unused"].grad, torch.ones(2, dtype=torch.float64))
    assert x["used"].grad.abs().sum() > 0


def test_unused_variables_share_the_noise_of_a_directional_estimate() -> None:
    """(1/Q) sum_j <delta_j, v> u_j has entries for all of x; they vanish with all directions, or behind `prepare`."""
    options: dict[str, Any] = {"mu": 1e-5, "sampler": pzobo.Orthogonal(seed=0), "antithetic": True}
    noisy = unused(pzobo.PZOBO(directions=2, **options), prepared=False)
    assert noisy["unused"].grad.abs().min() > 0
    whole = unused(pzobo.PZOBO(directions=6, **options), prepared=False)
    torch.testing.assert_close(whole["unused"].grad, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(whole["used"].grad, unused(pzobo.Unrolled(), False)["used"].grad, rtol=1e-6, atol=1e-8)


@each
def test_no_variable_is_used_at_all(jacobian: Any) -> None:
    x = leaf(3)
    y = make(jacobian, lambda x, y, batch: (y - 1).square().sum())(x, ZERO)
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@exact
def test_frozen_parameters_are_constants_and_not_counted(jacobian: Any) -> None:
    """With 50 frozen numbers beside them, three orthogonal directions are still exact for three variables."""
    x = {"free": leaf(3), "frozen": normal(50, seed=1)}
    argmin = make(jacobian, lambda x, y, batch: bowl(x["free"] + x["frozen"].mean(), y))
    argmin(x, ZERO).sum().backward()
    free = x["free"].detach().clone().requires_grad_()
    descend(lambda y: bowl(free + x["frozen"].mean(), y), ZERO).sum().backward()
    torch.testing.assert_close(x["free"].grad, free.grad, rtol=1e-7, atol=1e-8)
    assert x["frozen"].grad is None


@exact
@pytest.mark.parametrize("at", ["auto", "x"])
def test_tied_parameters_are_one_variable(jacobian: Any, at: Any) -> None:
    if isinstance(jacobian, pzobo.PZOBO):
        jacobian = pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), antithetic=True, at=at)
    x = leaf(3)
    argmin = make(jacobian, lambda x, y, batch: bowl(x[0] * x[1]["again"].exp(), y))
    argmin([x, {"again": x}], ZERO).sum().backward()
    other = x.detach().clone().requires_grad_()
    descend(lambda y: bowl(other * other.exp(), y), ZERO).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_gradient_arrives_in_the_module(prepared: bool, tied: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    if tied:
        net[2].weight = net[0].weight
    data = normal(5, 3, seed=1)

    def features(x: dict[str, Tensor], batch: Tensor) -> Tensor:
        return torch.func.functional_call(net, x, (batch,))

    def loss(z: Any, y: Tensor, batch: Tensor) -> Tensor:
        z = z if prepared else features(z, batch)
        return (z @ y - 1).square().mean() + 0.1 * y.square().sum()

    argmin = make(pzobo.Unrolled(), loss, prepare=features if prepared else None)
    argmin(dict(net.named_parameters()), ZERO, data).sum().backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    descend(lambda y: (net(data) @ y - 1).square().mean() + 0.1 * y.square().sum(), ZERO).sum().backward()
    for ours, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad)


@exact
def test_trees_scalars_and_tensors_that_are_not_numbers(jacobian: Any) -> None:
    """x: nested, with a scalar, an index, a mask, a Python number, a string and None; batch: integers and booleans."""
    x = {
        "scale": leaf(),
        "more": [leaf(2, seed=1), (torch.tensor([2, 0, 1]), None)],
        "mask": torch.tensor([True, False, True]),
        "power": 2,
        "name": "x",
    }
    y0 = {"w": ZERO, "rest": (torch.ones((), dtype=torch.float64), [torch.zeros(1, 2, dtype=torch.float64)])}
    batch = {"index": torch.tensor([0, 2, 1, 1]), "keep": torch.tensor([True, True, False, True])}

    def loss(x: Any, y: Any, batch: Any) -> Tensor:
        w, (b, (c,)) = y["w"], y["rest"]
        order, _ = x["more"][1]
        picked = (w[order] * x["mask"])[batch["index"]][batch["keep"]]
        return (
            (picked - x["scale"] * b).square().sum()
            + (c - x["more"][0]).pow(x["power"]).sum() * (1 + b.square())
            + 0.1 * (w.square().sum() + b.square())
        )

    directions = 3
    assert directions == sum(t.numel() for t in (x["scale"], x["more"][0]))
    y = make(jacobian, loss)(x, y0, batch)
    (y["w"].sum() + y["rest"][0] + y["rest"][1][0].sum()).backward()
    flat = [t.detach().clone().requires_grad_() for t in (x["scale"], x["more"][0])]
    other = {**x, "scale": flat[0], "more": [flat[1], x["more"][1]]}

    def packed(y: Tensor) -> Tensor:
        return loss(other, {"w": y[:3], "rest": (y[3], [y[4:].reshape(1, 2)])}, batch)

    descend(packed, torch.tensor([0.0, 0, 0, 1, 0, 0], dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(x["scale"].grad, flat[0].grad, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(x["more"][0].grad, flat[1].grad, rtol=1e-6, atol=1e-7)


shapes = st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4)


@given(x_shapes=shapes, y_shapes=shapes, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_random_trees_have_the_response_of_plain_autograd(x_shapes: Any, y_shapes: Any, seed: int) -> None:
    x = {str(i): leaf(*shape, seed=seed + i) for i, shape in enumerate(x_shapes)}
    y0 = [normal(*shape, seed=seed + 50 + i) for i, shape in enumerate(y_shapes)]
    p = sum(t.numel() for t in x.values())

    def flat(tree: Any) -> Tensor:
        return torch.cat([t.reshape(-1) for t in tree])

    A = normal(sum(t.numel() for t in y0), p, seed=seed + 99) / p

    def loss(x: Any, y: Any, batch: None = None) -> Tensor:
        return 0.5 * (flat(y) - A @ flat(x.values())).square().sum() + 0.1 * flat(y).pow(4).sum()

    exact = descend(lambda y: 0.5 * (y - A @ flat(x.values())).square().sum() + 0.1 * y.pow(4).sum(), flat(y0), lr=0.05)
    expected = torch.autograd.grad(exact.sum(), list(x.values()))
    for jacobian in (pzobo.Unrolled(), pzobo.PZOBO(1e-5, p, pzobo.Orthogonal(seed=seed), antithetic=True)):
        argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.05, STEPS), jacobian=jacobian)
        y = argmin(x, y0)
        assert isinstance(y, list)
        found = torch.autograd.grad(sum(t.sum() for t in y), list(x.values()))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_hooks_see_the_whole_gradient_once() -> None:
    x, seen = leaf(3), []
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or 2 * gradient)
    after = []
    x.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.clone()))
    y = make(pzobo.Unrolled(), prepare=lambda x, batch: x.sin())(x, ZERO)
    (y.sum() + x.sum()).backward()
    assert len(seen) == len(after) == 1
    assert torch.equal(x.grad, 2 * seen[0])
    assert torch.equal(after[0], x.grad)
    other = x.detach().clone().requires_grad_()
    (descend(lambda y: bowl(other.sin(), y), ZERO).sum() + other.sum()).backward()
    torch.testing.assert_close(seen[0], other.grad)


@each
def test_a_training_loop_with_clipping_lowers_the_loss(jacobian: Any) -> None:
    x = torch.full((3,), 0.3, dtype=torch.float64, requires_grad=True)
    argmin, y = make(jacobian), ZERO
    optimizer = torch.optim.Adam([x], 0.1)
    losses = []
    for _ in range(15):
        y = argmin(x, y.detach())
        loss = (y - 0.4).square().sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([x], 0.1)
        assert torch.isfinite(norm)
        assert x.grad.norm() <= 0.1 + 1e-9
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]


@each
def test_an_infinite_cotangent_is_passed_on(jacobian: Any) -> None:
    """What a gradient scaler counts on: overflow in the outer loss shows in x.grad, and the step is skipped."""
    x = leaf(3)
    y = make(jacobian)(x, ZERO)
    (y.sum() * torch.inf).backward()
    assert not torch.isfinite(x.grad).any()
