"""Is a solver of your own right? The checks that the library's solvers pass, for any `Iterative`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pzobo.argmin import Argmin
from pzobo.errors import PzoboError
from pzobo.inner.numbers import is_constant
from pzobo.inner.solver import Iterative
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.forward import ForwardMode
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Orthogonal

STEPS = 4

Tree = dict[str, Tensor]


def check_solver(solver: Iterative, *, compile: bool = False, tolerance: float = 1e-6) -> list[str]:
    """Look at a solver of your own on a small smooth problem in float64, whose derivatives autograd knows.

    Its path must be that of a loop over `init` and `update`, written by hand. `Unrolled` in all its forms,
    `ForwardMode` and `PZOBO` must give the derivative that autograd takes through that loop: by x, by y0, and by each
    of its `numbers` that is given as a function of x. `update` must not write into what it gets. `pull` must be the
    transpose of `update`, and `linear` must be true. Two calls with the state carried over must be one long path.

    Args:
        solver: with numbers that are constants; its `steps` are not used.
        compile: look at compiled code too, which takes minutes.
        tolerance: the relative error that is allowed; 1000 times as much for PZOBO, which takes differences.

    Returns:
        What was looked at, one line each.

    Raises:
        AssertionError: what is not right, in a sentence.

    Examples:
        >>> pzobo.testing.check_solver(pzobo.GD(lr=0.1, steps=5))[0]
        'update is a pure function: it writes into nothing, and repeats itself'
    """
    name = type(solver).__name__
    if not isinstance(solver, Iterative):
        raise AssertionError(f"{name} is no Iterative: derive it from pzobo.Iterative.")
    if not solver.constant:
        raise AssertionError(f"{name}: give constants for {solver.numbers}; check_solver makes functions of x of them.")
    solver = solver.alike(steps=STEPS)
    seen = [line for check in (_pure, _transposed, _carried) for line in check(solver)]
    for compiled in (False, True) if compile else (False,):
        seen += _paths(solver, compiled, tolerance)
    return seen


def _loss(x: Tree, y: Tree, batch: Any = None) -> Tensor:
    w, b = y["w"], y["b"]
    bowl = 0.5 * ((1 + x["a"].square()) * (w - 1).square()).sum() + b.square().sum()
    return bowl + 0.3 * (w.sin() * b.sum()).sum() + 0.1 * w.pow(4).sum()


def _problem() -> tuple[Tree, Tree]:
    x = {"a": torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)}
    y0 = {"w": torch.tensor([0.4, -0.8, 0.3], dtype=torch.float64), "b": torch.tensor([0.5], dtype=torch.float64)}
    return x, {name: t.requires_grad_() for name, t in y0.items()}


def _slope(x: Tree, y: Leaves, decay: Any) -> Leaves:
    """The gradient of g at y, with its graph."""
    leaves = tuple(t if t.requires_grad else t.requires_grad_() for t in y)
    penalty = 0.5 * decay * sum((t.square().sum() for t in leaves), torch.zeros((), dtype=torch.float64))
    return torch.autograd.grad(_loss(x, dict(zip("wb", leaves, strict=True))) + penalty, leaves, create_graph=True)


def _by_hand(solver: Iterative, x: Tree, y0: Tree, steps: int) -> Leaves:
    """The path as a plain loop with its graph."""
    y = tuple(y0[name] for name in "wb")
    state = solver.init(y)
    for _ in range(steps):
        y, state = solver.update(_slope(x, y, 0.0 if solver.decoupled else solver.weight_decay), y, state)
    return y


def _random(like: Leaves, seed: int) -> Leaves:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in like)


def _pure(solver: Iterative) -> Iterator[str]:
    _, y0 = _problem()
    y = tuple(t.detach() for t in y0.values())
    given = _random(y, 0), y, solver.init(y)
    kept = [[t.clone() for t in part] for part in given]
    for _ in range(2):
        answers = [solver.update(*given) for _ in range(2)]
    for before, after in zip(kept, given, strict=True):
        if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
            raise AssertionError(f"{type(solver).__name__}.update writes into its arguments: make new tensors.")
    flat = [torch.cat([t.reshape(-1) for part in answer for t in part]) for answer in answers]
    if not torch.equal(*flat):
        raise AssertionError(f"{type(solver).__name__}.update gives another answer to the same question: is it random?")
    for part, expected in zip(answers[0], (y, given[2]), strict=True):
        if [(t.shape, t.dtype) for t in part] != [(t.shape, t.dtype) for t in expected]:
            raise AssertionError(
                f"{type(solver).__name__}.update must return (y, state) with the shapes and dtypes that it got."
            )
    yield "update is a pure function: it writes into nothing, and repeats itself"


def _transposed(solver: Iterative) -> Iterator[str]:
    x, y0 = _problem()
    y = tuple(t.detach() for t in y0.values())
    state = solver.init(y)
    for _ in range(2):  # a state that is not the first one
        y, state = solver.update(tuple(t.detach() for t in _slope(x, y, 0.0)), tuple(t.detach() for t in y), state)
    gradient = tuple(t.detach() for t in _slope(x, tuple(t.detach() for t in y), 0.0))
    at = gradient, tuple(t.detach() for t in y), tuple(t.detach() for t in state)
    bars = _random(y, 1), _random(state, 2)
    expected = torch.func.vjp(solver.update, *at)[1](bars)
    found = solver.pull(*at, *bars)
    _compare(found, expected, 1e-10, f"{type(solver).__name__}.pull is not the transposed derivative of update")
    if solver.linear:
        other = solver.pull(_random(y, 3), *at[1:], *bars)
        _compare(
            other,
            found,
            1e-10,
            f"{type(solver).__name__} is not linear: its pull depends on the gradient; linear = False",
        )
        nothing = [trees.zeros(part) for part in at]
        if any(t.any() for part in solver.update(*nothing) for t in part):
            raise AssertionError(f"{type(solver).__name__} is not linear: it moves a y of zeros; linear = False")
    yield "pull is the transpose of update" + (", and does not need the gradient" if solver.linear else "")


def _carried(solver: Iterative) -> Iterator[str]:
    x, y0 = _problem()
    start = {name: t.detach() for name, t in y0.items()}
    argmin = _argmin(solver, Unrolled(), False)
    with torch.no_grad():
        half = argmin(x, start)
        twice = argmin(x, half, state=argmin.last.state)
        whole = _argmin(solver.alike(steps=2 * STEPS), Unrolled(), False)(x, start)
    _compare((twice,), (whole,), 1e-12, f"{type(solver).__name__}: two calls with the state carried are not one path")
    yield "the state carried from call to call continues the path"


def _paths(solver: Iterative, compiled: bool, tolerance: float) -> Iterator[str]:
    x, y0 = _problem()
    varying, own = _with_functions(solver, x)
    v = {"w": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), "b": torch.tensor([1.5], dtype=torch.float64)}
    inputs = [*x.values(), *y0.values()]
    y = _by_hand(own, x, y0, STEPS)
    exact = torch.autograd.grad(y, inputs, tuple(v.values()), allow_unused=True, materialize_grads=True)
    p = sum(t.numel() for t in inputs)
    jacobians: list[tuple[Jacobian, float]] = [
        (Unrolled(), 1.0),
        (Unrolled(checkpoint=True), 1.0),
        (Unrolled(products="forward"), 1.0),
        (ForwardMode(p, Orthogonal(seed=0), shrink=False, at="x"), 1.0),
        (PZOBO(1e-5, p, Orthogonal(seed=0), shrink=False, at="x", antithetic=True), 1000.0),
    ]
    where = " compiled" if compiled else ""
    for jacobian, factor in jacobians:
        what = f"{type(solver).__name__} with {jacobian!r}{where}"
        try:
            found = _argmin(varying, jacobian, compiled)(x, y0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of no response, where there is none
                answer = torch.autograd.grad(list(found.values()), inputs, list(v.values()), materialize_grads=True)
        except PzoboError as error:
            raise AssertionError(f"{what} failed: {error}") from error
        _compare((found["w"], found["b"]), y, tolerance, f"{what}: the path is not that of a loop over update")
        _compare(answer, exact, tolerance * factor, f"{what}: the derivative is not that of a loop over update")
    learned = [name for name in x if name != "a"]
    yield f"{len(jacobians)} Jacobians{where} agree with autograd by x and y0" + (
        f", and by {', '.join(learned)}" if learned else ""
    )


def _with_functions(solver: Iterative, x: Tree) -> tuple[Iterative, Iterative]:
    """The solver with functions of x for its numbers, and with the tensors that they give; x gets these."""
    functions, tensors = {}, {}
    for name in solver.numbers if "numbers" in vars(type(solver)) else ():
        value = getattr(solver, name)
        if isinstance(value, float) and value > 0 and is_constant(value):
            x[name] = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            functions[name], tensors[name] = _getter(name), x[name]
    return solver.alike(**functions), solver.alike(**tensors)


def _getter(name: str) -> Callable[[Tree], Tensor]:
    return lambda x: x[name]


def _argmin(solver: Iterative, jacobian: Jacobian, compiled: bool) -> Argmin:
    return Argmin(_loss, solver=solver, jacobian=jacobian, compile=compiled, check=False, audit=False)


def _compare(found: Any, expected: Any, tolerance: float, what: str) -> None:
    a, b = (torch.cat([t.detach().reshape(-1) for t in trees.Plan.take(tree)[0]]) for tree in (found, expected))
    error, size = float((a - b).norm()), float(b.norm())
    if not error <= tolerance * max(size, 1e-3):
        raise AssertionError(f"{what}: the relative error is {error / size if size else error:.1e}.")
