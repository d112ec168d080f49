"""Is an answer finite, and right? What is found is noted; faults are said once of each kind, or are errors."""

from __future__ import annotations

import warnings
from typing import Literal

from pzobo.errors import AuditError, AuditWarning, DivergenceError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Audit, Finding
from pzobo.jacobians.audit import repeat_finding
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.unanswered import unanswered
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves


def look_at(
    inner: InnerProblem,
    jacobian: Jacobian,
    asked: Jacobian,
    y: Leaves,
    v: Leaves,
    found: Leaves,
    audit: bool | Literal["error"],
) -> None:
    """Look at what a backward pass found.

    Args:
        inner: the problem.
        jacobian: whose answer it is: `Direct` where there is nothing to respond.
        asked: the one that the user asked for.
        y: y^N.
        v: df/dy.
        found: the answer.
        audit: as `Argmin` has it.
    """
    who, questions = type(asked).__name__, inner.questions
    if inner.check and not trees.is_finite(found):
        raise DivergenceError(
            f"The hypergradient of {who} holds NaN or infinity, although y^N and df/dy "
            "are finite: look whether second derivatives of the inner loss are finite near y^N, or use PZOBO."
        )
    if not audit or not trees.is_finite(found):
        return
    findings = [*questions.findings]
    if not isinstance(asked, Direct):  # which says zero on purpose
        findings += _witnesses(inner, jacobian, who, y, v, found)
    questions.audit = Audit.of(questions.asked, findings)
    for finding in findings:
        if not finding.holds and audit == "error":
            raise AuditError(finding.sentence)
        if not finding.holds and finding.name not in questions.said:
            questions.said.add(finding.name)
            warnings.warn(f"{finding.sentence} (audit=False switches this off.)", AuditWarning, stacklevel=2)


def _witnesses(inner: InnerProblem, jacobian: Jacobian, who: str, y: Leaves, v: Leaves, found: Leaves) -> list[Finding]:
    repeat = repeat_finding(inner, y)
    if not all(finding.holds for finding in repeat):
        return repeat  # other paths would be of another problem too
    told = unanswered(inner, y, v, found, who)
    return [*jacobian.witness(inner, y, v, found), *repeat, *told]
