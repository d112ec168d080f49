"""Is a method's objective what the solver, the Jacobian and the batches say, written by hand?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import OptionError, StructureError
from pzobo.outer.minibatches import Minibatches
from pzobo.tensors.seeds import mix
from tests.helpers import normal

GD = pzobo.GD(0.05, 4)
SEED = 7


def inner(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    rows, labels = batch
    return (rows @ y - labels).square().mean() + (x.exp() * y.square()).mean()


def outer(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    rows, labels = batch
    return (rows @ y - labels).square().mean() + 0.01 * x.square().sum()


ROWS, LABELS = normal(40, 5), normal(40, seed=1)
ZERO = torch.zeros(5, dtype=torch.float64)
PROBLEM = pzobo.Problem(inner, outer, ZERO, ZERO, (ROWS[:20], LABELS[:20]), (ROWS[20:], LABELS[20:]))


def steps(method: pzobo.Method, count: int = 3) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Loss, hypergradient and y of some steps of plain gradient descent on x."""
    objective = method.start(PROBLEM, SEED)
    found = []
    for _ in range(count):
        loss = objective.outer_loss()
        (gradient,) = torch.autograd.grad(loss, objective.x)
        found.append((loss.detach(), gradient, objective.y))
        with torch.no_grad():
            objective.x -= gradient
    return found


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for s, t in zip(a, b, strict=True):
            assert torch.equal(s, t)


def by_hand(jacobian: Any, warm_start: bool, size: int | None, outer_size: int | None, own: int) -> list[Any]:
    argmin = pzobo.Argmin(inner, solver=GD, jacobian=jacobian)
    x, y, found = ZERO.clone().requires_grad_(), ZERO, []
    train, mine, val = (
        Minibatches(data, size or 1, mix(SEED, i))
        for i, (data, size) in enumerate([(PROBLEM.train, size), (PROBLEM.train, size), (PROBLEM.val, outer_size)])
    )
    for _ in range(3):
        y0 = y if warm_start else ZERO
        data: dict[str, Any] = {"batch": PROBLEM.train}
        if size:
            data = {"batches": [train.next() for _ in range(4)]}
            data |= {"jacobian_batches": [mine.next() for _ in range(own)]} if own else {}
        y = argmin(x, y0, **data)
        loss = outer(x, y, val.next() if outer_size else PROBLEM.val)
        (gradient,) = torch.autograd.grad(loss, x)
        y = y.detach()
        found.append((loss.detach(), gradient, y))
        x = (x - gradient).detach().requires_grad_()
    return found


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize(("size", "outer_size", "own"), [(None, None, 0), (6, 7, 0), (6, None, 0), (6, 7, 3)])
@pytest.mark.parametrize("name", ["unrolled", "pzobo", "implicit"])
def test_the_same_as_argmin_by_hand(name: str, size: int, outer_size: int, own: int, warm_start: bool) -> None:
    def jacobian() -> Any:
        return {
            "unrolled": pzobo.Unrolled(),
            "pzobo": pzobo.PZOBO(1e-3, 2, pzobo.Gaussian(seed=3)),
            "implicit": pzobo.Implicit(pzobo.CG(5)),
        }[name]

    method = pzobo.Method(
        GD, jacobian(), warm_start=warm_start, batch_size=size, outer_batch_size=outer_size, jacobian_batches=own
    )
    assert_equal(steps(method), by_hand(jacobian(), warm_start, size, outer_size, own))


@pytest.mark.parametrize("antithetic", [False, True])
def test_hozog_is_smooth_around_the_objective(antithetic: bool) -> None:
    def options() -> dict[str, Any]:
        sampler = pzobo.Sphere(seed=3)
        return {"mu": 1e-2, "directions": 3, "sampler": sampler, "shrink": False, "antithetic": antithetic}

    found = steps(pzobo.HOZOG(GD, **options()))
    argmin = pzobo.Argmin(inner, solver=GD, jacobian=pzobo.Direct())
    x, expected, smoothing = ZERO.clone().requires_grad_(), [], options()
    for _ in range(3):
        loss = pzobo.smooth(lambda x: outer(x, argmin(x, ZERO, PROBLEM.train), PROBLEM.val), x, **smoothing)
        (gradient,) = torch.autograd.grad(loss, x)
        expected.append((loss.detach(), gradient, argmin(x.detach(), ZERO, PROBLEM.train)))
        x = (x - gradient).detach().requires_grad_()
    assert_equal(found, expected)


def test_hozog_keeps_no_perturbed_solution() -> None:
    objective = pzobo.HOZOG(GD, 0.1, 5).start(PROBLEM)
    loss = objective.outer_loss()
    y = objective.y
    loss.backward()
    assert objective.y is y
    assert not y.requires_grad


def test_inner_loss_and_metrics_are_at_the_last_solution() -> None:
    objective = pzobo.Method(GD, pzobo.Unrolled(), batch_size=6, outer_batch_size=3).start(PROBLEM, SEED)
    objective.outer_loss()
    batches = Minibatches(PROBLEM.train, 6, mix(SEED, 0))
    last = [batches.next() for _ in range(4)][-1]
    assert objective.inner_loss() == pytest.approx(float(inner(ZERO, objective.y, last)))
    assert objective.evaluate() == {"val_loss": pytest.approx(float(outer(ZERO, objective.y, PROBLEM.val)))}


def test_two_objectives_of_a_method_have_streams_of_their_own() -> None:
    method = pzobo.Method(GD, pzobo.PZOBO(1e-3, 1, pzobo.Gaussian(seed=3)), batch_size=6)
    alone = steps(method)
    a, b = method.start(PROBLEM, SEED), method.start(PROBLEM, SEED)
    for objective in (a, b):
        loss = objective.outer_loss()
        assert_equal([(loss.detach(), *torch.autograd.grad(loss, objective.x))], [alone[0][:2]])
    assert_equal(steps(method), alone)


def test_a_state_of_another_shape_is_refused() -> None:
    objective = pzobo.Method(GD, pzobo.Unrolled()).start(PROBLEM)
    with pytest.raises(StructureError, match=r"\(4,\)"):
        objective.load_state_dict({**objective.state_dict(), "y": [torch.zeros(4)]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"around": "outside"}, "pzobo.HOZOG"),
        ({"around": "objective", "jacobian": pzobo.Unrolled()}, "PZOBO"),
        ({"solver": pzobo.ClosedForm(lambda z, b: z), "batch_size": 3}, "ClosedForm makes none"),
        ({"jacobian_batches": 2}, "batch_size="),
        ({"mixed": "some"}, 'must be "all"'),
        ({"jacobian": pzobo.Unrolled}, "give one of Auto"),
        ({"jacobian": pzobo.algorithms.SOBA()}, "a method by itself, for fit"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pzobo.Method(**{"solver": GD, "jacobian": pzobo.PZOBO(), **options})


@pytest.mark.parametrize("jacobian", [pzobo.Implicit(pzobo.CG(5)), pzobo.Nudged()], ids=["implicit", "nudged"])
@pytest.mark.parametrize(("mixed", "own"), [("all", 2), ("batch", 2), ("all", 0)])
def test_the_rows_of_the_last_product(jacobian: Any, mixed: Any, own: int) -> None:
    """One weight for each training row: with "all" each has a gradient, and both are what Argmin gives by hand."""

    def weighted(w: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (w * (batch[0] @ y - batch[1]).square()).mean() + y.square().sum()

    def prepare(x: Tensor, batch: Any) -> Tensor:
        return x[batch[2]].sigmoid()

    train = (ROWS[:20], LABELS[:20], torch.arange(20))
    problem = pzobo.Problem(weighted, outer, normal(20, seed=3), ZERO, train, PROBLEM.val, prepare=prepare)
    method = pzobo.Method(GD, jacobian, batch_size=3, jacobian_batches=own, mixed=mixed)
    objective = method.start(problem, SEED)
    (found,) = torch.autograd.grad(objective.outer_loss(), objective.x)

    x = problem.start()
    inner, mine = Minibatches(train, 3, mix(SEED, 0)), Minibatches(train, 3, mix(SEED, 1))
    data: dict[str, Any] = {"batches": [inner.next() for _ in range(4)]}
    data |= {"jacobian_batches": [mine.next() for _ in range(own)]} if own else {}
    data |= {"mixed_batch": train} if mixed == "all" else {}
    y = problem.argmin(GD, jacobian)(x, ZERO, **data)
    (expected,) = torch.autograd.grad(outer(x, y, problem.val), x)
    assert torch.equal(found, expected)
    of_y = found - 0.02 * x.detach()  # without df/dx itself
    seen = (of_y.abs() > 1e-15).sum()
    assert seen == 20 if mixed == "all" else seen <= 6


# The solver's state


ADAM = pzobo.Adam(0.05, 4)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_warm_start_with_the_state_is_a_loop_that_carries_it(batch_size: int | None) -> None:
    method = pzobo.Method(ADAM, pzobo.Unrolled(), warm_start="state", batch_size=batch_size)
    argmin = pzobo.Argmin(inner, solver=ADAM, jacobian=pzobo.Unrolled())
    x, y, state, expected = ZERO.clone().requires_grad_(), ZERO, None, []
    train = Minibatches(PROBLEM.train, batch_size or 1, mix(SEED, 0))
    for _ in range(3):
        data = {"batch": PROBLEM.train} if batch_size is None else {"batches": [train.next() for _ in range(4)]}
        answer = argmin(x, y, **data, state=state)
        state = argmin.last.state
        loss = outer(x, answer, PROBLEM.val)
        (gradient,) = torch.autograd.grad(loss, x)
        y = answer.detach()
        expected.append((loss.detach(), gradient, y))
        with torch.no_grad():
            x -= gradient
    assert_equal(steps(method), expected)
    forgetful = steps(pzobo.Method(ADAM, pzobo.Unrolled(), warm_start=True, batch_size=batch_size))
    assert not torch.equal(forgetful[1][2], expected[1][2])


@pytest.mark.parametrize("method", [pzobo.Method, pzobo.HOZOG])
def test_the_state_goes_through_a_checkpoint(method: Any) -> None:
    options = {"jacobian": pzobo.Unrolled()} if method is pzobo.Method else {"sampler": pzobo.Gaussian(seed=0)}

    def two_steps(resumed: bool) -> Tensor:
        objective = method(ADAM, warm_start="state", **options).start(PROBLEM, SEED)
        objective.outer_loss()
        if resumed:
            other = method(ADAM, warm_start="state", **options).start(PROBLEM, SEED)
            other.load_state_dict(objective.state_dict())
            objective = other
        return objective.outer_loss().detach()

    assert torch.equal(two_steps(resumed=True), two_steps(resumed=False))


def test_states_that_there_are_not() -> None:
    with pytest.raises(OptionError, match='must be True, False or "state"'):
        pzobo.Method(GD, warm_start="y")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="ClosedForm makes none"):
        pzobo.Method(pzobo.ClosedForm(lambda z, batch: z), warm_start="state")


def test_weights_of_a_module_are_constants_in_a_run() -> None:
    """y0 that asks for a gradient would get one in `argmin`, and noise for PZOBO; a run learns x alone."""
    learned = pzobo.Problem(inner, outer, ZERO, ZERO.clone().requires_grad_(), PROBLEM.train, PROBLEM.val)
    jacobian = pzobo.PZOBO(0.01, 2, pzobo.Gaussian(seed=0))
    found = []
    for problem in (PROBLEM, learned):
        objective = pzobo.Method(GD, jacobian).start(problem, SEED)
        found.append(torch.autograd.grad(objective.outer_loss(), objective.x)[0])
    assert torch.equal(*found)
