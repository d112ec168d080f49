"""Do numbers that are functions of x, schedules or different by name act as in a loop by hand, and get its gradient?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import OptionError, RequirementError
from pzobo.inner import compiled
from tests.helpers import relative_error

STEPS = 6
Tree = dict[str, Tensor]


def loss(x: Tree, y: Tree, batch: Any = 1.0) -> Tensor:
    bowl = (0.5 * (1 + x["a"] ** 2) * (y["w"] - batch) ** 2).sum() + (y["b"] ** 2 * x["a"].sum()).sum()
    return bowl + y["w"].cos().sum() * y["b"].sum()


def variables() -> tuple[Tree, Tree]:
    values = {"a": [0.3, 0.5, 1.0], "log_lr": -2.0, "momentum": 0.4, "log_decay": -1.0}
    x = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in values.items()}
    y0 = {"w": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), "b": torch.tensor([0.5], dtype=torch.float64)}
    return x, y0


def falling(t: int) -> float:
    return 0.1 * 0.8**t


SOLVER = pzobo.HeavyBall(
    lr={"w": lambda x: x["log_lr"].exp(), "b": pzobo.Schedule(falling)},
    momentum=lambda x: x["momentum"],
    steps=STEPS,
    weight_decay={"w": lambda x: x["log_decay"].exp(), "b": 0.0},
)


def by_hand(
    x: Tree, y0: Tree, batches: Any = (1.0,), steps: int = STEPS, rate: Callable[[int], float] = falling
) -> Tree:
    """The path of SOLVER, in plain torch."""
    y = {name: t.clone().requires_grad_() for name, t in y0.items()}
    b = {name: torch.zeros_like(t) for name, t in y0.items()}
    for t in range(steps):
        value = loss(x, y, batches[t % len(batches)]) + 0.5 * x["log_decay"].exp() * y["w"].square().sum()
        slopes = dict(zip(y, torch.autograd.grad(value, list(y.values()), create_graph=True), strict=True))
        b = {name: x["momentum"] * b[name] + slopes[name] for name in y}
        lr = {"w": x["log_lr"].exp(), "b": rate(t)}
        y = {name: y[name] - lr[name] * b[name] for name in y}
    return y


def outer(y: Tree) -> Tensor:
    return y["w"].square().sum() + y["b"].sum()


def hypergradient(y: Tree, x: Tree) -> Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(outer(y), list(x.values()))])


PATHS = {
    "unrolled": (pzobo.Unrolled(), 1e-12),
    "checkpoint": (pzobo.Unrolled(checkpoint=True), 1e-12),
    "forward products": (pzobo.Unrolled(products="forward"), 1e-12),
    "differences": (pzobo.Unrolled(products="difference"), 1e-8),
    "pzobo": (pzobo.PZOBO(1e-5, 6, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True), 1e-6),
    "pzobo, vmap": (pzobo.PZOBO(1e-5, 6, pzobo.Orthogonal(), shrink=False, antithetic=True, batching="vmap"), 1e-6),
    "pzobo at z": (pzobo.PZOBO(1e-5, 9, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True, at="z"), 1e-6),
    "forward mode": (pzobo.ForwardMode(6, pzobo.Orthogonal(seed=0), shrink=False), 1e-12),
    "forward mode at z": (pzobo.ForwardMode(9, pzobo.Orthogonal(seed=0), shrink=False, at="z"), 1e-12),
}
paths = pytest.mark.parametrize(("jacobian", "tolerance"), PATHS.values(), ids=PATHS)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Traced as for compilation, but run as it is; the list grows with each graph that is compiled."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any, **_: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "_inductor", backend)
    return graphs


@paths
def test_the_gradient_is_that_of_a_loop_by_hand(jacobian: Any, tolerance: float) -> None:
    x, y0 = variables()
    expected = by_hand(x, y0)
    y = pzobo.Argmin(loss, solver=SOLVER, jacobian=jacobian, audit="error")(x, y0, 1.0)
    torch.testing.assert_close(y["w"].detach(), expected["w"].detach(), rtol=1e-12, atol=0)
    assert relative_error(hypergradient(y, x), hypergradient(expected, x)) < tolerance


@pytest.mark.parametrize("name", ["unrolled", "pzobo at z", "forward mode"])
def test_the_same_where_code_is_compiled(name: str, quickly: list[Any]) -> None:
    """Other values of all numbers, and another schedule, compile nothing."""
    jacobian, tolerance = PATHS[name]
    x, y0 = variables()
    # A loss of its own, for which nothing has been compiled.
    own: Any = lambda x, y, batch: loss(x, y, batch)  # noqa: E731
    argmin = pzobo.Argmin(own, solver=SOLVER, jacobian=jacobian, compile=True, audit=False)
    one = torch.ones((), dtype=torch.float64)
    assert relative_error(hypergradient(argmin(x, y0, one), x), hypergradient(by_hand(x, y0), x)) < tolerance
    before = len(quickly)
    assert before
    with torch.no_grad():
        for t in x.values():
            t.mul_(0.9)
    argmin.solver = pzobo.HeavyBall(
        lr={"w": lambda x: x["log_lr"].exp(), "b": pzobo.Schedule(lambda t: 0.05 / (1 + t))},
        momentum=lambda x: x["momentum"],
        steps=STEPS + 2,
        weight_decay={"w": lambda x: x["log_decay"].exp(), "b": 0.0},
    )
    expected = by_hand(x, y0, steps=STEPS + 2, rate=lambda t: 0.05 / (1 + t))
    assert relative_error(hypergradient(argmin(x, y0, one), x), hypergradient(expected, x)) < tolerance
    assert len(quickly) == before


def test_machine_code_has_the_same_values() -> None:
    x, y0 = variables()
    argmin = pzobo.Argmin(loss, solver=SOLVER, jacobian=PATHS["pzobo"][0], compile=True, audit=False)
    found = hypergradient(argmin(x, y0, torch.ones((), dtype=torch.float64)), x)
    assert relative_error(found, hypergradient(by_hand(x, y0), x)) < 1e-6


@paths
def test_with_prepare_and_a_batch_for_each_step(jacobian: Any, tolerance: float) -> None:
    x, y0 = variables()
    batches = [0.5, 1.0, 1.5, 0.8, 1.2, 0.1]
    expected = by_hand(x, y0, batches)
    if jacobian.only_at_z:  # three numbers and a at each of six batches
        kind = type(jacobian)
        jacobian = kind(**{**vars(jacobian), "directions": 36})
    argmin = pzobo.Argmin(
        lambda z, y, batch: loss({"a": z}, y, batch),
        solver=SOLVER,
        jacobian=jacobian,
        prepare=lambda x, batch: x["a"] * 1,
    )
    y = argmin(x, y0, batches=[torch.tensor(b, dtype=torch.float64) for b in batches])
    assert relative_error(hypergradient(y, x), hypergradient(expected, x)) < tolerance


def test_what_speaks_of_a_solution_gives_zero_for_a_learning_rate_and_the_truth_for_a_weight_decay() -> None:
    """y* does not depend on lr and momentum, but it does on the weight decay: y* = (1 + e^d)^-1 here."""
    x = {"d": torch.tensor(-1.0, dtype=torch.float64), "lr": torch.tensor(0.4, dtype=torch.float64)}
    x = {name: t.requires_grad_() for name, t in x.items()}
    solver = pzobo.GD(lr=lambda x: x["lr"], steps=60, weight_decay=lambda x: x["d"].exp())
    truth = -x["d"].exp() / (1 + x["d"].exp()) ** 2
    for jacobian in (
        pzobo.Implicit(pzobo.CG()),
        pzobo.Implicit(pzobo.CG(), products="difference"),
        pzobo.Implicit(pzobo.FixedPoint(60)),
        pzobo.Implicit(pzobo.Neumann(0.5, 60)),
        pzobo.Implicit(pzobo.Exact()),
        pzobo.Nudged(),
        pzobo.Unrolled(),
    ):
        argmin = pzobo.Argmin(
            lambda x, y, batch: 0.5 * (y - 1).square(), solver=solver, jacobian=jacobian, audit="error"
        )
        y = argmin(x, torch.zeros((), dtype=torch.float64))
        by_decay, by_rate = torch.autograd.grad(y, [x["d"], x["lr"]])
        torch.testing.assert_close(by_decay, truth.detach(), rtol=1e-5, atol=0)
        assert abs(float(by_rate)) <= (1e-9 if isinstance(jacobian, pzobo.Unrolled) else 0.0)


def test_a_fixed_point_that_is_not_reached_says_zero_for_a_learning_rate_too() -> None:
    x, y0 = variables()
    argmin = pzobo.Argmin(loss, solver=SOLVER, jacobian=pzobo.Implicit(pzobo.FixedPoint(50)))
    y = argmin(x, y0, 1.0)
    assert all(not g.any() for g in torch.autograd.grad(outer(y), [x["log_lr"], x["momentum"]]))


def test_adamw_is_refused_where_a_minimum_is_meant() -> None:
    for jacobian in (pzobo.Implicit(pzobo.CG()), pzobo.Nudged()):
        with pytest.raises(RequirementError, match=r"minimum of g.*AdamW.*Unrolled"):
            pzobo.Argmin(loss, solver=pzobo.AdamW(0.1, 3), jacobian=jacobian)


def test_numbers_of_adamw_are_learned() -> None:
    x = {"lr": torch.tensor(0.1, dtype=torch.float64), "decay": torch.tensor(0.5, dtype=torch.float64)}
    x = {name: t.requires_grad_() for name, t in x.items()}
    y0 = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def bowl(x: Any, y: Tensor, batch: Any) -> Tensor:
        return (y - 0.3).pow(4).sum() + y.square().sum()

    solver = pzobo.AdamW(
        lambda x: x["lr"], 5, weight_decay=lambda x: x["decay"], betas=(pzobo.Schedule([0.5, 0.8]), 0.9)
    )
    y, m, v, c1, c2 = y0.clone().requires_grad_(), 0.0, 0.0, 0.0, 0.0
    for t in range(5):
        g = torch.autograd.grad(bowl(x, y, None), y, create_graph=True)[0]
        beta = 0.5 if t == 0 else 0.8
        m, v, c1, c2 = beta * m + (1 - beta) * g, 0.9 * v + 0.1 * g * g, beta * c1 + 1 - beta, 0.9 * c2 + 0.1
        y = y * (1 - x["lr"] * x["decay"]) - x["lr"] * (m / c1) / ((v / c2).sqrt() + 1e-8)
    expected = torch.stack(torch.autograd.grad(y.sum(), list(x.values())))
    found = pzobo.Argmin(bowl, solver=solver, jacobian=pzobo.Unrolled())(x, y0)
    answer = torch.stack(torch.autograd.grad(found.sum(), list(x.values())))
    torch.testing.assert_close(answer, expected, rtol=1e-10, atol=0)


def test_groups_by_name_are_solvers_of_their_own() -> None:
    """Also for a solver with a state whose parts differ, and for names of nested trees and places in a tuple."""
    y0 = {
        "net": (torch.ones(2, dtype=torch.float64), -torch.ones(3, dtype=torch.float64)),
        "bias": torch.ones(1).double(),
    }

    def quartic(x: Any, y: Any, batch: Any) -> Tensor:
        return (y["net"][0] - 2).pow(4).sum() + y["net"][1].square().sum() + y["bias"].exp().sum()

    solver = pzobo.Adam({"net": {0: 0.1, 1: 0.2}, "bias": 0.3}, 7, betas={"net": (0.5, 0.6), "bias": (0.7, 0.8)})
    found = pzobo.Argmin(quartic, solver=solver, jacobian=pzobo.Direct())((), y0)
    leaves = [t.clone().requires_grad_() for t in (*y0["net"], y0["bias"])]
    groups = [
        {"params": [leaf], "lr": lr, "betas": betas}
        for leaf, lr, betas in zip(leaves, (0.1, 0.2, 0.3), ((0.5, 0.6), (0.5, 0.6), (0.7, 0.8)), strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    for _ in range(7):
        optimizer.zero_grad()
        quartic((), {"net": (leaves[0], leaves[1]), "bias": leaves[2]}, None).backward()
        optimizer.step()
    for ours, theirs in zip((*found["net"], found["bias"]), leaves, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "compile"),
    [("unrolled", False), ("unrolled", True), ("pzobo", False), ("pzobo at z", False), ("forward mode", False)],
)
def test_a_learned_rate_with_a_schedule(name: str, compile: bool, quickly: list[Any]) -> None:
    """lr = e^x (1 - t / N), for a part of y; a step of length 0 at the start is a step."""
    x, y0 = variables()
    shape = pzobo.Schedule(lambda t: t / STEPS, times=lambda x: x["log_lr"].exp())
    solver = pzobo.GD({"w": shape, "b": 0.1}, STEPS, weight_decay=lambda x: x["log_decay"].exp())
    y = {key: t.clone().requires_grad_() for key, t in y0.items()}
    for t in range(STEPS):
        value = loss(x, y) + 0.5 * x["log_decay"].exp() * sum(part.square().sum() for part in y.values())
        slopes = dict(zip(y, torch.autograd.grad(value, list(y.values()), create_graph=True), strict=True))
        y = {"w": y["w"] - x["log_lr"].exp() * t / STEPS * slopes["w"], "b": y["b"] - 0.1 * slopes["b"]}
    del x["momentum"]
    jacobian, tolerance = PATHS[name]
    count = 5 if jacobian.level(5, 7) == "x" or name == "pzobo" else 7
    jacobian = jacobian if name == "unrolled" else type(jacobian)(**{**vars(jacobian), "directions": count})
    one = torch.ones((), dtype=torch.float64)
    own: Any = lambda x, y, batch: loss(x, y, batch)  # noqa: E731
    found = pzobo.Argmin(own, solver=solver, jacobian=jacobian, compile=compile)(x, y0, one)
    assert relative_error(hypergradient(found, x), hypergradient(y, x)) < tolerance


# Refusals

X0 = {"lr": torch.tensor(0.1, dtype=torch.float64, requires_grad=True), "a": torch.ones(3, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pzobo.GD(X0["lr"], 3), r'lr is a tensor that requires a gradient.*lr=lambda x: x\["log_lr"\].exp\(\)'),
        (lambda: pzobo.GD({"w": X0["lr"], "b": 0.1}, 3), r"lr\['w'\] is a tensor that requires a gradient"),
        (lambda: pzobo.HeavyBall(0.1, X0["lr"], 3), "momentum is a tensor that requires a gradient"),
        (lambda: pzobo.Adam(0.1, 3, betas=(0.9, X0["lr"])), "betas is a tensor that requires a gradient"),
        (lambda: pzobo.GD(lambda t: 0.1 * 0.9**t, 3), r"function of 't'.*Schedule"),
        (lambda: pzobo.GD({"w": 0.1, "b": -0.1}, 3), r"lr\['b'\]=-0.1: must be a positive"),
        (lambda: pzobo.GD(0.1, 3, weight_decay=-1), r"weight_decay=-1: must be a number in \[0"),
        (lambda: pzobo.GD({}, 3), "names no part"),
        (lambda: pzobo.Schedule("fast"), "function of the step"),
        (lambda: pzobo.Schedule([]), "function of the step"),
        (lambda: pzobo.Schedule([0.1], times=2.0), "times=2.0: give a function of x"),
    ],
)
def test_numbers_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (lambda x: -x["lr"], r"lr=-0.1: must be a positive number. It is so at this x"),
        (lambda x: x["a"], r"shape \(3,\), where one number is expected.*dict of functions.*Schedule"),
        (lambda x: {"w": 0.1, "b": 0.1}, "dict of functions"),
        (pzobo.Schedule(lambda t: 0.1 - 0.05 * t), r"lr=.*positive number. It is so at step 3"),
        ({"w": 0.1}, r"names \['w'\], and none for y\['b'\]"),
        ({"w": 0.1, "b": 0.1, "c": 0.1}, r"number for y\['c'\], which y has not"),
        ({"w": {0: 0.1}, "b": 0.1}, r"none for y\['w'\]"),
    ],
)
def test_values_that_make_no_sense_at_a_call(lr: Any, message: str) -> None:
    argmin = pzobo.Argmin(lambda x, y, batch: y["w"].sum(), solver=pzobo.GD(lr, 4), jacobian=pzobo.Unrolled())
    with pytest.raises(OptionError, match=message):
        argmin(X0, {"w": torch.ones(2).double(), "b": torch.ones(1).double()})


def test_a_function_of_x_without_a_graph_is_said() -> None:
    x = {"lr": torch.tensor(0.1, dtype=torch.float64, requires_grad=True), "c": torch.ones(2).double().requires_grad_()}
    solver = pzobo.GD(lambda x: float(x["lr"]), 4)
    argmin = pzobo.Argmin(lambda x, y, batch: ((y - x["c"]) ** 2).sum(), solver=solver, jacobian=pzobo.Unrolled())
    with pytest.warns(pzobo.errors.AuditWarning, match="got exactly zero from Unrolled, but y.N depends on them"):
        argmin(x, torch.zeros(2).double()).sum().backward()


def test_an_inherited_update_must_say_what_it_does_with_tensors() -> None:
    class Own(pzobo.GD):
        pass

    argmin = pzobo.Argmin(loss, solver=Own(lambda x: x["lr"], 3), jacobian=pzobo.Unrolled())
    with pytest.raises(OptionError, match=r"Own inherits its numbers.*numbers = "):
        argmin(X0, {"w": torch.ones(3).double(), "b": torch.ones(1).double()}, 1.0)


def test_numbers_by_x_are_perturbed_at_x() -> None:
    """z has fewer variables than x, but among them an lr of 0.002, of which mu = 0.01 is five times as much."""
    x = torch.tensor([math.log(0.002), 0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    found = []
    for jacobian in (pzobo.Unrolled(), pzobo.PZOBO(0.01, 4, pzobo.Orthogonal(seed=0), antithetic=True)):
        argmin = pzobo.Argmin(
            lambda z, y, batch: 5 * (y - z).square().sum(),
            prepare=lambda x, batch: x[1:].sum(),
            solver=pzobo.GD(lr=lambda x: x[0].exp(), steps=20),
            jacobian=jacobian,
        )
        found.append(torch.autograd.grad(argmin(x, torch.zeros(1, dtype=torch.float64)).sum(), x)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-6)
