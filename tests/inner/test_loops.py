"""Is a loop one compiled call, with the values of the turns one by one, and what happens where it cannot be one?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo import CG, PZOBO, Adam, Direct, FixedPoint, ForwardMode, Gaussian, HeavyBall, Implicit, Neumann, Unrolled
from pzobo.errors import CurvatureError
from pzobo.inner import compiled, loops
from pzobo.inner.loops import Loop, Run, runs
from pzobo.tensors.trees import Plan
from tests.helpers import bowl, leaf, normal, relative_error

GD, DIRECT = pzobo.GD(0.1, 6), Direct()


@pytest.fixture(autouse=True)
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was compiled. Machine code is made only where it matters."""
    made: list[Any] = []
    real = compiled._inductor

    def backend(graph: Any, inputs: Any, **options: Any) -> Any:
        made.append(graph)
        return real(graph, inputs, **options) if "machine_code" in request.keywords else graph.forward

    monkeypatch.setattr(compiled, "_inductor", backend)
    return made


def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    shift = 0.0 if batch is None else (batch @ y).sin().mean()
    return bowl(x, y) + 0.1 * y.pow(4).sum() + shift


def both(inner_loss: Any = None, solver: Any = GD, jacobian: Any = DIRECT, **options: Any) -> list[pzobo.Argmin]:
    # A loss of its own, so that nothing has been compiled for it.
    own = inner_loss or (lambda x, y, batch: loss(x, y, batch))
    # Without the audit, which compiles products of its own.
    options = {"solver": solver, "audit": False, **options}
    return [pzobo.Argmin(own, jacobian=jacobian.at_start(), compile=c, **options) for c in (False, True)]


def outcome(argmin: pzobo.Argmin, *data: Any, v: Tensor | None = None, **options: Any) -> list[Tensor]:
    x = leaf(3)
    y = argmin(x, normal(3, seed=1), *data, **options)
    return [y.detach(), torch.autograd.grad(y, x, normal(3, seed=2) if v is None else v)[0]]


def assert_alike(argmins: list[pzobo.Argmin], *data: Any, **options: Any) -> list[Tensor]:
    expected, found = (outcome(argmin, *data, **options) for argmin in argmins)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    return found


# Runs


def test_points_that_differ_in_numbers_are_stacked_and_what_they_share_is_not() -> None:
    z = (normal(2), "name", 3)
    batches = [{"a": normal(4, seed=i), "n": n} for i, n in enumerate([5, 5, 5, 6])] + [{"a": normal(3), "n": 6}]
    found = list(runs(((z, batch), 1) for batch in batches))
    assert [run.turns for run in found] == [3, 1, 1]
    assert [sum(run.stacked) for run in found] == [1, 0, 0]
    t = 0
    for run in found:
        for turn in range(run.turns):
            (same, *constants), batch = run.point(turn)
            assert same is z[0]
            assert constants == ["name", 3]
            assert torch.equal(batch["a"], batches[t]["a"])
            assert batch["n"] == batches[t]["n"]
            t += 1


def test_one_point_for_many_turns_is_a_run_of_its_own() -> None:
    a, b = normal(2), normal(2, seed=1)
    assert [(run.turns, any(run.stacked)) for run in runs([(a, 1), (b, 1), (a, 7), (b, 1)])] == [
        (2, True),
        (7, False),
        (1, False),
    ]
    assert [(run.turns, any(run.stacked)) for run in runs([(a, 1), (a, 1), (a, 1)])] == [(3, False)]
    assert [run.turns for run in runs([(a, 0)])] == [0]


def test_no_more_is_stacked_than_a_call_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST", 5 * 8 * 8)
    assert [run.turns for run in runs([(normal(8, seed=i), 1) for i in range(12)])] == [5, 5, 2]


def test_sparse_matrices_are_not_stacked() -> None:
    matrices = [pzobo.SparseMatrix.from_torch(torch.eye(3)) for _ in range(3)]
    assert [run.turns for run in runs([(A, 1) for A in matrices])] == [1, 1, 1]


# One call


SERIES = {
    "CG": Implicit(CG(5, tol=0.0)),
    "CG with damping": Implicit(CG(5, damping=0.1)),
    "FixedPoint": Implicit(FixedPoint(5)),
    "FixedPoint(1)": Implicit(FixedPoint(1)),
    "FixedPoint(lr)": Implicit(FixedPoint(5, lr=0.2)),
    "Neumann": Implicit(Neumann(0.2, 5)),
}


@pytest.mark.parametrize("jacobian", SERIES.values(), ids=SERIES)
def test_a_series_is_one_call(jacobian: Any, graphs: list[Any]) -> None:
    argmins = both(jacobian=jacobian)
    for _ in range(2):
        assert_alike(argmins)
    assert len(graphs) == 2, "the path, and the series with its mixed product"


def test_going_back_over_a_path_copies_none_of_its_points(graphs: list[Any]) -> None:
    assert_alike(both(jacobian=Unrolled()))
    turned = [node.args[0] for graph in graphs for node in graph.graph.nodes if "flip" in node.name]
    assert turned, "the numbers of the turns"
    assert all(node.meta["example_value"].dim() == 1 for node in turned), "not the points, which are rows of a matrix"


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize(
    ("jacobian", "count"),
    [(PZOBO(0.1, 2, Gaussian(seed=0)), 1), (Unrolled(), 2), (ForwardMode(2, Gaussian(seed=0)), 2)],
    ids=["PZOBO", "Unrolled", "ForwardMode"],
)
def test_another_number_of_steps_compiles_nothing(jacobian: Any, count: int, batches: bool, graphs: list[Any]) -> None:
    argmins = both(jacobian=jacobian)
    for steps in (6, 4, 9):
        for argmin in argmins:
            argmin.solver = pzobo.GD(0.1, steps)
        data = {"batches": [normal(2, 3, seed=i) for i in range(steps)]} if batches else {"batch": normal(2, 3)}
        assert_alike(argmins, **data)
    assert len(graphs) == count


SOLVERS = [
    [pzobo.GD(lr, 4) for lr in (0.1, 0.05, 0.2)],
    [HeavyBall(lr, momentum, 4) for lr, momentum in ((0.1, 0.5), (0.1, 0.9), (0.05, 0.3))],
    [Adam(lr, 4, betas, eps) for lr, betas, eps in ((0.1, (0.9, 0.99), 1e-8), (0.2, (0.5, 0.9), 1e-3))],
]


@pytest.mark.parametrize("solvers", SOLVERS, ids=["GD", "HeavyBall", "Adam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_numbers_of_a_solver_are_inputs(solvers: list[Any], dtype: torch.dtype, graphs: list[Any]) -> None:
    """One y has no dimensions: there a number must not widen it."""
    argmins = both(lambda x, y, batch: bowl(x, y["a"]) + (y["b"] - x.sum()).square(), jacobian=Unrolled())
    values = []
    for solver in solvers:
        found = []
        for argmin in argmins:
            argmin.solver = solver
            x = leaf(3).detach().to(dtype).requires_grad_()
            y = argmin(x, {"a": normal(3, seed=1, dtype=dtype), "b": torch.ones((), dtype=dtype)})
            assert {t.dtype for t in y.values()} == {dtype}
            found.append([y["a"].detach(), y["b"].detach(), *torch.autograd.grad(y["a"].sum() + y["b"], x)])
        torch.testing.assert_close(found[1], found[0])
        values.append(found[1][0])
    assert len(graphs) == 2
    assert relative_error(values[0], values[1]) > 1e-3


def test_the_numbers_of_a_series_are_inputs(graphs: list[Any]) -> None:
    argmins = both()
    for make in (lambda n: Neumann(n, 4), lambda n: FixedPoint(4, lr=n), lambda n: CG(4, tol=n, damping=n)):
        found = []
        for number in (0.1, 0.2):
            for argmin in argmins:
                argmin.jacobian = Implicit(make(number))
            found.append(assert_alike(argmins)[1])
        assert relative_error(*found) > 1e-4
    assert len(graphs) == 4


@dataclass(frozen=True)
class Clipped(pzobo.GD):
    """A solver of a user that does with its rate what a tensor does not."""

    def update(self, gradient: Any, y: Any, state: Any) -> Any:
        return tuple(torch.add(t, g.clamp(-1, 1), alpha=-self.lr) for t, g in zip(y, gradient, strict=True)), state


def test_numbers_of_a_class_that_does_not_say_so_are_constants(graphs: list[Any]) -> None:
    argmins = both()
    for lr in (0.1, 0.2):
        for argmin in argmins:
            argmin.solver = Clipped(lr, 4)
        assert_alike(argmins)
    assert len(graphs) == 2


# What comes out of conjugate gradients


def test_conjugate_gradients_stop_where_they_are_told(graphs: list[Any]) -> None:
    few = assert_alike(both(jacobian=Implicit(CG(20, tol=0.3))))
    many = assert_alike(both(jacobian=Implicit(CG(20, tol=1e-9))))
    assert relative_error(few[1], many[1]) > 1e-3


def test_curvature_that_is_not_positive_is_the_same_sentence() -> None:
    messages = []
    for argmin in both(lambda x, y, batch: x @ y - y.square().sum(), jacobian=Implicit(CG(5))):
        with pytest.raises(CurvatureError, match="met a direction of curvature") as caught:
            outcome(argmin)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_cotangent_that_is_not_finite_gives_what_is_not_finite(bad: float) -> None:
    for argmin in both(jacobian=Implicit(CG(5))):
        assert not outcome(argmin, v=torch.tensor([1.0, bad, 0.0], dtype=torch.float64))[1].isfinite().all()


# What torch.compile could get wrong


def test_whole_numbers_in_a_container() -> None:
    """torch.compile takes changing numbers for variables, and does not find one in a container (dependencies.md)."""
    argmins = both(lambda x, y, batch: (2.0 if 2 in batch["of"] else 1.0) * bowl(x, y) + batch["data"] @ y)
    for numbers in ((1, 3), (2, 3), (5, 2), (4, 4), (3, 2)):
        assert_alike(argmins, {"of": numbers, "data": normal(3)})


def test_leaves_that_are_stacked_in_one_problem_and_shared_in_another() -> None:
    for prepare in (None, lambda x, batch: x + batch.mean(), None):
        argmins = both(prepare=prepare, jacobian=Unrolled())
        assert_alike(argmins, batches=[normal(2, 3, seed=i) for i in range(6)])


@pytest.mark.machine_code
def test_a_multiple_of_a_product_of_matrices_inside_of_a_loop() -> None:
    c, d = normal(4, 5, seed=1), normal(5, 3, seed=2)

    def term(kernel: None, point: Any, a: Tensor, fixed: None) -> Tensor:
        c, d = point
        return torch.add(a, c @ d, alpha=-0.3) + torch.add(c @ d, a, alpha=0.2)

    leaves, plan = Plan.take((c, d))
    start = normal(4, 3)
    found = Loop(term, plan, (False, False))(None, Run(leaves, (False, False), plan, 3), start, None)
    expected = start
    for _ in range(3):
        expected = term(None, (c, d), expected, None)
    torch.testing.assert_close(found, expected)


@pytest.mark.machine_code
def test_each_step_draws_its_own_random_numbers() -> None:
    def noisy(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (nn.functional.dropout(torch.ones_like(y)) * y).sum() + 0.0 * x.sum()

    argmin = pzobo.Argmin(noisy, solver=pzobo.GD(1.0, 7), jacobian=PZOBO(0.1), compile=True)
    torch.manual_seed(0)
    x = torch.ones(2, requires_grad=True)
    kept = -argmin(x, torch.zeros(100)).detach() / 2  # in how many of seven steps each was kept
    assert set(kept.tolist()) <= set(range(8))
    assert len(set(kept.tolist())) > 3, "not the same mask in all steps"
    assert not torch.equal(argmin(x, torch.zeros(100)).detach() / -2, kept)
    torch.manual_seed(0)
    y = argmin(x, torch.zeros(100))
    assert torch.equal(y.detach() / -2, kept)
    # x changes nothing, so the perturbed paths must have drawn the same masks.
    assert not torch.autograd.grad(y.sum(), x)[0].any()


# Where it cannot be one call


@dataclass(frozen=True)
class Preconditioned(pzobo.GD):
    """Its state is never changed: torch.while_loop refuses to hand on what it got."""

    def init(self, y: Any) -> Any:
        return tuple(0.5 + t.abs() for t in y)

    def update(self, gradient: Any, y: Any, state: Any) -> Any:
        return tuple(t - self.lr * s * g for t, g, s in zip(y, gradient, state, strict=True)), state


def test_a_state_that_is_handed_on_as_it_is() -> None:
    assert_alike(both(solver=Preconditioned(0.1, 4), jacobian=Unrolled()))


@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
def test_without_scan_the_steps_are_compiled_one_by_one(products: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "scan", None)
    for data in ({}, {"batches": [normal(2, 3, seed=i) for i in range(6)]}):
        argmins = both(jacobian=Unrolled(last=4, products=products))
        expected, found = (outcome(argmin, **data) for argmin in argmins)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_sparse_data_in_a_loop() -> None:
    A = pzobo.SparseMatrix.from_torch((normal(5, 3) > 0).double())
    for jacobian in (PZOBO(0.1, 2, Gaussian(seed=0)), Unrolled(), Implicit(CG(4))):
        assert_alike(both(lambda x, y, A: bowl(x, y) + (A @ y).sin().sum(), jacobian=jacobian), A)


@pytest.mark.parametrize("shape", ["transposed", "expanded"])
def test_a_start_that_lies_otherwise_in_memory(shape: str) -> None:
    y0 = normal(3, 4).T if shape == "transposed" else normal(1, 3).expand(4, 3)
    found = []
    for argmin in both(lambda x, y, batch: (y @ x - 1).square().sum(), jacobian=Unrolled()):
        x = leaf(3)
        y = argmin(x, y0)
        found.append([y.detach(), torch.autograd.grad(y.sin().sum(), x)[0]])
    torch.testing.assert_close(found[1], found[0])


def test_a_view_that_a_loop_cannot_have_is_compiled_turn_by_turn() -> None:
    def flipped(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return bowl(x, (y.reshape(1, 3).mT * 1.0).reshape(3))

    assert_alike(both(flipped))
