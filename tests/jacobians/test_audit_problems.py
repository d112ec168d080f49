"""Are the problems that the audit is tried on what they say: smooth with exact slopes, or wrong?"""

from __future__ import annotations

import pytest
import torch

import pzobo
from tests.jacobians.audit_problems import SMOOTH
from tests.jacobians.wrong_problems import WRONG, adam_is_no_slope


@pytest.mark.parametrize("name", SMOOTH)
def test_the_exact_adjoint_of_a_smooth_problem_is_its_slope(name: str) -> None:
    """At the scale of an outer step and below: .1 and .03. In float32 f itself is rounded."""
    case = SMOOTH[name]()
    exact = case.hypergradient(case.argmin(pzobo.Unrolled()))
    length = float(exact.norm())
    ratios = [case.slope(exact / exact.norm(), mu) / length for mu in (0.1, 0.03)]
    assert ratios == pytest.approx([1, 1], abs=0.01)
    assert ratios[1] == pytest.approx(1, abs=1e-3)


def test_there_are_twenty_in_both_precisions() -> None:
    cases = [make() for make in SMOOTH.values()]
    assert len(cases) >= 20
    sizes = [c.hypergradient(c.argmin(pzobo.Direct())).numel() for c in cases]
    assert (min(sizes), max(sizes)) == (1, 3000)
    assert len([c for c in cases if c.prepare is not None]) >= 4
    assert len([c for c in cases if c.batches is not None]) >= 2


@pytest.mark.parametrize("name", sorted(set(WRONG) - {"Adam is no slope"}))
def test_a_wrong_case_is_wrong(name: str) -> None:
    wrong = WRONG[name]()
    case = wrong.case
    exact = case.hypergradient(case.argmin(wrong.exact))
    with wrong.conditions():
        found = case.hypergradient(case.argmin(wrong.jacobian, check=False))
    assert torch.isfinite(exact).all()
    assert not float((found - exact).norm()) < 0.4 * float(exact.norm())


@pytest.mark.parametrize(("eps", "low", "high"), [(1e-8, -0.2, 0.8), (1e-2, 0.9, 1.1)])
def test_through_adam_an_exact_derivative_may_be_no_slope(eps: float, low: float, high: float) -> None:
    wrong = adam_is_no_slope(eps)
    case = wrong.case
    found = case.hypergradient(case.argmin(wrong.jacobian))
    torch.testing.assert_close(found, case.hypergradient(case.argmin(pzobo.Unrolled())), rtol=1e-3, atol=1e-6)
    assert low < case.slope(found / found.norm(), 0.1) / float(found.norm()) < high
