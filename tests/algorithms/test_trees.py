"""Do algorithms take what `Argmin` takes? Trees, tied tensors, `prepare`, sparse data, modules, constants in x."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.tensors import trees
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Logistic, Quadratic
from tests.helpers import normal

each = pytest.mark.parametrize("name", NUMBERS)
HALF, FLOAT, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def run(problem: pzobo.Problem, name: str, steps: int = 5, **options: Any) -> tuple[Tensor, Tensor, list[float]]:
    """x and y as flat tensors after some steps of SGD, and the losses."""
    objective = make(name, **options).start(problem, 1)
    tensors = trees.unique(trees.Plan.take(objective.x)[0])
    optimizer = torch.optim.SGD(tensors, lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = objective.outer_loss()
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    y = trees.Plan.take(objective.y)[0]
    return torch.cat([t.detach().reshape(-1) for t in tensors]), torch.cat([t.reshape(-1) for t in y]), losses


@each
def test_trees_and_prepare_change_nothing(name: str) -> None:
    case = Quadratic()
    flat = case.problem()
    x0, y0 = flat.x0, flat.y0

    def together(x: dict[str, Any], batch: Any) -> Tensor:
        return torch.cat([x["a"][0], x["a"][1].reshape(-1), x["b"]]) * x["c"]

    tree = pzobo.Problem(
        lambda z, y, batch: case.inner_loss(z, torch.cat([y["u"].reshape(-1), y["w"]]), batch),
        lambda x, y, batch: case.outer_loss(together(x, None), torch.cat([y["u"].reshape(-1), y["w"]]), batch),
        {
            "b": x0[2:].clone().requires_grad_(),
            "a": (x0[:1].clone().requires_grad_(), x0[1:2].view(1, 1).clone().requires_grad_()),
            "c": torch.ones((), dtype=torch.float64),
        },
        {"u": y0[:2].view(2, 1), "w": y0[2:]},
        flat.train,
        flat.val,
        prepare=together,
    )
    sizes = {"batch_size": 5, "outer_batch_size": 4}
    x, y, losses = run(flat, name, **sizes)
    x_tree, y_tree, losses_tree = run(tree, name, **sizes)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if name in ("FdeHBO", "SAMA") else {}  # differences of rounded numbers
    torch.testing.assert_close(x_tree, x, **tolerance)
    torch.testing.assert_close(y_tree, y, **tolerance)
    assert losses_tree == pytest.approx(losses, rel=1e-6)


@each
def test_sparse_data(name: str) -> None:
    case = Logistic()
    dense = case.problem()
    matrices = [(pzobo.SparseMatrix.from_torch(data[0]),) for data in (dense.train, dense.val)]
    sparse = pzobo.Problem(dense.inner_loss, dense.outer_loss, dense.x0, dense.y0, *matrices)
    sizes = {"batch_size": 5, "outer_batch_size": 4}
    for found, expected in zip(run(sparse, name, 3, **sizes)[:2], run(dense, name, 3, **sizes)[:2], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@each
def test_modules_as_x_and_y(name: str) -> None:
    """x holds the weights of one layer, y those of the other; a tied tensor counts once, a number is left alone."""
    torch.manual_seed(0)
    first, last = nn.Linear(3, 2).double(), nn.Linear(2, 1).double()
    rows, labels = normal(12, 3), normal(12, 1, seed=1)
    weights = dict(first.named_parameters())
    x0 = {"first": weights, "again": weights["bias"], "power": 2}

    def predict(x: Any, y: Any, rows: Tensor) -> Tensor:
        hidden = torch.func.functional_call(first, x["first"], (rows,)).tanh() + x["again"]
        return torch.func.functional_call(last, y, (hidden,))

    def inner(x: Any, y: Any, batch: Any) -> Tensor:
        return (predict(x, y, batch[0]) - batch[1]).pow(x["power"]).mean() + 0.1 * y["weight"].square().sum()

    def outer(x: Any, y: Any, batch: Any) -> Tensor:
        return (predict(x, y, batch[0]) - batch[1]).square().mean()

    data = (rows[:7], labels[:7]), (rows[7:], labels[7:])
    problem = pzobo.Problem(inner, outer, x0, dict(last.named_parameters()), *data)
    before = [t.detach().clone() for t in (*first.parameters(), *last.parameters())]
    found = pzobo.fit(problem, make(name, batch_size=4, outer_batch_size=3), 3, optimizer=torch.optim.SGD, lr=0.01)
    assert found.x["again"] is found.x["first"]["bias"]
    assert found.x["power"] == 2
    assert not torch.equal(found.x["first"]["weight"], before[0])
    assert not torch.equal(found.y["weight"], before[2])
    for left, was in zip((*first.parameters(), *last.parameters()), before, strict=True):
        assert torch.equal(left, was), "the module itself is not written into"


def test_the_hypergradient_of_modules_is_the_implicit_one() -> None:
    """AmIGO with long loops on the same trees, beside the argmin with conjugate gradients."""
    problem = Quadratic().problem()
    objective = pzobo.algorithms.AmIGO(lr=0.3, steps=200, v_lr=0.3, v_steps=200).start(problem)
    objective.outer_loss().backward()
    argmin = problem.argmin(pzobo.GD(0.3, 200), pzobo.Implicit(pzobo.CG(10, 1e-12)))
    x = problem.x0.clone().requires_grad_()
    problem.objective(argmin, x).backward()
    torch.testing.assert_close(objective.x.grad, x.grad, rtol=1e-9, atol=1e-9)


@each
@pytest.mark.parametrize("dtypes", [(HALF, HALF), (FLOAT, DOUBLE), (DOUBLE, FLOAT)], ids=str)
def test_dtypes(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Half precision, and x and y of two dtypes: the steps are those of float64, as far as rounding lets them be."""
    case = Quadratic()
    flat = case.problem()

    def wide(loss: Any) -> Any:
        return lambda x, y, batch: loss(x.double(), y.double(), batch)

    x0, y0 = flat.x0.to(dtypes[0]), flat.y0.to(dtypes[1])
    losses = (wide(case.inner_loss), wide(case.outer_loss))
    narrow = pzobo.Problem(*losses, x0, y0, flat.train, flat.val)
    same = pzobo.Problem(*losses, x0.double(), y0.double(), flat.train, flat.val)
    x, y, _ = run(narrow, name, audit=False)
    x_wide, y_wide, _ = run(same, name, audit=False)
    eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    assert (x.dtype, y.dtype) == dtypes
    torch.testing.assert_close(x.double(), x_wide, rtol=100 * eps, atol=30 * eps)
    torch.testing.assert_close(y.double(), y_wide, rtol=100 * eps, atol=30 * eps)


@each
def test_numbers_without_dimensions(name: str) -> None:
    """An intercept in y, a strength in x: the steps are those of tensors of one number."""

    def problem(shape: tuple[int, ...]) -> pzobo.Problem:
        def inner(x: Any, y: Any, batch: Any) -> Tensor:
            return (y["a"] - x).square().sum() + (y["b"] + y["a"]).square().sum()

        start = {name: torch.full(shape, 0.5, dtype=DOUBLE) for name in ("a", "b")}
        return pzobo.Problem(inner, lambda x, y, batch: (y["b"] - 1).square().sum(), torch.zeros(shape).double(), start)

    for found, expected in zip(run(problem(()), name)[:2], run(problem((1,)), name)[:2], strict=True):
        torch.testing.assert_close(found, expected)
