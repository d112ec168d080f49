"""Do the names of version 0.1 still work, and say which name to use?"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo import deprecated
from pzobo.errors import OptionError
from pzobo.problems import quadratic
from tests.helpers import bowl

GD = pzobo.GD(0.1, 3)


def test_loss_of_an_argmin() -> None:
    with pytest.warns(DeprecationWarning, match="loss= is now inner_loss="):
        argmin = pzobo.Argmin(loss=bowl, solver=GD, jacobian=pzobo.Unrolled())
    with pytest.warns(DeprecationWarning, match=r"Argmin\.inner_loss"):
        assert argmin.loss is bowl
    argmin(torch.ones(3), torch.zeros(3))
    with pytest.warns(DeprecationWarning, match=r"Solution\.inner_loss"):
        assert argmin.last.loss == argmin.last.inner_loss


def test_loss_of_a_problem() -> None:
    with pytest.warns(DeprecationWarning, match="loss= is now inner_loss="):
        problem = pzobo.Problem(loss=bowl, outer_loss=bowl, x0=torch.ones(3), y0=torch.zeros(3))
    with pytest.warns(DeprecationWarning, match=r"Problem\.inner_loss"):
        assert problem.loss is bowl
    assert problem.inner_loss is bowl
    with pytest.raises(OptionError, match="Got both inner_loss= and loss="):
        dataclasses.replace(problem, loss=bowl)


def test_an_objective_that_defines_loss() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.loss\(\) is now outer_loss\(\)"):

        class Old(pzobo.Objective):
            def __init__(self) -> None:
                self.x = torch.ones(2, requires_grad=True)

            def loss(self) -> Tensor:
                return self.x.square().sum()

    assert Old().outer_loss().item() == 2


def test_the_loss_of_an_objective() -> None:
    objective = pzobo.Method(GD, pzobo.Unrolled()).start(quadratic(3, 3))
    with pytest.warns(DeprecationWarning, match=r"outer_loss\(\)"):
        found = objective.loss()
    assert torch.equal(found, objective.outer_loss())


def test_around_the_objective_is_hozog() -> None:
    options: dict[str, Any] = {"mu": 0.01, "directions": 3, "shrink": False, "antithetic": True}

    with pytest.warns(DeprecationWarning, match=r"pzobo\.HOZOG"):
        old = pzobo.Method(GD, pzobo.PZOBO(**options), around="objective", warm_start=True)
    new = pzobo.HOZOG(GD, **options, warm_start=True)
    found = []
    for method in (old, new):
        torch.manual_seed(0)
        objective = method.start(quadratic(3, 3), 0)
        objective.outer_loss().backward()
        assert objective.argmin.jacobian == pzobo.Direct()
        found.append(objective.x.grad)
    assert torch.equal(*found)
    with (
        pytest.warns(DeprecationWarning, match="HOZOG"),
        pytest.raises(OptionError, match="at x"),
    ):
        pzobo.Method(GD, pzobo.PZOBO(at="z"), around="objective")


@pytest.mark.parametrize(("old", "name"), [("objective", "Objective"), ("directions", "Sampler"), ("fit", "Fit")])
def test_modules_that_moved(old: str, name: str) -> None:
    module = importlib.import_module(f"pzobo.{old}")
    with pytest.warns(DeprecationWarning, match=rf"pzobo\.{old} is now pzobo\.{deprecated.MODULES[old]}"):
        assert getattr(module, name) is getattr(pzobo, name)


def test_every_module_that_moved_is_there() -> None:
    for new in deprecated.MODULES.values():
        importlib.import_module(f"pzobo.{new}")


def test_a_state_of_version_0_1_is_taken() -> None:
    def make() -> pzobo.Argmin:
        return pzobo.Argmin(bowl, solver=GD, jacobian=pzobo.PZOBO(sampler=pzobo.Gaussian(seed=3)))

    argmin, other = make(), make()
    x = torch.ones(3, requires_grad=True)
    argmin(x, torch.zeros(3)).sum().backward()
    state = argmin.state_dict()
    other.load_state_dict({"asked": state["asked"], **state["jacobian"]})
    first, second = (torch.autograd.grad(a(x, torch.zeros(3)).sum(), x)[0] for a in (argmin, other))
    assert torch.equal(first, second)
