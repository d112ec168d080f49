"""Is an algorithm told when g is not what it takes it for, and only then? A look must leave no trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from benchmarks.real_problems import character_transformer, digits_cnn
from pzobo.algorithms import BOME, F2SA, SOBA, AmIGO
from pzobo.algorithms.algorithm import Algorithm, Memory
from pzobo.errors import AuditError, AuditWarning, OptionError, RequirementError, StructureError
from pzobo.problems import data_cleaning, source_weights
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Logistic

SIZES = {"batch_size": 5, "outer_batch_size": 4}


def steps(method: Algorithm[Any], problem: pzobo.Problem, count: int = 8, lr: float = 0.01) -> Memory[Any]:
    objective = method.start(problem, 1)
    optimizer = torch.optim.SGD(objective.at.variables, lr=lr)
    for _ in range(count):
        optimizer.zero_grad()
        objective.hypergradient()
        optimizer.step()
    return objective


def ridge(inner: Callable[[Tensor, Tensor], Tensor]) -> pzobo.Problem:
    """Least squares with a penalty of x and y."""
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(40, 5, generator=draws), torch.randn(40, generator=draws)

    def outer_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (batch[0] @ y - batch[1]).square().mean()

    return pzobo.Problem(
        lambda x, y, batch: outer_loss(x, y, batch) + inner(x, y),
        outer_loss,
        x0=torch.zeros(5),
        y0=torch.ones(5),
        train=(inputs[:30], targets[:30]),
        val=(inputs[30:], targets[30:]),
    )


def plain(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() * y * y).sum()


# Right ones are told nothing


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_is_said_of_smooth_problems(name: str) -> None:
    found = steps(replace(make(name, **SIZES), audit="error"), Logistic().problem()).last_audit
    assert found is not None
    assert found.holds
    assert found.asked == 8
    assert found.numbers["slope_x"] < 1e-4
    assert found.numbers["slope_y"] < 1e-4
    assert abs(found.numbers.get("products", 1.0) - 1) < 1e-4


@pytest.mark.parametrize("kind", ["SOBA", "forward", "difference", "F2SA", "BOME"])
def test_nothing_is_said_of_real_networks_in_float32(kind: str) -> None:
    """Softmax regression on batches, a tanh network, a transformer."""
    made: dict[str, Callable[..., Algorithm[Any]]] = {"F2SA": F2SA, "BOME": BOME}

    def method(lr: float, **options: Any) -> Algorithm[Any]:
        products = {"products": kind} if kind in ("forward", "difference") else {}
        return made.get(kind, SOBA)(lr, audit="error", **products, **options)

    for problem, lr in ((data_cleaning(), 0.05), (source_weights("digits", sources=4, size=40), 0.05)):
        found = steps(method(lr, batch_size=32), problem, 16).last_audit
        assert found is not None
        assert "slope_y" in found.numbers
    assert steps(method(0.05), character_transformer(width=16, context=8, rows=2, heads=2), 4).last_audit is not None


def test_nothing_is_said_of_kinks_and_half_precision() -> None:
    """ReLU, max-pooling and BatchNorm; all of a network in bfloat16, where slopes can hardly be seen."""
    for problem in (digits_cnn(), digits_cnn(nn.functional.gelu, batch_norm=False, dtype=torch.bfloat16)):
        for method in (SOBA(0.02, batch_size=32, audit="error"), F2SA(0.02, batch_size=32, audit="error", steps=2)):
            steps(method, problem, 16)


# Wrong ones are


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        (lambda x, y: (x.detach().exp() * y * y).sum(), "dg/dx is not the gradient.*off by 100%.*detached"),
        (lambda x, y: (x.exp() * y * y.detach()).sum(), "dg/dy is not the gradient|Products with"),
        (lambda x, y: (x.exp() * (y + (2 * y).detach()) ** 2).sum(), "dg/dy is not the gradient|Products with"),
    ],
    ids=["x detached", "y detached", "straight-through"],
)
@pytest.mark.parametrize("method", [SOBA(0.05), SOBA(0.05, products="difference"), F2SA(0.05)], ids=repr)
def test_what_autograd_does_not_see_is_told(method: Algorithm[Any], inner: Any, told: str) -> None:
    problem = ridge(inner)
    with pytest.warns(AuditWarning, match=told):
        steps(method, problem, 16)
    with pytest.raises(AuditError, match=told):
        steps(replace(method, audit="error"), problem, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(replace(method, audit=False), problem, 16).last_audit is None
        steps(replace(method, audit="error"), ridge(plain), 16)


def test_difference_products_of_what_is_no_gradient_are_wrong_and_told() -> None:
    with pytest.warns(AuditWarning, match=r'Products with .*d2g/dz dy \(0\.5\d* for 1\), taken by "difference"'):
        steps(AmIGO(0.01, products="difference"), ridge(lambda x, y: 0.1 * (x.exp() * y * y.detach()).sum()), 1)


@pytest.mark.parametrize("products", ["autodiff", "forward"])
def test_products_across_kinks_are_told_with_their_cause(products: Any) -> None:
    """No detach() is looked for where |y - c| bends the loss at all scales around y."""
    bends = 2.0 ** -torch.arange(15.0)

    def inner_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        away = y - 1
        kinks = (away - bends).abs().sum() + (away + bends).abs().sum()
        return (x.exp() * away.square() / 2 + 0.3 * away + 0.01 * kinks).sum()

    problem = pzobo.Problem(inner_loss, lambda x, y, batch: y.square().sum(), torch.zeros(1), torch.ones(1))
    with pytest.warns(AuditWarning, match=r"Products with d2g/dy2 .*there are kinks near y \(ReLU"):
        steps(SOBA(1e-9, products=products), problem, 1)


SYSTEMS = ["SOBA", "MASOBA", "SABA", "SRBA", "FSLA", "FdeHBO", "AmIGO"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_v_that_goes_elsewhere_is_told(name: str) -> None:
    """y is at its place, x moves by the sign of D: nobody else sees that D grows without an end."""
    problem = ridge(plain)
    told = r"v is to solve H v = df/dy, and goes elsewhere: \|H v\| is .*v_lr"
    with pytest.warns(AuditWarning, match=told):
        steps(make(name, lr=0.05, v_lr=1.0, **SIZES), problem, 32, lr=0.0)
    found = steps(make(name, lr=0.05, audit="error", **SIZES), problem, 64).last_audit
    assert found is not None
    assert found.numbers["system"] < 2


def test_negative_eigenvalues_are_told() -> None:
    top = replace(ridge(plain), inner_loss=lambda x, y, batch: (x.exp() * y.cos()).sum(), y0=torch.zeros(5))
    with pytest.warns(AuditWarning, match="H has negative eigenvalues"):
        steps(SOBA(0.1), top, 128, lr=0.0)


def test_each_fault_is_said_once() -> None:
    with pytest.warns(AuditWarning) as told:
        steps(SOBA(0.05), ridge(lambda x, y: (x.detach().exp() * y * y).sum()), 16)
    assert len(told) == 1


def test_tensors_that_get_no_gradient() -> None:
    w = torch.zeros(5, requires_grad=True)
    with pytest.warns(AuditWarning, match="require a gradient and are neither in x nor in y0"):
        steps(SOBA(0.05), ridge(lambda x, y: plain(x, y + w)))
    problem = ridge(plain)
    data = (problem.train[0].clone().requires_grad_(), problem.train[1])
    with pytest.raises(StructureError, match="in the batch requires a gradient"):
        SOBA(0.05).start(replace(problem, train=data))


def test_a_loss_without_y_and_losses_without_x_are_refused() -> None:
    problem = replace(ridge(plain), inner_loss=lambda x, y, batch: x.square().sum())
    for method in (SOBA(0.05), F2SA(0.05)):
        with pytest.raises(StructureError, match="does not depend on y"):
            steps(method, problem)
    alone = replace(problem, inner_loss=lambda x, y, batch: y.square().sum())
    for method in (SOBA(0.05), F2SA(0.05)):
        steps(method, replace(alone, outer_loss=lambda x, y, batch: (x + y).square().sum()))
        with pytest.raises(RequirementError, match="Neither the inner nor the outer loss depends on x"):
            steps(method, alone)
    with pytest.raises(OptionError, match=r'audit=1\.5: must be True, False or "error"'):
        SOBA(audit=1.5)  # type: ignore[arg-type]


def test_a_look_stops_no_run() -> None:
    """Where g and its slopes are exactly zero, and where the points beside it are refused."""

    def refuses(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        if not torch.equal(x.detach(), torch.zeros(5)):
            raise ValueError("not here")
        return (y * y * (1 + x)).sum()

    for inner_loss in (lambda x, y, batch: 0 * (x * y).sum(), refuses):
        problem = replace(ridge(plain), inner_loss=inner_loss, outer_loss=lambda x, y, batch: y.square().sum())
        for method in (SOBA(0.05, audit="error"), F2SA(0.05, audit="error")):
            steps(method, problem, 3, lr=0.0)


# No trace


@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
def test_a_look_leaves_no_trace(products: Any) -> None:
    """Dropout draws the same, a counter of BatchNorm counts the same, and so do the oracles."""
    found = []
    for audit in (True, False):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(5, affine=False)

        def inner_loss(x: Tensor, y: Tensor, batch: Any, norm: nn.Module = norm) -> Tensor:
            inputs = nn.functional.dropout(norm(batch[0]), 0.2)
            return (inputs @ y - batch[1]).square().mean() + plain(x, y)

        problem = replace(ridge(plain), inner_loss=inner_loss)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # torch's own, where a process takes its first derivative in forward mode
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
            objective = steps(SOBA(0.02, products=products, audit=audit, **SIZES), problem)
        found.append((objective, norm.running_mean, norm.num_batches_tracked, torch.rand(1)))
    (one, *mine), (other, *theirs) = found
    assert (one.last_audit is not None) != (other.last_audit is not None)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert one.at.calls == other.at.calls
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_compiled_steps_are_looked_at_too() -> None:
    problem = ridge(lambda x, y: (x.detach().exp() * y * y).sum())
    method = SOBA(0.01, compile=True)
    with pytest.warns(AuditWarning, match="dg/dx is not the gradient"):
        pzobo.fit(problem, method, steps=6, optimizer=torch.optim.SGD, lr=0.01, evaluate_every=0, progress=False)
