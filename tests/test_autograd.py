"""Does the answer of an argmin behave as PyTorch users expect of an autograd value?"""

from __future__ import annotations

import copy
import gc
import pickle
import re
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pzobo
from pzobo.errors import RequirementError
from tests.helpers import LR, STEPS, Counted, attempt, bowl, descend, leaf, normal, relative_error

JACOBIANS = {
    "pzobo": pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0)),
    "pzobo, vmap": pzobo.PZOBO(1e-4, 9, pzobo.Orthogonal(seed=0)),
    "forward": pzobo.ForwardMode(1, pzobo.Gaussian(seed=0)),
    "unrolled": pzobo.Unrolled(),
    "unrolled, difference": pzobo.Unrolled(products="difference"),
    "implicit": pzobo.Implicit(pzobo.CG(5)),
    "implicit, difference": pzobo.Implicit(pzobo.CG(5), products="difference"),
    "nudged": pzobo.Nudged(1e-3),
}
EXACT = [pzobo.Unrolled(), pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), antithetic=True)]
each = pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
exact = pytest.mark.parametrize("jacobian", EXACT, ids=["unrolled", "pzobo"])


def make(jacobian: Any, loss: Any = bowl, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian, **options)


def truth(x: Tensor, y0: Tensor, v: Tensor | None = None) -> Tensor:
    y = descend(lambda y: bowl(x, y), y0)
    return torch.autograd.grad(y, x, torch.ones_like(y) if v is None else v)[0]


ZERO = torch.zeros(3, dtype=torch.float64)


# The graph


@each
def test_a_retained_graph_gives_the_same_gradient_again(jacobian: Any) -> None:
    x = leaf(3)
    loss = make(jacobian)(x, ZERO).square().sum() + x.square().sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    assert torch.equal(x.grad, 2 * first)


@each
def test_a_freed_graph_raises(jacobian: Any) -> None:
    x = leaf(3)
    loss = make(jacobian)(x, ZERO).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_second_derivatives_are_refused_not_silently_wrong() -> None:
    x = leaf(3)
    y = make(pzobo.Unrolled())(x, ZERO)
    gradient = torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]
    with pytest.raises(RequirementError, match="cannot be differentiated again"):
        gradient.sum().backward()
    gradient = torch.autograd.grad((make(pzobo.Unrolled())(x, ZERO).square() + x**3).sum(), x, create_graph=True)[0]
    with pytest.raises(RequirementError, match="cannot be differentiated again"):
        torch.autograd.grad(gradient.sum(), x)


def test_gradients_accumulate() -> None:
    x, argmin = leaf(3), make(pzobo.Unrolled())
    argmin(x, ZERO).sum().backward()
    argmin(x, ZERO).sum().backward()
    torch.testing.assert_close(x.grad, 2 * truth(x, ZERO))


@exact
def test_grad_backward_and_gradcheck_agree(jacobian: Any) -> None:
    x, argmin = leaf(3), make(jacobian)
    found = torch.autograd.grad(argmin(x, ZERO).sum(), x)[0]
    assert x.grad is None
    argmin(x, ZERO).sum().backward()
    torch.testing.assert_close(x.grad, found, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found, truth(x, ZERO), rtol=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(lambda x: argmin(x, ZERO), (x,), atol=1e-6, nondet_tol=1e-6)


@exact
def test_x_may_be_a_result_itself(jacobian: Any) -> None:
    w = leaf(3)
    make(jacobian)(w.exp() * 0.5, ZERO).sum().backward()
    other = w.detach().clone().requires_grad_()
    descend(lambda y: bowl(other.exp() * 0.5, y), ZERO).sum().backward()
    torch.testing.assert_close(w.grad, other.grad, rtol=1e-7, atol=1e-8)


@exact
def test_one_answer_in_two_losses(jacobian: Any) -> None:
    x, v, w = leaf(3), normal(3, seed=1), normal(3, seed=2)
    y = make(jacobian)(x, ZERO)
    (y @ v).backward(retain_graph=True)
    (y @ w).backward()
    torch.testing.assert_close(x.grad, truth(x, ZERO, v + w), rtol=1e-7, atol=1e-8)


# Changes in place

IN_PLACE = r"inplace|in place"


@each
def test_x_changed_in_place_before_backward_raises(jacobian: Any) -> None:
    x = leaf(3)
    loss = make(jacobian)(x, ZERO).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        loss.backward()


def test_x_changed_in_place_raises_at_z_too() -> None:
    x = leaf(3)
    argmin = make(pzobo.PZOBO(1e-4, at="z"), prepare=lambda x, batch: 2 * x)
    loss = argmin(x, ZERO).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        loss.backward()


def gradient_or_refusal(loss: Tensor, x: Tensor) -> Tensor | None:
    found, message = attempt(lambda: torch.autograd.grad(loss, x)[0], RuntimeError)
    assert found is not None or re.search(IN_PLACE, message)
    return found


def weighted(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return bowl(x, y) + (batch * y).sum()


@each
@pytest.mark.parametrize("what", ["y0", "y", "batch", "constant"])
def test_other_changes_in_place_are_refused_or_do_no_harm(jacobian: Any, what: str) -> None:
    """A warm start `y0.copy_(y)`, a clamp of y, a batch buffer that is filled again, a constant of the inner loss."""

    def loss(x: dict[str, Tensor], y: Tensor, batch: Tensor) -> Tensor:
        return bowl(x["x"] + x["constant"], y) + (batch * y).sum()

    def result(change: bool) -> Tensor | None:
        x = {"x": leaf(3), "constant": torch.ones(3, dtype=torch.float64)}
        parts = {"y0": normal(3, seed=1), "batch": normal(3, seed=2), **x}
        argmin = make(copy.deepcopy(jacobian), loss)
        parts["y"] = argmin(x, parts["y0"], parts["batch"])
        outer = (parts["y"] * normal(3, seed=4)).sum()
        if change:
            with torch.no_grad():
                parts[what].add_(0.5)
        return gradient_or_refusal(outer, x["x"])

    changed, expected = result(True), result(False)
    if changed is not None:
        assert torch.equal(changed, expected)


@exact
def test_y_changed_in_place_by_autograds_own_operations(jacobian: Any) -> None:
    x = leaf(3)
    y = make(jacobian)(x, ZERO)
    y.mul_(3)
    found = gradient_or_refusal(y.sum(), x)
    if found is not None:
        torch.testing.assert_close(found, 3 * truth(x, ZERO), rtol=1e-7, atol=1e-7)


# When only the base path runs


@each
@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "constant x"])
def test_without_gradients_only_the_base_path_runs(jacobian: Any, how: str) -> None:
    loss = Counted(bowl)
    argmin, x = make(jacobian, loss), leaf(3)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "constant x": torch.enable_grad}[how]
    expected = descend(lambda y: bowl(x, y), ZERO).detach()
    for looks in (1, 0):  # the first call looks at the problem once
        loss.calls = 0
        with context():
            y = argmin(x.detach() if how == "constant x" else x, ZERO)
        assert loss.calls == STEPS + looks
        assert not y.requires_grad
        torch.testing.assert_close(y.clone(), expected)


def test_inputs_made_in_inference_mode() -> None:
    argmin = make(pzobo.PZOBO(), weighted)
    with torch.inference_mode():
        x, y0, batch = normal(3), normal(3, seed=1), normal(3, seed=2)
        y = argmin(x, y0, batch)
        stepwise = argmin(x, y0, batches=[batch] * STEPS)
    expected = descend(lambda y: weighted(normal(3), y, normal(3, seed=2)), normal(3, seed=1)).detach()
    torch.testing.assert_close(y.clone(), expected)
    torch.testing.assert_close(stepwise.clone(), expected)


@pytest.mark.parametrize(
    ("jacobian", "calls"), [(pzobo.PZOBO(1e-4, 3), 3 * STEPS), (pzobo.PZOBO(1e-4, 2, antithetic=True), 4 * STEPS)]
)
def test_perturbed_paths_run_in_the_backward_pass_and_only_there(jacobian: Any, calls: int) -> None:
    loss = Counted(bowl)
    argmin, x = make(jacobian, loss), leaf(3)
    y = argmin(x, ZERO)
    assert loss.calls == STEPS + 1
    loss.calls = 0
    y.sum().backward()
    assert loss.calls == calls


@pytest.mark.parametrize(("at", "backward"), [("x", 3), ("z", 0)])
def test_prepare_runs_once_a_path(at: Any, backward: int) -> None:
    prepare = Counted(lambda x, batch: x.sin())
    argmin, x = make(pzobo.PZOBO(1e-4, 3, at=at), prepare=prepare), leaf(3)
    argmin(x, ZERO)
    prepare.calls = 0
    y = argmin(x, ZERO)
    assert prepare.calls == 1
    y.sum().backward()
    assert prepare.calls == 1 + backward


def test_statistics_cost_nothing_until_asked() -> None:
    loss = Counted(bowl)
    argmin, x = make(pzobo.Unrolled(), loss), leaf(3)
    y = argmin(x, ZERO)
    before = loss.calls
    assert before == STEPS + 1
    assert argmin.last.loss == pytest.approx(float(bowl(x, y)))
    slope = torch.autograd.grad(bowl(x.detach(), w := y.detach().requires_grad_()), w)[0]
    assert argmin.last.gradient_norm == pytest.approx(float(slope.norm()))
    assert argmin.last.finite
    assert loss.calls > before


# Which variables get what


@each
def test_y0_gets_no_gradient(jacobian: Any) -> None:
    x, y0 = leaf(3), normal(3, seed=1).requires_grad_()
    y = make(jacobian)(x, y0)
    found = torch.autograd.grad(y.sum(), y0, allow_unused=True, materialize_grads=True, retain_graph=True)[0]
    assert torch.equal(found, torch.zeros_like(y0))
    y.sum().backward()
    assert y0.grad is None


@each
@pytest.mark.parametrize("prepared", [False, True])
def test_variables_that_the_inner_problem_does_not_use_get_zero(jacobian: Any, prepared: bool) -> None:
    x = {"used": leaf(3), "unused": leaf(2, seed=1), "also": leaf(seed=2)}
    if prepared:
        argmin = make(jacobian, prepare=lambda x, batch: x["used"])
    else:
        argmin = make(jacobian, lambda x, y, batch: bowl(x["used"], y))
    argmin(x, ZERO).sum().backward()
    assert torch.equal(x["unused"].grad, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(x["also"].grad, torch.zeros((), dtype=torch.float64))
    x["unused"].grad.add_(1)  # and it is memory of its own
    assert torch.equal(x["unused"].grad, torch.ones(2, dtype=torch.float64))
    assert x["used"].grad.abs().sum() > 0


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


# Precision


def test_autocast_around_the_forward_pass_alone() -> None:
    """Perturbed paths run in the backward pass, outside of autocast, and still under the autocast of the forward."""
    A, x0 = normal(8, 6, dtype=torch.float32), normal(6, dtype=torch.float32)
    kinds = []

    def loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        product = batch @ (x * y).unsqueeze(1)
        kinds.append(product.dtype)
        return (product.float() - 1).square().mean() + 0.1 * y.square().sum()

    def gradient(autocast: bool, jacobian: Any) -> Tensor:
        x = x0.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = make(jacobian, loss)(x, torch.zeros(6), A)
        assert y.dtype == torch.float32
        y.sum().backward()
        assert x.grad.dtype == torch.float32
        return x.grad

    for jacobian in (
        lambda: pzobo.PZOBO(0.3, 6, pzobo.Orthogonal(seed=0), antithetic=True),
        lambda: pzobo.PZOBO(0.3, 12, pzobo.Orthogonal(seed=0), antithetic=True, batching="vmap"),
        pzobo.Unrolled,
    ):
        kinds.clear()
        mixed = gradient(True, jacobian())
        assert set(kinds) == {torch.bfloat16}
        assert relative_error(mixed, gradient(False, jacobian())) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_path_differences_of_half_precision_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    """y^1 = x exactly, so all the rounding there is, is in the estimate: <delta, v> has 5000 terms."""
    p, mu = 5000, 0.25
    x0 = normal(p, dtype=torch.float32).to(dtype)
    v = normal(p, seed=1, dtype=torch.float32).to(dtype)
    sampler = pzobo.Gaussian(seed=3)
    x = x0.clone().requires_grad_()
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - x).square().sum(dtype=torch.float32),
        solver=pzobo.GD(1.0, 1),
        jacobian=pzobo.PZOBO(mu, 1, sampler, shrink=False),
    )
    y = argmin(x, torch.zeros(p, dtype=dtype))
    assert y.dtype == dtype
    assert torch.equal(y.detach(), x0)
    found = torch.autograd.grad(y, x, v)[0]
    assert found.dtype == dtype
    other = pzobo.Gaussian(seed=3)
    u = other.draw(other.key(), 0, 1, pzobo.directions.Space.of([x0]))
    assert u.dtype == torch.float32
    delta = ((x0 + mu * u).to(dtype).float() - x0.float()) / mu
    expected = torch.dot(delta, v.float()) * u
    assert relative_error(found.float(), expected) < torch.finfo(dtype).eps
    exact = torch.dot(u, v.float()) * u
    assert relative_error(found.float(), exact) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.PZOBO(0.5, 6, pzobo.Orthogonal(seed=0), antithetic=True),
        pzobo.Unrolled(),
        pzobo.Unrolled(products="difference"),
        pzobo.Implicit(pzobo.CG(6, tol=1e-2)),
        pzobo.Implicit(pzobo.CG(6, tol=1e-2), products="difference"),
        pzobo.Nudged(0.5, 30),
    ],
    ids=["pzobo", "unrolled", "unrolled, difference", "implicit", "implicit, difference", "nudged"],
)
def test_half_precision_is_near_a_float32_run(jacobian: Any, dtype: torch.dtype) -> None:
    x0, v = normal(6, dtype=dtype), normal(6, seed=1, dtype=dtype)

    def gradient(dtype: torch.dtype) -> Tensor:
        x = x0.to(dtype).requires_grad_()
        argmin = pzobo.Argmin(
            lambda x, y, batch: (y - x).square().sum() + 0.5 * y.square().sum(),
            solver=pzobo.GD(0.25, 20),
            jacobian=jacobian,
        )
        y = argmin(x, torch.zeros(6, dtype=dtype))
        return torch.autograd.grad(y, x, v.to(dtype))[0].float()

    reference = gradient(torch.float32)
    torch.testing.assert_close(reference, v.float() * 2 / 3, rtol=1e-3, atol=1e-3)
    assert relative_error(gradient(dtype), reference) < 0.05


def test_tensors_of_several_precisions_at_once() -> None:
    x = {"a": leaf(3), "b": leaf(3, seed=1, dtype=torch.float32), "c": leaf(3, seed=2, dtype=torch.bfloat16)}
    y0 = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float32)]

    def loss(x: Any, y: Any, batch: None) -> Tensor:
        return 0.5 * (y[0] - x["a"]).square().sum() + 0.5 * (y[1] - x["b"] - x["c"]).square().sum()

    argmin = pzobo.Argmin(loss, solver=pzobo.GD(1.0, 1), jacobian=pzobo.PZOBO(0.5, 9, pzobo.Orthogonal(seed=0)))
    y = argmin(x, y0)
    (y[0].sum() + y[1].sum()).backward()
    for name, t in x.items():
        assert t.grad.dtype == t.dtype
        torch.testing.assert_close(t.grad.double(), torch.ones(3, dtype=torch.float64), rtol=0.02, atol=0.02, msg=name)


# The object itself


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_continue_alike(used: bool, way: str) -> None:
    argmin, x = make(pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0))), leaf(3)
    if used:
        argmin(x, ZERO).sum().backward()
    other = copy.deepcopy(argmin) if way == "deepcopy" else pickle.loads(pickle.dumps(argmin))
    for _ in range(2):
        mine, its = (torch.autograd.grad(a(x, ZERO).sum(), x)[0] for a in (argmin, other))
        assert torch.equal(mine, its)


def tensors() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@each
def test_many_calls_keep_nothing(jacobian: Any) -> None:
    argmin, x = make(jacobian), leaf(3)

    def call(times: int) -> int:
        for _ in range(times):
            argmin(x, ZERO).sum().backward()
        gc.collect()
        return tensors()

    few = call(2)
    assert call(10) <= few


def test_two_hundred_calls_without_backward_keep_nothing() -> None:
    argmin, x = make(pzobo.Unrolled()), leaf(3)
    argmin(x, ZERO)
    gc.collect()
    few = tensors()
    for _ in range(200):
        argmin(x, ZERO)
    gc.collect()
    assert tensors() <= few


def test_an_answer_frees_its_graph_without_the_garbage_collector() -> None:
    argmin, x = make(pzobo.Unrolled()), leaf(3)
    argmin(x, ZERO).sum().backward()
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for _ in range(20):
            argmin(x, ZERO).sum().backward()
        after = tensors()
    finally:
        gc.enable()
    assert after <= before


@each
def test_backward_in_another_thread(jacobian: Any) -> None:
    x, gradients = leaf(3), []
    y = make(jacobian)(x, ZERO)

    def work() -> None:
        gradients.append(torch.autograd.grad(y.sum(), x, retain_graph=True)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(gradients[0], torch.autograd.grad(y.sum(), x)[0])
