"""Which outer variables got exactly zero, and rightly so? More paths along them say whether y^N depends on them.

Autograd gives zero where y does not depend on a variable, and where a graph does not reach it: behind a `detach()`,
`torch.no_grad()` or NumPy in `prepare`, in a closed form or in g. It cannot tell the two apart; paths can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pzobo.inner.at_x import AtX
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import DROWNED, random_signs, slopes_along
from pzobo.tensors.trees import Leaves

SAME = 0.5
"""A slope that falls below this part of itself at shorter steps is that of a bend, where zero is right."""


def unanswered(inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves, who: str) -> list[Finding]:
    """Paths along those outer variables to which an answer gives exactly zero."""
    call = inner.call
    if inner.solver.opaque or not any(bool(t.any()) for t in v):
        return []
    # Batches of the Jacobian's own need not hold what those of the path do.
    carry = [t for t, found in zip(inner.inputs, answer, strict=True) if call.own or call.mixed or bool(found.any())]
    left = set(unreached(call.variables, carry))
    if not any(t.numel() for i, t in enumerate(call.variables) if i in left):
        return []
    at_x = AtX(call)
    signs = random_signs(at_x.variables, inner.questions.asked)
    along = tuple(s if i in left else s.zero_() for i, s in enumerate(signs))  # those of y0 come last, and stay
    slope = _steady_slope(at_x, y, v, along)
    if slope is None:
        return []
    shapes = " and ".join(sorted({str(tuple(call.variables[i].shape)) for i in left}))
    if slope == 0:
        return [Finding("unanswered", 0.0, True, f"Outer variables of shape {shapes} got zero, and move no path.")]
    return [
        Finding(
            "unanswered",
            slope,
            False,
            f"Outer variables of shape {shapes} got exactly zero from {who}, but y^N depends on them: more paths in a "
            f"random direction of them show a slope of {slope:.3g}. Something on the way has no graph: is there a "
            "detach(), torch.no_grad() or NumPy in prepare, in the closed form or in the loss? Write it in torch with "
            'its graph, or use PZOBO(at="x"), which needs none.',
        )
    ]


def _steady_slope(inner: InnerProblem, y: Leaves, v: Leaves, along: Leaves) -> float | None:
    """The slope of <v, y^N> that steps of several lengths agree on; 0 if there is none, None if nobody can say."""
    longest, agreed = 0.0, 0
    for _, slope, noise in slopes_along(inner, y, v, along, math.inf):
        limit = noise / DROWNED
        if not longest and abs(slope) <= limit:
            return 0.0
        longest = longest or slope
        if max(abs(slope), limit) < SAME * abs(longest):
            return 0.0
        agreed += abs(slope) > limit
    return longest if agreed > 1 else None


def unreached(variables: Sequence[Tensor], tensors: Iterable[Tensor]) -> list[int]:
    """Which of the variables the graphs of these tensors do not reach, by number."""
    wanted: dict[GradientEdge, int] = {_edge(t): i for i, t in enumerate(variables)}
    found: set[int] = set()
    ahead = [_edge(t) for t in tensors]
    seen = set(ahead)
    while ahead:
        edge = ahead.pop()
        if edge in wanted:  # what this variable was computed from is not our business
            found.add(wanted[edge])
            continue
        for node, number in edge.node.next_functions:
            if node is not None and (further := GradientEdge(node, number)) not in seen:
                seen.add(further)
                ahead.append(further)
    return [i for i in range(len(variables)) if i not in found]


def _edge(t: Tensor) -> GradientEdge:
    edge = get_gradient_edge(t)
    return GradientEdge(edge.node, edge.output_nr)
