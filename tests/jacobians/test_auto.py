"""Does Auto take the fastest estimator that is right, and say so?"""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.jacobians.auto import Tried, candidates, choose
from pzobo.problems import linear_hr, quadratic
from tests.helpers import relative_error
from tests.jacobians.audit_problems import SMOOTH
from tests.jacobians.wrong_problems import adam_is_no_slope


@pytest.mark.parametrize("name", SMOOTH)
def test_its_answer_is_within_its_accuracy(name: str) -> None:
    case = SMOOTH[name]()
    argmin = case.argmin(pzobo.Auto(), audit="error")
    exact = case.hypergradient(case.argmin(pzobo.Unrolled(), audit=False))
    for _ in range(2):  # by trying, and then by what was chosen
        assert relative_error(case.hypergradient(argmin), exact) < 1.1e-2
    chosen = argmin.jacobian.chosen  # type: ignore[attr-defined]
    assert isinstance(chosen, pzobo.Jacobian)
    assert argmin.jacobian.why.startswith(type(chosen).__name__)


def tried(name: str, value: float, seconds: float) -> Tried:
    return Tried(name, (torch.tensor([value, 0.0]),), seconds)


def test_the_fastest_that_is_right_is_taken() -> None:
    all_of_them = [tried("slow", 1.0, 3.0), tried("right", 1.005, 2.0), tried("wrong", 1.1, 1.0)]
    name, why = choose(all_of_them, ("slow", (torch.tensor([1.0, 0.0]),)), accuracy=1e-2)
    assert name == "right"
    assert (
        why == "right: 2e+03 ms a pass, 5.0e-03 from slow; slow takes 1.5 times as long; faster but off: wrong (10%)."
    )
    assert choose(all_of_them, ("slow", (torch.tensor([1.0, 0.0]),)), accuracy=1e-3)[0] == "slow"


def test_where_a_derivative_is_no_slope_the_slope_is_measured() -> None:
    """The exact derivative of Adam's path is not confirmed by paths, so that of PZOBO counts."""
    case = adam_is_no_slope().case
    argmin = case.argmin(pzobo.Auto())
    case.hypergradient(argmin)
    assert isinstance(argmin.jacobian.chosen, pzobo.PZOBO)  # type: ignore[attr-defined]


def test_a_black_box_is_measured_and_called_no_more_than_needed() -> None:
    calls = 0

    def box(x: np.ndarray, y0: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return x**2

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(box), jacobian=pzobo.Auto())
    argmin(x, torch.zeros(3)).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([2.0, 4.0, 6.0]), rtol=1e-3, atol=0)
    assert calls <= 1 + 2 * 3 + 6  # the answer, both ways along three directions, and what the audit asks
    assert "PZOBO(directions=3" in argmin.jacobian.why


def test_numbers_of_the_solver_are_not_measured_at_z() -> None:
    """There mu = 0.01 is five times an lr of 0.002: y^N = 1 - (1 - 10 lr)^20 would be measured 68 % off."""
    seen: list[str] = []

    class Spy(pzobo.Auto):
        def run(self, inner: Any) -> Any:
            seen.extend(name for name, _ in candidates(inner))
            return super().run(inner)

    solver = pzobo.GD(lr=lambda x: x.exp(), steps=20)
    x = torch.tensor(0.002, dtype=torch.float64).log().requires_grad_()
    y0 = torch.zeros(1, dtype=torch.float64)
    exact = 0.002 * 200 * (1 - 0.02) ** 19
    found = []
    for jacobian in (Spy(), pzobo.PZOBO(0.01, 2, pzobo.Orthogonal(seed=0), antithetic=True, at="z")):
        argmin = pzobo.Argmin(lambda x, y, batch: 5 * (y - 1).square().sum(), solver=solver, jacobian=jacobian)
        found.append(torch.autograd.grad(argmin(x, y0).sum(), x)[0].item() / exact)
    assert found[0] == pytest.approx(1, abs=1e-2)
    assert found[1] == pytest.approx(1.68, abs=0.01)
    assert "Unrolled()" in seen
    assert not any(name.startswith("PZOBO") for name in seen)


def test_a_measured_slope_that_other_paths_deny_is_said() -> None:
    """y = x + .05 sin(500 (x - 3)): between x +- mu its slope is -3.8, over longer steps about 1."""

    def box(x: Tensor, y0: Any, batch: Any) -> Any:
        return x + 0.05 * (500 * (x - 3)).sin()

    x = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(box), jacobian=pzobo.Auto())
    with pytest.warns(pzobo.errors.AuditWarning, match="by PZOBO.* does not agree with the paths themselves"):
        argmin(x, torch.zeros(1, dtype=torch.float64)).sum().backward()


def test_its_choice_is_kept_in_checkpoints_and_copies(tmp_path: Path) -> None:
    problem = linear_hr()
    method = pzobo.Method(pzobo.GD(lr=1e-3, steps=5))
    short = pzobo.fit(problem, method, steps=3, lr=0.01, out=tmp_path / "run", progress=False)
    longer = pzobo.fit(problem, method, steps=6, lr=0.01, out=tmp_path / "run", resume=True, progress=False)
    assert short.chosen
    assert longer.chosen == short.chosen
    assert json.loads((tmp_path / "run" / "result.json").read_text())["chosen"] == short.chosen
    jacobian = pzobo.Auto(accuracy=0.1)
    assert repr(pickle.loads(pickle.dumps(copy.deepcopy(jacobian)))) == "Auto(accuracy=0.1)"


def test_it_chooses_again_when_an_audit_fails() -> None:
    """A first problem that CG solves; then one on which nothing is solved."""
    problem = quadratic()
    auto = pzobo.Auto()
    argmin = problem.argmin(pzobo.GD(0.05, 400), auto)
    x = problem.start()
    problem.objective(argmin, x).backward()
    first = auto.chosen
    auto.chosen, auto._name = pzobo.Implicit(pzobo.CG(1)), "Implicit(CG(50))"
    argmin.solver = pzobo.GD(0.05, 2)  # far from solved, and asked anew
    with pytest.warns(pzobo.errors.AuditWarning):
        problem.objective(argmin, problem.start()).backward()
    assert auto.chosen is None
    x = problem.start()
    problem.objective(argmin, x).backward()
    exact = problem.start()
    problem.objective(problem.argmin(pzobo.GD(0.05, 2), pzobo.Unrolled()), exact).backward()
    assert relative_error(x.grad, exact.grad) < 1e-2
    assert first is not None


def test_accuracy_must_be_positive() -> None:
    with pytest.raises(pzobo.errors.OptionError, match="accuracy"):
        pzobo.Auto(accuracy=0)


def test_every_candidate_is_the_line_that_names_it() -> None:
    case = SMOOTH["scalar quadratic"]()

    class Spy(pzobo.Unrolled):
        def run(self, inner: Any) -> Any:
            for name, jacobian in candidates(inner):
                made: Any = eval(name, dict(vars(pzobo)))
                assert type(made) is type(jacobian)
            return super().run(inner)

    found: Tensor = case.hypergradient(case.argmin(Spy()))
    assert torch.isfinite(found).all()
