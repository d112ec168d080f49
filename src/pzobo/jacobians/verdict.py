"""Is an answer finite, and right? What is found is noted; faults are said once of each kind, or are errors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

from pzobo.errors import AuditError, AuditWarning, DivergenceError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Audit, Finding, Questions
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
    say(questions, findings, audit)


def say(questions: Questions, findings: Sequence[Finding], audit: bool | Literal["error"]) -> None:
    """Say what does not hold, once of each kind, or raise it."""
    for finding in findings:
        if not finding.holds and audit == "error":
            raise AuditError(finding.sentence)
        if not finding.holds and finding.name not in questions.said:
            questions.said.add(finding.name)
            warnings.warn(f"{finding.sentence} (audit=False switches this off.)", AuditWarning, stacklevel=3)


def say_strangers(questions: Questions, shapes: Sequence[Sequence[int]], audit: bool | Literal["error"]) -> None:
    """Say that the inner problem depends on tensors that ask for a gradient and will get none from it."""
    if not shapes or not audit:
        return
    listed = ", ".join(str(tuple(shape)) for shape in shapes[:3]) + (", ..." if len(shapes) > 3 else "")
    sentence = (
        f"The inner problem depends on tensors that require a gradient and are neither in x nor in y0 ({len(shapes)}, "
        f"of shape {listed}). They are constants for it, and get no gradient through y. Put them into x if they are to "
        "be learned; else detach them, or call requires_grad_(False)."
    )
    say(questions, [Finding("strangers", float(len(shapes)), False, sentence)], audit)


def _witnesses(inner: InnerProblem, jacobian: Jacobian, who: str, y: Leaves, v: Leaves, found: Leaves) -> list[Finding]:
    repeat = repeat_finding(inner, y)
    if not all(finding.holds for finding in repeat):
        return repeat  # other paths would be of another problem too
    told = unanswered(inner, y, v, found, who)
    return [*jacobian.witness(inner, y, v, found), *repeat, *told]
