"""Does the audit see what is wrong, and never blame what is right? And does it leave no trace?"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import AuditError, AuditWarning
from pzobo.inner.probe import Probe
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
            except pzobo.errors.CurvatureError:
                continue  # y^N is no minimum there: CG says so itself
        blamed = [str(w.message) for w in said if "signal" not in str(w.message)]
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
def test_what_is_wrong_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in the form that was wrong without a word, with the old lengths of probes."""
    wrong = WRONG[name]()
    if wrong.probe is not None:
        monkeypatch.setattr("pzobo.inner.kernel.probe_size", wrong.probe)
        monkeypatch.setattr(Probe, "adjust", lambda *args: None)
        monkeypatch.setattr(Probe, "lengths", lambda self, eps: (1.0, 1.0))
    with wrong.around():
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
