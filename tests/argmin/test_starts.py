"""Does y0 get the gradient of y^N, where it asks for one, and does a solver's state go from call to call?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import OptionError, StructureError
from pzobo.inner import compiled
from tests.helpers import bowl, descend, leaf, normal, relative_error

EXACT = {
    "unrolled": (pzobo.Unrolled(), 1e-12),
    "checkpoint": (pzobo.Unrolled(checkpoint=True), 1e-12),
    "forward products": (pzobo.Unrolled(products="forward"), 1e-12),
    "differences": (pzobo.Unrolled(products="difference"), 1e-7),
    "pzobo": (pzobo.PZOBO(1e-5, 6, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True), 1e-6),
    "pzobo at z": (pzobo.PZOBO(1e-5, 6, pzobo.Orthogonal(seed=0), shrink=False, antithetic=True, at="z"), 1e-6),
    "pzobo, vmap": (pzobo.PZOBO(1e-5, 6, pzobo.Orthogonal(), shrink=False, antithetic=True, batching="vmap"), 1e-6),
    "forward mode": (pzobo.ForwardMode(6, pzobo.Orthogonal(seed=0), shrink=False), 1e-12),
    "auto": (pzobo.Auto(), 1e-2),
}
exact = pytest.mark.parametrize(("jacobian", "tolerance"), EXACT.values(), ids=EXACT)


@exact
def test_y0_gets_the_gradient_of_the_path(jacobian: Any, tolerance: float) -> None:
    x, y0, v = leaf(3), leaf(3, seed=1), normal(3, seed=2)
    y = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 4), jacobian=jacobian, audit="error")(x, y0)
    path = y0
    for _ in range(4):
        path = path - 0.1 * torch.autograd.grad(bowl(x, path), path, create_graph=True)[0]
    truth, found = (torch.cat(torch.autograd.grad(t, [x, y0], v)) for t in (path, y))
    assert truth[3:].abs().min() > 0.01
    assert relative_error(found, truth) < tolerance


@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(), pzobo.PZOBO(1e-5, 2, pzobo.Orthogonal(seed=0), shrink=False)])
def test_y0_may_be_all_that_is_learned(jacobian: Any) -> None:
    """MAML: there are no outer variables but the start. y^N = (1 - lr)^N y0 here."""
    y0 = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(lambda x, y, batch: 0.5 * y.square().sum(), solver=pzobo.GD(0.1, 3), jacobian=jacobian)
    found = torch.autograd.grad(argmin((), y0).sum(), y0)[0]
    torch.testing.assert_close(found, torch.full((2,), 0.9**3, dtype=torch.float64), rtol=1e-4, atol=0)


def test_starts_and_states_where_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graph.forward)
    x, y0, v = leaf(3), leaf(3, seed=1), normal(3, seed=2)
    for jacobian in (pzobo.Unrolled(), pzobo.ForwardMode(6, pzobo.Orthogonal(seed=0), shrink=False)):
        found = []
        for compile in (False, True):
            solver = pzobo.HeavyBall(0.1, 0.8, 3)
            argmin = pzobo.Argmin(bowl, solver=solver, jacobian=jacobian, compile=compile, audit=False)
            argmin(x, y0)
            y = argmin(x, y0, state=argmin.last.state)
            found.append(torch.cat(torch.autograd.grad(y, [x, y0], v)))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_pzobo_says_when_its_noise_is_that_of_a_start_which_may_not_be_meant() -> None:
    """The parameters of a module ask for gradients, whether they are to be learned or not."""
    y0 = nn.Parameter(normal(100, seed=1))
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - x).square().sum(), solver=pzobo.GD(0.1, 4), jacobian=pzobo.PZOBO()
    )
    with pytest.warns(pzobo.errors.AuditWarning, match="100 of them are in y0, which requires a gradient: detach it"):
        argmin(x, y0).sum().backward()


def test_its_graph_goes_on_and_parts_without_one_are_constants() -> None:
    w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    y0 = {"a": w.exp().expand(2) * 1, "b": torch.ones(1, dtype=torch.float64)}

    def inner_loss(x: Any, y: Any, batch: Any) -> Tensor:
        return 0.5 * (y["a"].square().sum() + y["b"].square().sum())

    y = pzobo.Argmin(inner_loss, solver=pzobo.GD(0.1, 3), jacobian=pzobo.Unrolled())((), y0)
    found = torch.autograd.grad(y["a"].sum() + y["b"].sum(), w)[0]
    torch.testing.assert_close(found, 2 * 0.9**3 * w.detach().exp(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "jacobian",
    [pzobo.Implicit(pzobo.CG()), pzobo.Nudged(), pzobo.Direct(), pzobo.Unrolled(last=2)],
    ids=["implicit", "nudged", "direct", "truncated"],
)
def test_y0_gets_zero_from_the_others(jacobian: Any) -> None:
    x, y0 = leaf(3), leaf(3, seed=1)
    y = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 4), jacobian=jacobian, audit=False)(x, y0)
    assert torch.equal(torch.autograd.grad(y.sum(), y0)[0], torch.zeros(3, dtype=torch.float64))


def test_y0_of_a_black_box_and_of_a_closed_form() -> None:
    x, y0 = leaf(3), leaf(3, seed=1)
    jacobian = pzobo.PZOBO(1e-4, 6, pzobo.Orthogonal(seed=0), shrink=False)
    box = pzobo.Argmin(None, solver=pzobo.BlackBox(lambda x, y0, batch: 2 * x + 3 * y0), jacobian=jacobian)
    found = torch.autograd.grad(box(x, y0).sum(), [x, y0])
    torch.testing.assert_close(torch.cat(found), torch.tensor([2.0] * 3 + [3.0] * 3).double(), rtol=1e-6, atol=0)
    formula = pzobo.Argmin(None, solver=pzobo.ClosedForm(lambda z, batch: z.exp()), jacobian=pzobo.Unrolled())
    by_x, by_start = torch.autograd.grad(formula(x, y0).sum(), [x, y0])
    torch.testing.assert_close(by_x, x.detach().exp())
    assert not by_start.any()


@pytest.mark.parametrize(
    "jacobian", [pzobo.Unrolled(), pzobo.ForwardMode(), pzobo.PZOBO(), pzobo.Direct(), pzobo.Auto()], ids=repr
)
def test_a_closed_form_needs_no_loss(jacobian: Any) -> None:
    x = leaf(3)
    y = pzobo.Argmin(None, solver=pzobo.ClosedForm(lambda z, batch: z.exp()), jacobian=jacobian)(x, normal(3))
    torch.testing.assert_close(y.detach(), x.detach().exp())
    y.sum().backward()
    if isinstance(jacobian, pzobo.Unrolled | pzobo.Auto):
        torch.testing.assert_close(x.grad, x.detach().exp(), rtol=1e-2, atol=0)


# The state


SOLVERS = [pzobo.HeavyBall(0.1, 0.9, 3), pzobo.Adam(0.1, 3), pzobo.AdamW(0.1, 3), pzobo.Adam({"a": 0.1, "b": 0.2}, 3)]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: repr(solver)[:20])
@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(), pzobo.Unrolled(checkpoint=True), pzobo.PZOBO(), pzobo.Direct()])
def test_a_state_that_is_carried_goes_on(solver: Any, jacobian: Any) -> None:
    x, y0 = leaf(3), {"a": normal(3, seed=1), "b": normal(3, seed=2)}

    def both(x: Tensor, y: Any, batch: Any) -> Tensor:
        return bowl(x, y["a"]) + bowl(x, y["b"])

    argmin = pzobo.Argmin(both, solver=solver, jacobian=jacobian)
    y = argmin(x, y0)
    y = argmin(x, {name: t.detach() for name, t in y.items()}, state=argmin.last.state)
    whole = pzobo.Argmin(both, solver=solver.with_steps(6), jacobian=pzobo.Direct())(x, y0)
    for name in y0:
        torch.testing.assert_close(y[name].detach(), whole[name].detach(), rtol=1e-14, atol=0)


def test_the_derivative_of_a_path_that_goes_on_is_that_of_its_steps() -> None:
    x, y0, v = leaf(3), normal(3, seed=1), normal(3, seed=2)
    argmin = pzobo.Argmin(bowl, solver=pzobo.HeavyBall(0.1, 0.9, 3), jacobian=pzobo.Unrolled())
    first = argmin(x, y0).detach()
    momentum = argmin.last.state[0]
    found = {}
    for name, (jacobian, _) in EXACT.items():
        if name != "auto":
            argmin.jacobian = jacobian
            found[name] = torch.autograd.grad(argmin(x, first, state=(momentum,)), x, v)[0]
    y, b = first.requires_grad_(), momentum
    for _ in range(3):
        b = 0.9 * b + torch.autograd.grad(bowl(x, y), y, create_graph=True)[0]
        y = y - 0.1 * b
    truth = torch.autograd.grad(y, x, v)[0]
    without = torch.autograd.grad(descend(lambda y: bowl(x, y), first, 0.1, 3), x, v)[0]
    assert relative_error(without, truth) > 0.01
    for name, answer in found.items():
        assert relative_error(answer, truth) < EXACT[name][1], name


def test_a_state_of_something_else_is_refused() -> None:
    x, y0 = leaf(3), normal(3, seed=1)
    argmin = pzobo.Argmin(bowl, solver=pzobo.Adam(0.1, 3), jacobian=pzobo.Unrolled())
    argmin(x, y0)
    state = argmin.last.state
    argmin.solver = pzobo.HeavyBall(0.1, 0.9, 3)
    with pytest.raises(StructureError, match=r"state= is not one of HeavyBall.*argmin.last.state"):
        argmin(x, y0, state=state)
    formula = pzobo.Argmin(None, solver=pzobo.ClosedForm(lambda z, batch: z), jacobian=pzobo.Unrolled())
    with pytest.raises(OptionError, match="ClosedForm makes none"):
        formula(x, y0, state=())
