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
from torch import Tensor

import pzobo
from pzobo.errors import RequirementError
from tests.helpers import (
    STEPS,
    ZERO,
    Counted,
    attempt,
    bowl,
    descend,
    each,
    exact,
    leaf,
    make,
    normal,
    truth,
)

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
    argmin, x = make(jacobian, loss, audit=False), leaf(3)
    y = argmin(x, ZERO)
    assert loss.calls == STEPS + 1
    loss.calls = 0
    y.sum().backward()
    assert loss.calls == calls


@pytest.mark.parametrize(("at", "backward"), [("x", 3), ("z", 0)])
def test_prepare_runs_once_a_path(at: Any, backward: int) -> None:
    prepare = Counted(lambda x, batch: x.sin())
    argmin, x = make(pzobo.PZOBO(1e-4, 3, at=at), prepare=prepare, audit=False), leaf(3)
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
    assert argmin.last.inner_loss == pytest.approx(float(bowl(x, y)))
    slope = torch.autograd.grad(bowl(x.detach(), w := y.detach().requires_grad_()), w)[0]
    assert argmin.last.gradient_norm == pytest.approx(float(slope.norm()))
    assert argmin.last.finite
    assert loss.calls > before


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
