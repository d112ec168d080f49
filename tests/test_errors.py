"""Does what goes wrong raise its own exception, with what was found and what to do?"""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo import errors
from pzobo.errors import (
    BatchError,
    CurvatureError,
    DivergenceError,
    NonFiniteError,
    NoResponseWarning,
    PzoboError,
    ScalarLossError,
    SmoothingError,
    StaleError,
    StructureError,
)
from tests.helpers import bowl, descend, leaf, normal

ZERO = torch.zeros(3, dtype=torch.float64)


def make(loss: Any = bowl, jacobian: Any = None, solver: Any = None, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=solver or pzobo.GD(0.1, 4), jacobian=jacobian or pzobo.Unrolled(), **options)


def test_all_are_caught_as_one_and_as_what_python_calls_them() -> None:
    found = inspect.getmembers(errors, inspect.isclass)
    classes = [c for _, c in found if c is not PzoboError and not issubclass(c, Warning)]
    assert len(classes) == 22
    for c in classes:
        assert issubclass(c, PzoboError)
        assert issubclass(c, (ValueError, TypeError, ArithmeticError, RuntimeError, OSError, ImportError, MemoryError))
        assert c.__doc__


# Structure


@pytest.mark.parametrize(
    ("y0", "found"),
    [
        (torch.zeros(3, dtype=torch.long), "int64"),
        ([torch.zeros(3), 1.0], "float"),
        ({"a": "w"}, "str"),
        (None, "no tensors"),
        ([], "no tensors"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
    ],
    ids=str,
)
def test_y0_that_is_not_made_of_floating_point_tensors(y0: Any, found: str) -> None:
    with pytest.raises(StructureError, match=found):
        make()(leaf(3), y0)


def test_prepare_that_changes_its_structure() -> None:
    argmin = make(
        lambda z, y, b: bowl(z[0], y), prepare=lambda x, b: (x,) if b == 0 else (x, x), jacobian=pzobo.PZOBO(at="x")
    )
    with pytest.raises(StructureError, match=r"prepare\(\).*structure"):
        argmin(leaf(3), ZERO, batches=[0, 0, 1, 0])


ANSWERS = {
    "shape": (lambda y: y[:2], r"\(2,\).*\(3,\)"),
    "pair": (lambda y: (y, y), "structure"),
    "dict": (lambda y: {"y": y}, "structure"),
    "nothing": (lambda y: None, "structure"),
    "words": (lambda y: "solved", "str"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("kind", ["ClosedForm", "BlackBox"])
def test_solvers_with_an_answer_unlike_y0(kind: str, name: str) -> None:
    answer, message = ANSWERS[name]
    solver = (
        pzobo.ClosedForm(lambda z, b: answer(z)) if kind == "ClosedForm" else pzobo.BlackBox(lambda x, y0, b: answer(x))
    )
    with pytest.raises(StructureError, match=message):
        make(solver=solver, jacobian=pzobo.PZOBO())(leaf(3), ZERO)


@pytest.mark.parametrize("kind", ["ClosedForm", "BlackBox"])
def test_solvers_with_an_answer_unlike_a_nested_y0(kind: str) -> None:
    """A tensor where a list is, a list where a tensor is, a missing key."""
    y0 = {"a": ZERO, "b": [ZERO]}
    for answer in ({"a": ZERO, "b": ZERO}, {"a": [ZERO], "b": [ZERO]}, {"a": ZERO}, [ZERO, ZERO]):
        solver = (
            pzobo.ClosedForm(lambda z, b, answer=answer: answer)
            if kind == "ClosedForm"
            else pzobo.BlackBox(lambda x, y0, b, answer=answer: answer)
        )
        argmin = make(lambda x, y, b: bowl(x, y["a"]), solver=solver, jacobian=pzobo.PZOBO())
        with pytest.raises(StructureError, match="structure"):
            argmin(leaf(3), y0)


# The loss


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda y: y, r"float64 tensor of shape \(3,\)"),
        (lambda y: y.sum().reshape(1), r"\(1,\)"),
        (lambda y: y.sum().long(), "int64"),
        (lambda y: float(y.sum()), "float"),
        (lambda y: None, "NoneType"),
        (lambda y: (y.sum(), y), "tuple"),
    ],
    ids=["vector", "one element", "integer", "number", "nothing", "with extras"],
)
@pytest.mark.parametrize("jacobian", [pzobo.PZOBO(), pzobo.Unrolled(), pzobo.Implicit(pzobo.CG())], ids=repr)
def test_a_loss_that_is_not_a_scalar(value: Any, found: str, jacobian: Any) -> None:
    with pytest.raises(ScalarLossError, match=rf"inner loss.*{found}.*(mean|sum|the tensor itself)"):
        make(lambda x, y, b: value(y * x), jacobian)(leaf(3), ZERO)


def test_the_users_own_exceptions_pass_unchanged() -> None:
    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        make(loss)(leaf(3), ZERO, 1)


# Smoothing


@pytest.mark.parametrize("mu", [0, 0.0, -1.0, math.nan, math.inf, "0.1", None])
def test_a_mu_that_is_not_positive(mu: Any) -> None:
    with pytest.raises(SmoothingError, match=r"mu=.*0\.01"):
        pzobo.PZOBO(mu)


def shifted(offset: float, dtype: torch.dtype, mu: float) -> tuple[Tensor, Any]:
    """y^1 = x + offset, exactly; near x = 0 any mu is seen in x."""
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    argmin = make(
        lambda x, y, b: 0.5 * (y - x - offset).square().sum(),
        pzobo.PZOBO(mu, 3, pzobo.Coordinate(seed=0)),
        pzobo.GD(1.0, 1),
    )
    return x, argmin(x, torch.zeros(3, dtype=dtype)).sum()


def test_a_mu_that_is_lost_in_x() -> None:
    x = normal(3, dtype=torch.float32).requires_grad_()
    jacobian = pzobo.PZOBO(1e-8, 3, pzobo.Coordinate(seed=0))
    y = make(jacobian=jacobian)(x, torch.zeros(3))
    with pytest.raises(SmoothingError, match=r"mu=1e-08 is too small.*float32.*Use mu of at least.*float64"):
        y.sum().backward()
    x = x.detach().double().requires_grad_()
    make(jacobian=jacobian)(x, ZERO).sum().backward()
    other = x.detach().clone().requires_grad_()
    descend(lambda y: bowl(other, y), ZERO).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mu", [1e-4, 1e-7], ids=["a few roundings", "nothing is left"])
def test_a_mu_that_is_lost_in_y(mu: float) -> None:
    """y is near 1000, where float32 has steps of 6e-5. What is left of a difference is noise; nothing left may be
    right, where y does not respond, so that is a warning."""
    _, y = shifted(1000.0, torch.float32, mu)
    with (
        pytest.raises(SmoothingError, match=r"mu is too small.*float64")
        if mu == 1e-4
        else pytest.warns(NoResponseWarning, match=r"mu is so small")
    ):
        y.backward()
    x, y = shifted(1000.0, torch.float64, mu)
    y.backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x), rtol=1e-3, atol=1e-3)


def test_the_advice_of_the_message_works() -> None:
    _, y = shifted(1000.0, torch.float32, 1e-4)
    with pytest.raises(SmoothingError) as caught:
        y.backward()
    times = float(str(caught.value).split("at least ")[1].split(" times")[0])
    x, y = shifted(1000.0, torch.float32, 1e-4 * times)
    y.backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x), rtol=0.1, atol=0.1)


def test_check_can_be_turned_off() -> None:
    x = normal(3, dtype=torch.float32).requires_grad_()
    make(jacobian=pzobo.PZOBO(1e-9), check=False)(x, torch.zeros(3)).sum().backward()
    bad = torch.full((3,), math.nan, requires_grad=True)
    assert make(check=False)(bad, torch.zeros(3)).isnan().all()


# Numbers that are not finite


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("how", ["gradients", "no_grad", "smooth"])
def test_a_non_finite_x(bad: float, how: str) -> None:
    x = torch.tensor([1.0, bad, 0.0], requires_grad=True)
    run = (lambda: pzobo.smooth(torch.sum, x, mu=0.1)) if how == "smooth" else (lambda: make()(x, torch.zeros(3)))
    message = r"x holds NaN or infinity.*outer optimizer"
    with torch.set_grad_enabled(how != "no_grad"), pytest.raises(NonFiniteError, match=message):
        run()


def test_large_numbers_are_finite() -> None:
    """Squares of float32 numbers overflow long before the numbers do."""
    x = torch.full((3,), 1e20, requires_grad=True)
    argmin = make(lambda x, y, b: 0.5 * (y - x).square().sum(dtype=torch.float64), solver=pzobo.GD(1.0, 1))
    y = argmin(x, torch.zeros(3))
    assert torch.equal(y.detach(), x.detach())
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [True, False])
def test_a_path_that_diverges_names_the_step(dtype: torch.dtype, grad: bool) -> None:
    y, step = torch.ones(3, dtype=dtype), 0
    while y.isfinite().all():
        y = y - 1e10 * y
        step += 1
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    argmin = make(lambda x, y, b: 0.5 * (x * y.square()).sum(), solver=pzobo.GD(1e10, 60))
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(DivergenceError, match=rf"step {step} of 60.*smaller inner learning rate.*lr=10000000000"),
    ):
        argmin(x, torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("bad", [1, 3])
def test_a_bad_batch_is_the_step_of_divergence(bad: int) -> None:
    batches = [torch.tensor(math.nan if t == bad else 1.0) for t in range(4)]
    with pytest.raises(DivergenceError, match=rf"step {bad + 1} of 4"):
        make(lambda x, y, b: b * bowl(x, y))(leaf(3), ZERO, batches=batches)


def test_a_bad_start_is_not_called_divergence_of_the_path() -> None:
    with pytest.raises(DivergenceError, match=r"y0.*NaN or infinity"):
        make()(leaf(3), torch.full_like(ZERO, math.nan))


@pytest.mark.parametrize("kind", ["ClosedForm", "BlackBox"])
def test_a_solver_that_answers_nan(kind: str) -> None:
    nan = torch.full_like(ZERO, math.nan)
    solver = pzobo.ClosedForm(lambda z, b: z * nan) if kind == "ClosedForm" else pzobo.BlackBox(lambda x, y0, b: nan)
    with pytest.raises(DivergenceError, match=f"{kind} returned NaN"):
        make(solver=solver, jacobian=pzobo.PZOBO())(leaf(3), ZERO)


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_a_perturbed_path_that_diverges(batching: Any) -> None:
    """The square root of a positive x has a value; that of x - mu has none."""
    x = torch.full((3,), 1e-3, dtype=torch.float64, requires_grad=True)
    argmin = make(lambda x, y, b: (y - x.sqrt()).square().sum(), pzobo.PZOBO(0.1, 8, batching=batching))
    y = argmin(x, ZERO)
    with pytest.raises(DivergenceError, match=r"perturbed path.*smaller mu"):
        y.sum().backward()


@pytest.mark.parametrize("products", ["autodiff", "difference"])
def test_cg_on_an_indefinite_hessian(products: Any) -> None:
    def saddle(x: Tensor, y: Tensor, b: Any) -> Tensor:
        return 0.5 * (y[0].square() - 2 * y[1].square()) - x @ y

    x, y0 = leaf(2), torch.ones(2, dtype=torch.float64)
    y = make(saddle, pzobo.Implicit(pzobo.CG(), products=products))(x, y0)
    with pytest.raises(CurvatureError, match=r"curvature -.*damping.*(Unrolled|PZOBO)"):
        (y @ torch.tensor([0.0, 1.0], dtype=torch.float64)).backward()
    y = make(saddle, pzobo.Implicit(pzobo.CG(damping=3.0), products=products))(x, y0)
    y[1].backward()  # (H + 3)^-1 = diag(1/4, 1), and the mixed derivative is -1
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_a_singular_hessian() -> None:
    y = make(lambda x, y, b: (y.sum() - x.sum()).square(), pzobo.Implicit(pzobo.Exact()))(leaf(3), ZERO)
    with pytest.raises(CurvatureError, match="singular"):
        y.sum().backward()


# Batches


def needs(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return bowl(x, y) + batch.sum() * y.sum()


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y, batch: (y.detach() - x).square().sum(),
        lambda x, y, batch: x.square().sum(),
        lambda x, y, batch: torch.ones((), dtype=torch.float64),
    ],
)
@pytest.mark.parametrize("x", [leaf(3), normal(3)], ids=["asks", "constant"])
def test_a_loss_that_does_not_depend_on_y(loss: Any, x: Tensor) -> None:
    with pytest.raises(StructureError, match="does not depend on y"):
        make(loss)(x, ZERO)


def test_batches_given_twice_or_not_at_all() -> None:
    one = torch.ones(3, dtype=torch.float64)
    with pytest.raises(BatchError, match=r"both batch= and batches="):
        make(needs)(leaf(3), ZERO, one, batches=[one] * 4)
    with pytest.raises(BatchError, match=r"neither batch= nor batches=.*argmin\(x, y0, batch\)"):
        make(needs)(leaf(3), ZERO)
    assert torch.isfinite(make(bowl)(leaf(3), ZERO)).all()


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_a_list_of_batches_of_the_wrong_length(count: int) -> None:
    with pytest.raises(BatchError, match=rf"{count} batches for 4 inner steps"):
        make(needs)(leaf(3), ZERO, batches=[torch.ones(3)] * count)


def test_other_sequences_of_batches() -> None:
    x, data = leaf(3), normal(4, 3, seed=1)
    expected = make(needs)(x, ZERO, batches=list(data))
    for batches in (data, tuple(data), iter(data), (b for b in data)):
        assert torch.equal(make(needs)(x, ZERO, batches=batches), expected)


def test_a_closed_form_has_no_steps_for_batches() -> None:
    with pytest.raises(BatchError, match=r"closed form.*batch="):
        make(solver=pzobo.ClosedForm(lambda z, b: z))(leaf(3), ZERO, batches=[1, 2])


# What is out of date


def test_statistics_that_are_out_of_date() -> None:
    argmin, x = make(), leaf(3)
    with pytest.raises(StaleError, match="no solve yet"):
        _ = argmin.last
    argmin(x, ZERO)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(StaleError, match=r"changed in place.*before the optimizer"):
        _ = argmin.last.inner_loss
    with pytest.raises(StaleError):
        _ = argmin.last.gradient_norm


def test_a_black_box_without_a_loss_has_no_statistics() -> None:
    argmin = make(None, pzobo.PZOBO(), pzobo.BlackBox(lambda x, y0, b: x))
    argmin(leaf(3), ZERO)
    assert argmin.last.finite
    with pytest.raises(StaleError, match="black box"):
        _ = argmin.last.inner_loss
