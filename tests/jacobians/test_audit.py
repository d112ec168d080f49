"""Does the audit see what is wrong, and never blame what is right? And does it leave no trace?"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import AuditError, AuditWarning
from tests.jacobians.audit_problems import SMOOTH
from tests.jacobians.wrong_problems import WRONG

EXACT: dict[str, Any] = {
    "autodiff": pzobo.Unrolled(),
    "checkpoint": pzobo.Unrolled(checkpoint=True),
    "forward": pzobo.Unrolled(products="forward"),
    "difference": pzobo.Unrolled(products="difference"),
    "ForwardMode": pzobo.ForwardMode(directions=4, sampler=pzobo.Orthogonal(seed=0)),
    "CG": pzobo.Implicit(pzobo.CG(200, tol=1e-4, damping=1e-6)),
}


def fits(jacobian: Any, case: Any) -> bool:
    try:
        jacobian.check(case.solver)
    except pzobo.errors.RequirementError:
        return False
    return True


@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_exact_is_never_blamed(name: str) -> None:
    case = SMOOTH[name]()
    for kind, jacobian in EXACT.items():
        if not fits(jacobian, case):
            continue
        argmin = case.argmin(jacobian)
        with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as said:
            try:
                case.hypergradient(argmin)
            except (pzobo.errors.CurvatureError, pzobo.errors.RequirementError):
                # y^N is no minimum, as CG says itself; or torch has no forward derivative of BatchNorm in float32.
                assert kind in ("CG", "ForwardMode")
                continue
        texts = [str(w.message) for w in said if w.category is AuditWarning]
        blamed = [text for text in texts if "signal" not in text]
        if kind == "CG":  # what CG leaves of its system is its own business, and true
            blamed = [text for text in blamed if "linear system" not in text]
        assert not blamed, (kind, blamed)
        audit = argmin.last.audit
        assert audit is not None
        assert audit.asked == 1
        if kind in ("autodiff", "checkpoint", "forward"):
            assert audit.holds
            assert audit.numbers["ratio"] == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_seen(name: str) -> None:
    """Each in the form that was wrong without a word, with the old lengths of probes."""
    wrong = WRONG[name]()
    with wrong.conditions():
        argmin = wrong.case.argmin(wrong.jacobian, check=False)
        with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as said:
            found = wrong.case.hypergradient(argmin)
        if torch.isfinite(found).all():
            assert [w for w in said if w.category is AuditWarning], argmin.last.audit
            assert not argmin.last.audit.holds  # type: ignore[union-attr]
            with pytest.raises(AuditError):
                wrong.case.hypergradient(wrong.case.argmin(wrong.jacobian, check=False, audit="error"))
        else:
            with pytest.raises(pzobo.errors.PzoboError):
                wrong.case.hypergradient(wrong.case.argmin(wrong.jacobian))


@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.Unrolled(),
        pzobo.Unrolled(products="difference"),
        pzobo.Implicit(pzobo.CG(5), products="difference"),
        pzobo.Nudged(),
        pzobo.ForwardMode(directions=2),
        pzobo.PZOBO(directions=2),
    ],
    ids=lambda j: f"{type(j).__name__} {getattr(j, 'products', '')}",
)
@pytest.mark.filterwarnings("ignore::pzobo.errors.AuditWarning")
def test_it_leaves_no_trace(jacobian: Any) -> None:
    """Not in results, in random numbers, or in the buffers of BatchNorm: bit for bit, over five passes."""

    def run(audit: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        # torch has no forward derivative of what BatchNorm writes.
        norm = torch.nn.Identity() if isinstance(jacobian, pzobo.ForwardMode) else torch.nn.BatchNorm1d(3)
        net = torch.nn.Sequential(norm, torch.nn.Dropout(0.2))
        rows = torch.randn(8, 3)

        def inner_loss(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
            return ((net(rows) @ y - 1).square().mean() + (x.exp() * y.square()).sum()) * 0.5

        solver = pzobo.GD(0.1, 4)
        argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=jacobian, audit=audit, check=False)
        seen: list[torch.Tensor] = []
        x = torch.zeros(3, requires_grad=True)
        for _ in range(5):
            x.grad = None
            argmin(x, torch.ones(3)).square().sum().backward()
            assert x.grad is not None
            seen += [x.grad.clone(), torch.rand(2), *(b.clone() for b in net.buffers())]
            with torch.no_grad():
                x -= 0.1 * x.grad
        assert (argmin.last.audit is not None) == audit
        return seen

    for with_it, without in zip(run(True), run(False), strict=True):
        assert torch.equal(with_it, without)


def test_passes_that_are_looked_at() -> None:
    calls = 0

    def inner_loss(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return 0.5 * (y - x).square().sum()

    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(0.5, 3), jacobian=pzobo.Unrolled())
    x = torch.ones(2, requires_grad=True)
    costs, asked = [], []
    for _ in range(9):
        before = calls
        argmin(x, torch.zeros(2)).sum().backward()
        costs.append(calls - before)
        assert argmin.last.audit is not None
        asked.append(argmin.last.audit.asked)
    assert asked == [1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert costs[2] == costs[4] == costs[8] == 3
    assert costs[3] == 3 + 5 * 3  # the same path again, two along the answer, two in a random direction


def test_a_fault_is_said_once_of_each_kind() -> None:
    argmin = pzobo.Argmin(
        lambda x, y, batch: (x * y.detach() * y).sum(), solver=pzobo.GD(0.3, 1), jacobian=pzobo.Nudged()
    )
    said = []
    for _ in range(4):
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as caught:
            argmin(x, torch.ones(3, dtype=torch.float64)).sum().backward()
        said.append(len(caught))
    assert said[0] >= 1
    assert said[1:] == [0, 0, 0]


@pytest.mark.parametrize(("error", "ratio"), [(0.53, 0.78), (0.1, 0.99), (0.0, 1.0)])
def test_what_a_ratio_means(error: float, ratio: float) -> None:
    """An orthogonal error e on the answer g + e: the slope along it, over its length, is 1 / (1 + |e|^2 / |g|^2)."""

    class Off(pzobo.Unrolled):
        def run(self, inner: Any) -> Any:
            y, pullback = super().run(inner)

            def wrong(v: Any) -> Any:
                (g,) = pullback(v)
                orthogonal = torch.stack([g[1], -g[0]])
                return (g + error * orthogonal,)

            return y, wrong

    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(lambda x, y, batch: 0.5 * (y - x).square().sum(), solver=pzobo.GD(0.5, 9), jacobian=Off())
    with warnings.catch_warnings(action="ignore", category=AuditWarning):
        (argmin(x, torch.zeros(2, dtype=torch.float64)) * torch.tensor([1.0, 3.0])).sum().backward()
    audit = argmin.last.audit
    assert audit is not None
    assert audit.numbers["ratio"] == pytest.approx(ratio, abs=0.005)
    assert audit.holds == (ratio >= 0.9)
    if error == 0.53:
        assert "an error of 53%" in audit.sentence


def test_signal_and_rounding_of_random_directions() -> None:
    x = torch.ones(99, dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (y - x).square().sum(), solver=pzobo.GD(0.5, 9), jacobian=pzobo.PZOBO(directions=1)
    )
    with pytest.warns(AuditWarning, match="noise of random directions"):
        argmin(x, torch.zeros(99, dtype=torch.float64)).sum().backward()
    numbers = argmin.last.audit.numbers  # type: ignore[union-attr]
    assert numbers["signal"] == pytest.approx(1 / 101)  # r = (p + 1) / Q
    assert numbers["rounding"] > 1e10


def test_a_linear_system_that_is_not_solved_is_said() -> None:
    curvature = torch.linspace(0.01, 1, 20, dtype=torch.float64)
    x = torch.ones(20, dtype=torch.float64, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, batch: 0.5 * (curvature * (y - x).square()).sum(),
        solver=pzobo.GD(1.0, 2000),
        jacobian=pzobo.Implicit(pzobo.Neumann(1.0, 5)),
    )
    with pytest.warns(AuditWarning, match="linear system"):
        argmin(x, torch.zeros(20, dtype=torch.float64)).sum().backward()
    left = ((1 - curvature) ** 5).norm() / math.sqrt(20)
    assert argmin.last.audit.numbers["residual"] == pytest.approx(float(left))  # type: ignore[union-attr]


def test_what_audit_may_be() -> None:
    with pytest.raises(pzobo.errors.OptionError, match="audit="):
        pzobo.Argmin(None, solver=pzobo.GD(0.1, 1), jacobian=pzobo.Unrolled(), audit="loud")  # type: ignore[arg-type]
