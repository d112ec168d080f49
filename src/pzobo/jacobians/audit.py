"""Is the answer right? Evaluations that do not share its assumptions say so: the witness of every estimator.

What speaks of y^N must agree with paths: along the answer a = J^T v, two more of them must show the slope |a|^2. What
speaks of y* must have right products with second derivatives: <a, a> = <q, J a>, both sides taken differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pzobo.errors import PzoboError
from pzobo.inner.differences import probe_size
from pzobo.inner.kernel import Products, select
from pzobo.inner.problem import InnerProblem, Point
from pzobo.inner.products import Place, linearize
from pzobo.inner.questions import Finding
from pzobo.tensors import trees
from pzobo.tensors.precision import dtype_eps
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Rademacher, Space, drawn_by

STEPS = (0.1, 0.01, 0.001)
"""Lengths of the steps along an answer, relative to the size of x: that of an outer step first."""
LENGTHS = (1.0, 1 / 16, 16.0)
"""Lengths of differences of g's gradients, and of its values, times the one to start with."""
CLOSE = 0.02
"""A ratio as near to one as this needs no look at shorter steps."""
LEAST, MOST = 0.9, 1.1
"""Between these a ratio is called right."""
DROWNED = 0.05
"""A slope whose rounding is more than this part of it says nothing."""

REPEATED = 1e-3
"""A path that is run again may end so far from where it did, as a part of its way."""

WRONG = 0.5
"""An error that is called wrong: of one random direction, it says no more than the size."""

ASYMMETRY = (
    "Is dg/dy the gradient of a function? A detach(), a straight-through estimator or a custom backward pass in g "
    'breaks the symmetry that "forward", "difference" and Nudged rest on, and hides parts from "autodiff". PZOBO asks '
    'for no derivative; products="autodiff" does not rest on symmetry.'
)
KINKS = (
    "Nor do differences of two lengths agree with each other: there are kinks near y (ReLU, max-pooling), where second "
    "derivatives are those of one smooth piece, and do not say how dg/dy changes over a step. Smooth activations "
    "(GELU, softplus, tanh) have none; F2SA, BOME, MEHA and PZOBO ask for no second derivatives."
)
"""What products that do not hold come from."""

Slopes = list[tuple[float, float]]
"""(relative length of the steps, how far the slope found there is from the one claimed)."""


def means(ratio: float) -> str:
    """What a ratio r says: an error e orthogonal to the truth g makes it 1 / (1 + |e|^2 / |g|^2)."""
    if ratio <= 0:
        return "it does not even point the right way"
    if ratio < 1:
        return f"as an error of {math.sqrt(1 / ratio - 1):.0%} orthogonal to the truth would make it"
    return f"the answer is too short by a factor of {ratio:.3g}, or the response bends"


def slopes_along(
    inner: InnerProblem, y: Leaves, v: Leaves, along: Leaves, most_noise: float
) -> Iterator[tuple[float, float, float]]:
    """Slopes of <v, y^N> along a direction, by two more paths each: (relative length of the step, slope, its rounding),
    from the scale of an outer step to shorter ones, as long as rounding is not more than `most_noise`."""
    length = float(probe_size(inner.variables, along))
    weighted = float(trees.norm([s * t for s, t in zip(y, v, strict=True)]))
    way = [(s - t) * w for s, t, w in zip(y, inner.y0, v, strict=True)] if "path" in inner.solver.gives else []
    rounding = 3 * (dtype_eps(y) * weighted + inner.eps * (float(trees.norm(way)) if way else weighted))
    for step in STEPS:
        h = step * length
        noise = rounding / (2 * h)
        if noise > most_noise:
            continue
        try:
            up, down = (inner.again(trees.add(inner.variables, along, e)) for e in (h, -h))
        except (PzoboError, ArithmeticError, ValueError, RuntimeError):
            continue  # x cannot be moved so far
        slope = float(trees.dot(trees.add(up, down, -1.0), v)) / (2 * h)
        if math.isfinite(slope):
            yield step, slope, noise


def repeat_finding(inner: InnerProblem, y: Leaves) -> list[Finding]:
    """Is the inner problem still that of the forward pass? Then its path, run again, ends where it did."""
    way = trees.add(y, inner.y0, -1.0)
    again = trees.norm(trees.add(inner.again(inner.variables), y, -1.0))
    off = float(again / trees.norm(way)) if float(again) > 0 else 0.0
    return [
        _found(
            "repeat",
            off,
            float(again) <= REPEATED * float(trees.norm(way)) + 10 * float(inner.rounding(y)),
            f"The path, run again, ends where it did up to {off:.1e} of its way.",
            "So the inner problem is not that of the forward pass, and what evaluates it again answers another "
            "question. Was something that it depends on changed or replaced between the call and backward(): a "
            "closure, weights, the memory of an array? Or does it draw random numbers that torch does not know of?",
        )
    ]


def path_slopes(inner: InnerProblem, y: Leaves, v: Leaves, along: Leaves, claimed: float, unit: float) -> Slopes:
    """How far slopes along a direction are from the claimed one, in units of `unit`: at the scale of an outer step, and
    at shorter ones if that is not clear."""
    found: Slopes = []
    for step, slope, _ in slopes_along(inner, y, v, along, DROWNED * abs(unit)):
        off = (slope - claimed) / unit
        if math.isfinite(off):
            found.append((step, off))
            if abs(off) <= CLOSE:
                break
    return found


def random_signs(variables: Leaves, key: int) -> Leaves:
    """One direction of these tensors, of random signs."""
    space = Space.of(variables)
    drawn = space.split(drawn_by(Rademacher(), key, 0, 1, space), variables)
    return tuple(s.to(t.dtype) for s, t in zip(drawn, variables, strict=True))


def ratio_of(slopes: Slopes) -> tuple[float, float]:
    """The step at which an answer holds best, and the ratio of the slopes there."""
    return min(((step, 1 + off) for step, off in slopes), key=lambda slope: far(slope[1]))


def far(ratio: float) -> float:
    """How far a ratio is from one."""
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def slope_finding(inner: InnerProblem, y: Leaves, v: Leaves, along: Leaves, claimed: float, what: str) -> list[Finding]:
    """The path test of an estimate of y^N, along one direction."""
    slopes = path_slopes(inner, y, v, along, claimed, unit=claimed)
    if not slopes:
        return []
    step, ratio = ratio_of(slopes)
    if LEAST <= ratio <= MOST:
        seen = f"Two more paths along the answer show {ratio:.3f} of its slope (steps of {step:g} of the size of x)."
        return [Finding("ratio", ratio, True, seen)]
    listed = ", ".join(f"{1 + off:.3g} at {step:g}" for step, off in slopes)
    return [
        Finding(
            "ratio",
            ratio,
            False,
            f"{what} does not agree with the paths themselves: two more paths along it show {listed} (of the size of "
            f"x) of its slope, where 1 is right; {means(ratio)}. {_advice(inner)}",
        )
    ]


def missing_finding(inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves, what: str) -> list[Finding]:
    """What the answer a lacks, g - a, is orthogonal to it and not seen along it: two more paths along random signs w,
    for which the mean of <g - a, w>^2 is |g - a|^2."""
    signs = random_signs(inner.variables, inner.questions.asked)
    size = float(trees.norm(answer))
    slopes = path_slopes(inner, y, v, signs, float(trees.dot(answer, signs)), unit=size)
    if not slopes:
        return []
    step, error = min(((step, abs(off)) for step, off in slopes), key=lambda slope: slope[1])
    sentence = f"Two more paths in a random direction put the error at about {error:.1%} (steps of {step:g})."
    if error <= WRONG:
        return [Finding("error", error, True, sentence)]
    return [
        Finding(
            "error",
            error,
            False,
            f"{what} lacks a part, or has one too many: two more paths in a random direction put its error at about "
            f"{error:.0%} of its length. {_advice(inner)}",
        )
    ]


def _advice(inner: InnerProblem) -> str:
    if hasattr(inner.solver, "betas"):
        return (
            "Adam divides by the root of tiny second moments, so that an exact derivative need not be the slope at any "
            "step one can make: try a larger eps in Adam (1e-3), HeavyBall, or PZOBO with as many Orthogonal "
            "directions as there are outer variables, which measures the slope at its mu, and sees less of this "
            "if mu is larger."
        )
    return (
        'If it is made by differences, use products="forward" or "autodiff", or float64. If it is not, the path has '
        "kinks (ReLU, max-pooling), or is at the edge of stability, or g is not differentiated as it is computed (a "
        "detach?): PZOBO with as many Orthogonal directions as there are outer variables measures the slope itself."
    )


def exact_slope(inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves, what: str) -> list[Finding]:
    """The path test along the answer itself, whose slope is its squared length."""
    claimed = float(trees.dot(answer, answer))
    if claimed == 0 or not math.isfinite(claimed) or inner.call.own or inner.call.mixed:
        return []
    found = slope_finding(inner, y, v, answer, claimed, what)
    if found and found[0].holds:
        found += missing_finding(inner, y, v, answer, what)
    return found


def solved_slope(inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves, what: str) -> list[Finding]:
    """The path test of an estimate of y*: a verdict only where the paths have come to their ends."""
    found = exact_slope(inner, y, v, answer, what)
    if all(finding.holds for finding in found):
        return found
    ratio = found[0].value
    if "path" in inner.solver.gives and not _at_their_ends(inner, v, answer):
        return [
            Finding(
                "ratio",
                ratio,
                True,
                f"{what} speaks of a solution y*, and y^N is none yet: the paths show {ratio:.3g} of its slope, and "
                "still change it. More inner steps bring the two together.",
            )
        ]
    return found


def _at_their_ends(inner: InnerProblem, v: Leaves, along: Leaves) -> bool:
    """Whether twice as many steps leave the slope as it is."""
    h = STEPS[0] * float(probe_size(inner.variables, along))
    slopes = []
    moved = [trees.add(inner.variables, along, e) for e in (h, -h)]
    ends = [(values, inner.start(values)) for values in moved]
    for _ in range(2):
        with inner.replay.again():
            ends = [(values, inner.kernel.path(inner.feed(values), y0)[0]) for values, y0 in ends]
        slopes.append(float(trees.dot(trees.add(ends[0][1], ends[1][1], -1.0), v)))
    return abs(slopes[1] - slopes[0]) <= 0.01 * abs(slopes[1])


def product_findings(inner: InnerProblem, y: Leaves, q: Leaves, products: Products) -> list[Finding]:
    """The dot-product test, where an estimator has taken its products."""
    point = inner.points[inner.mixed[0] if inner.mixed else 0]
    with inner.replay.again():
        return dot_product_findings(inner, point, y, q, products, inner.replay.rewind)


def dot_product_findings(
    place: Place, point: Point, y: Leaves, q: Leaves, products: Products, rewind: Callable[[], None]
) -> list[Finding]:
    """The dot-product test: a = J^T q as products take it, against <q, J a> by differences of dg/dy along a."""
    by_y, by_z = linearize(place, point, y, point.slots, products, rewind)(q)
    variables, fill = select(point.z, point.slots)

    def slopes(a: Leaves, at: Leaves, where: Callable[[Leaves], tuple[Leaves, Leaves]]) -> list[float]:
        """The ratios of <q, J a> to <a, a>, over some lengths."""
        claimed = float(trees.dot(a, a)) if a else 0.0
        if claimed == 0 or not math.isfinite(claimed):
            return []
        ratios: list[float] = []
        for length in LENGTHS:
            e = float(2 * math.cbrt(place.eps) * length * probe_size(at, a))
            ends: list[Leaves] = []
            for sign in (e, -e):
                moved_y, moved_z = where(trees.add(at, a, sign))
                rewind()
                ends.append(place.kernel.gradient(fill(moved_z), moved_y, point.batch))
            rounding = 3 * place.eps * float(trees.norm([s * t for s, t in zip(ends[0], q, strict=True)]))
            if rounding < DROWNED * 2 * e * claimed:
                ratios.append(float(trees.dot(trees.add(ends[0], ends[1], -1.0), q)) / (2 * e) / claimed)
        return [ratio for ratio in ratios if math.isfinite(ratio)]

    tests = {
        "d2g/dy2": slopes(by_y, y, lambda moved: (moved, variables)),
        "d2g/dz dy": slopes(by_z, variables, lambda moved: (y, moved)),
    }
    known = {name: min(ratios, key=far) for name, ratios in tests.items() if ratios}
    if not known:
        return []
    worst = max(known.values(), key=far)
    wrong = [name for name, ratio in known.items() if not LEAST <= ratio <= MOST]
    if not wrong:
        return [
            Finding("products", worst, True, f"Products with second derivatives agree with differences: {worst:.3f}.")
        ]
    named = " and ".join(f"{name} ({known[name]:.3g} for 1)" for name in wrong)
    kinks = any(_scattered(tests[name]) for name in wrong)
    sentence = (
        f'Products with {named}, taken by "{products}", do not agree with differences of dg/dy, taken the other way '
        f"round. {KINKS if kinks else ASYMMETRY}"
    )
    return [Finding("products", worst, False, sentence)]


def _scattered(ratios: Sequence[float]) -> bool:
    """Whether differences of the two shortest lengths do not agree with each other, as where they cross kinks."""
    return len(ratios) > 1 and abs(ratios[0] - ratios[1]) > (MOST - 1) * abs(ratios[0])


def _found(name: str, value: float, holds: bool, sentence: str, advice: str) -> Finding:
    """A finding, with advice where it does not hold."""
    return Finding(name, value, holds, sentence if holds else f"{sentence} {advice}")


def signal_finding(relative_error: float, p: int, directions: int, of_start: int = 0) -> Finding:
    """How much of an answer from random directions is signal: 1 / (1 + r) of its squared length.

    `of_start` of the p variables are in y0, which requires a gradient.
    """
    signal = 1.0 / (1.0 + relative_error)
    return _found(
        "signal",
        signal,
        signal >= 0.1,
        f"{signal:.2g} of the answer's squared length is signal: Q = {directions} directions for p = {p} variables.",
        (
            f"{of_start} of them are in y0, which requires a gradient: detach it if it is not learned. "
            if of_start
            else ""
        )
        + "The rest is the noise of random directions. Use more of them, "
        'at="z" if prepare gives fewer variables, or Unrolled or Implicit, which have none of it.',
    )


def residual_finding(left: Leaves, v: Leaves) -> list[Finding]:
    """How far the linear system of an implicit derivative was solved."""
    if not left:
        return []
    residual = float(trees.norm(left) / trees.norm(v))
    sentence = f"The linear system with d2g/dy2 is solved to {residual:.1e} of its right-hand side."
    advice = "More steps or terms, or a larger step, bring it down."
    return [_found("residual", residual, residual <= 0.1, sentence, advice)]


def difference_finding(error: float) -> list[Finding]:
    """How good differences of gradients can be on this problem, as found when their length was looked for."""
    if not math.isfinite(error):
        return []
    sentence = f"Differences of gradients err by about {error:.1e} here, at their best length."
    advice = 'Rounding and curvature leave no room between them: use products="forward" or "autodiff", or float64.'
    return [_found("differences", error, error <= 0.1, sentence, advice)]


def rounding_finding(length: Tensor, rounding: Tensor) -> list[Finding]:
    """How far the differences of paths are above rounding."""
    times = float(torch.as_tensor(length) / rounding) if float(rounding) > 0 else math.inf
    if not math.isfinite(times):
        return []
    sentence = f"The paths differ by {times:.1e} roundings."
    advice = "So the answer is largely rounding: use a larger mu, or float64."
    return [_found("rounding", times, times >= 10 or times == 0, sentence, advice)]
