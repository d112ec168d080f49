"""Is an answer of exactly zero told apart from a missing graph?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import AuditWarning
from pzobo.jacobians.unanswered import unreached
from tests.helpers import ZERO, leaf, normal

ESTIMATORS: dict[str, Any] = {
    "unrolled": pzobo.Unrolled(),
    "difference": pzobo.Unrolled(products="difference"),
    "forward": pzobo.ForwardMode(3, pzobo.Orthogonal(seed=0), at="z"),
    "implicit": pzobo.Implicit(pzobo.CG(5)),
    "nudged": pzobo.Nudged(),
    "pzobo at z": pzobo.PZOBO(1e-4, 3, pzobo.Orthogonal(seed=0), at="z"),
}
SOLVER = pzobo.GD(0.5, 30)
each_estimator = pytest.mark.parametrize("jacobian", ESTIMATORS.values(), ids=ESTIMATORS)


def distance(z: Any, y: Tensor, batch: Any = None) -> Tensor:
    return 0.5 * (y - (z if isinstance(z, Tensor) else z["a"] + z["b"])).square().sum()


def said(jacobian: Any, x: Any, loss: Any = distance, solver: Any = SOLVER, **options: Any) -> list[str]:
    """What the audit says of one backward pass."""
    argmin = pzobo.Argmin(loss, solver=solver, jacobian=jacobian, **options)
    with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as caught:
        argmin(x, ZERO.to(next(iter(x.values())).dtype if isinstance(x, dict) else x.dtype)).sum().backward()
    return [str(w.message) for w in caught if w.category is AuditWarning and "exactly zero" in str(w.message)]


def detached(x: Tensor, batch: Any) -> Tensor:
    return x.detach().sin()


def without_grad(x: Tensor, batch: Any) -> Tensor:
    with torch.no_grad():
        return x.sin()


def by_numpy(x: Tensor, batch: Any) -> Tensor:
    return torch.as_tensor(x.detach().numpy().copy()).sin()


@each_estimator
@pytest.mark.parametrize("prepare", [detached, without_grad, by_numpy], ids=lambda f: f.__name__)
def test_a_prepare_without_graph_is_told(jacobian: Any, prepare: Callable[..., Tensor]) -> None:
    (sentence,) = said(jacobian, leaf(3), prepare=prepare)
    assert "variables of shape (3,) got exactly zero" in sentence
    assert "NumPy in prepare" in sentence


@pytest.mark.parametrize("name", ["unrolled", "forward"])
@pytest.mark.parametrize("fn", [detached, without_grad], ids=lambda f: f.__name__)
def test_a_closed_form_without_graph_is_told(name: str, fn: Callable[..., Tensor]) -> None:
    x = leaf(3)
    if not said(ESTIMATORS[name], x, solver=pzobo.ClosedForm(fn)):
        assert (name, fn) == ("forward", without_grad)  # dual numbers do not mind
        torch.testing.assert_close(x.grad, x.detach().cos())


@pytest.mark.parametrize("name", ["unrolled", "difference", "implicit", "nudged"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_loss_that_detaches_x_is_told(name: str, dtype: torch.dtype) -> None:
    assert said(ESTIMATORS[name], leaf(3, dtype=dtype), lambda x, y, b: distance(x.detach(), y))


@each_estimator
def test_one_of_two_variables_is_told(jacobian: Any) -> None:
    x = {"a": leaf(3), "b": leaf(1, 3, seed=1)}
    (sentence,) = said(jacobian, x, prepare=lambda x, b: {"a": x["a"].sin(), "b": x["b"][0].detach().exp()})
    assert "shape (1, 3)" in sentence
    assert "shape (3,)" not in sentence


@each_estimator
def test_a_variable_of_the_outer_loss_alone_is_right(jacobian: Any) -> None:
    x = {"a": leaf(3), "b": leaf(3, seed=1)}
    assert not said(jacobian, x, lambda z, y, b: distance(z["a"], y))
    assert not said(jacobian, leaf(3), prepare=lambda x, b: torch.ones(3, dtype=torch.float64))
    assert not said(pzobo.Direct(), leaf(3))


@pytest.mark.parametrize("power", [2, 3])
def test_a_derivative_that_is_zero_at_this_point_is_right(power: int) -> None:
    """y* = x^power at x = 0: even powers have no central difference, odd ones one that falls with the step."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert not said(pzobo.Unrolled(), x, lambda x, y, b: distance(x.pow(power), y))


def test_an_outer_loss_without_y_is_right() -> None:
    x = leaf(3)
    argmin = pzobo.Argmin(distance, solver=pzobo.GD(0.5, 9), jacobian=pzobo.Unrolled(), prepare=detached)
    with warnings.catch_warnings(action="error"):
        (0 * argmin(x, ZERO).sum() + x.sum()).backward()


@pytest.mark.parametrize("jacobian", [pzobo.PZOBO(1e-5, 3, pzobo.Orthogonal(seed=0), antithetic=True), pzobo.Auto()])
def test_what_needs_no_graph_is_right_where_it_is_missing(jacobian: Any) -> None:
    """d sum(sin x)/dx = cos x, by paths of x, which `at="auto"` takes where z has no graph; Auto takes PZOBO."""
    x = leaf(3)
    if isinstance(jacobian, pzobo.Auto):
        pzobo.Argmin(distance, solver=pzobo.ClosedForm(detached), jacobian=jacobian)(x, ZERO).sum().backward()
    else:
        argmin = pzobo.Argmin(distance, solver=pzobo.GD(0.5, 60), jacobian=jacobian, prepare=detached)
        argmin(x, ZERO).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos(), rtol=1e-3, atol=0)


def test_what_a_graph_reaches() -> None:
    w = leaf(2, 3)
    a, b = w.unbind()  # outputs of one node
    c = (2 * a).exp()  # a variable that was computed from another one
    assert unreached([a, b, c], [a.sin()]) == [1, 2]
    assert unreached([a, b, c], [c * 2]) == [0, 1]
    assert unreached([a, b, c, w], [(b + c).sum()]) == [0, 3]
    assert unreached([w], [(b + c).sum(), normal(2).requires_grad_()]) == []
    assert unreached([a, b], []) == [0, 1]
