"""Is g what an algorithm takes it for? Its gradient is compared with values of g, its products with its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor

from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.vector import Vector
from pzobo.errors import PzoboError, RequirementError
from pzobo.inner.arguments import refuse_variables
from pzobo.inner.differences import probe_size
from pzobo.inner.kernel import Products
from pzobo.inner.looks import needs_y
from pzobo.inner.problem import Point
from pzobo.inner.products import linearize
from pzobo.inner.questions import Audit, Finding, Questions
from pzobo.jacobians.audit import DROWNED, LENGTHS, dot_product_findings, random_signs
from pzobo.jacobians.verdict import say, say_strangers
from pzobo.tensors import trees
from pzobo.tensors.precision import Coarsest, dtype_eps
from pzobo.tensors.replay import devices_of, rewinder, watched
from pzobo.tensors.strangers import reached, strangers
from pzobo.tensors.trees import Leaves, Plan

FINE = 1e-4
"""Products are looked at where rounding is no more than this: differences in half precision say little of them."""
UNSEEN = (PzoboError, ArithmeticError, ValueError, RuntimeError)
"""A loss may refuse points beside the one where the algorithm stands: then there is nothing to see."""
LOST = 30.0
"""A v for which |H v| is so many times |df/dy| solves nothing, whatever the noise of batches."""
MOST = 0.1
"""A slope may be so far from the one that the gradient claims, as a part of the larger of both."""


class Witness:
    """Looks at the inner loss of an algorithm. A look leaves no trace in the run.

    Args:
        at: the oracles of the algorithm.
        products: those of the algorithm; None where it takes none.
        audit: as `Argmin` has it.

    Attributes:
        questions: what was found, and said.
        longest: the longest df/dy that was seen at a look.
    """

    def __init__(self, at: Oracles, products: Products | None, audit: bool | Literal["error"]) -> None:
        refuse_variables([leaf for data in (at.train, at.val) for leaf in Plan.take(data)[0]])
        self.at, self.products, self.audit = at, products, audit
        self.kernel, self.questions, self.eps = at.inner_kernel, Questions(), 0.0
        self.longest = 0.0

    def passed(self, before: int, y: Vector, v: Vector | None) -> None:
        """Steps were made, from number `before` to `at.k`: look if one of them was the 1st, 2nd, 4th, 8th, ..."""
        if self.audit and before.bit_length() < self.at.k.bit_length():
            self.look(y, v)

    @torch.no_grad()
    def look(self, y: Vector, v: Vector | None) -> None:
        """Look at g where the last step was made, on its batch, and at v, which is to solve H v = df/dy, if there is
        one."""
        at = self.at
        questions, x, batch = self.questions, at.x.leaves, at.last_inner_batch
        questions.asked, questions.closely = at.k, True
        coarsest = Coarsest()
        with watched(devices_of((*y.leaves, *x))):
            reset = rewinder((*y.leaves, *x))
            with torch.enable_grad(), coarsest:
                inner, outer = (tuple([t.detach().requires_grad_() for t in leaves]) for leaves in (y.leaves, x))
                value = needs_y(self.kernel.value(outer, inner, batch), inner)
                unknown = strangers([value], (*inner, *outer))
                without_x = not _reaches(value, outer)
                slopes = torch.autograd.grad(value, (*inner, *outer), materialize_grads=True)
            self.eps = max(dtype_eps((*y.leaves, *x)), coarsest.eps)

            def g(moved: Leaves, y: Leaves) -> float:
                reset()
                try:
                    return float(self.kernel.value(moved, y, batch))
                except UNSEEN:
                    return math.nan

            findings = [
                *self._slope("x", x, slopes[len(inner) :], value, lambda moved: g(moved, y.leaves)),
                *self._slope("y", y.leaves, slopes[: len(inner)], value, lambda moved: g(x, moved)),
            ]
            if without_x and g(trees.add(x, random_signs(x, at.k)), y.leaves) == float(value.detach()):
                reset()
                self._needs_x(x, y.leaves)
            fine = self.eps <= FINE and all(finding.holds for finding in findings)
            if self.products is not None and fine:
                reset()
                point, along = Point(x, batch, at.slots, 0), slopes[: len(inner)]
                with suppress(*UNSEEN):
                    findings += dot_product_findings(self, point, y.leaves, along, self.products, reset)
            if self.products is not None and v is not None:
                reset()
                with suppress(*UNSEEN):
                    findings += self._system(y.leaves, v.leaves, self.products, reset)
        if trees.is_finite((value.detach(), *slopes)):
            say_strangers(questions, [t.shape for t in unknown], self.audit)
            questions.audit = Audit.of(at.k, findings)
            say(questions, findings, self.audit)

    def _needs_x(self, x: Leaves, y: Leaves) -> None:
        """Refuse an f that does not depend on x, where g does not either, nor its value: a detach() is told apart."""
        with torch.enable_grad():
            asking = tuple([t.detach().requires_grad_() for t in x])
            value = self.at.outer_kernel.value(asking, y, self.at.last_outer_batch)
        if not _reaches(value, asking):
            raise RequirementError(
                "Neither the inner nor the outer loss depends on x, so there is no hypergradient, and x would stay. Is "
                "x detached, or turned into numbers or NumPy, on its way?"
            )

    def _system(self, y: Leaves, v: Leaves, products: Products, reset: Callable[[], None]) -> list[Finding]:
        """|H v| beside the longest df/dy that was seen. Steps that go to a solution keep it below twice that, but for
        the noise of batches; where they go elsewhere it grows without an end."""
        at = self.at
        point = Point(at.x.leaves, at.last_inner_batch, (), 0)
        hv = linearize(self, point, y, (), products, reset)(v)[0]
        reset()
        right = at.outer_kernel.gradient(at.x.leaves, y, at.last_outer_batch)
        self.longest = max(self.longest, float(trees.norm(right)))
        ratio = float(trees.norm(hv)) / self.longest if self.longest > 0 else math.nan
        if not math.isfinite(ratio):
            return []
        sentence = f"|H v| is {ratio:.2g} times the longest |df/dy| that was seen; that of a solution is 1."
        if ratio > LOST:
            sentence = (
                f"v is to solve H v = df/dy, and goes elsewhere: {sentence} So D is no hypergradient. Its steps (v_lr) "
                "are too long for H, or H has negative eigenvalues, as in networks. Try shorter ones, or F2SA, BOME or "
                "MEHA, which have no v."
            )
        return [Finding("system", ratio, ratio <= LOST, sentence)]

    def _slope(
        self,
        name: str,
        where: Leaves,
        gradient: Leaves,
        value: Tensor,
        g: Callable[[Leaves], float],
    ) -> list[Finding]:
        """Values of g along random signs, beside the slope that its gradient has there. It is wrong where two lengths
        agree with each other, and not with it: else a length was too long, or rounding was more than the slope."""
        signs = random_signs(where, self.at.k)
        claimed, size = float(trees.dot(gradient, signs)), float(trees.norm(gradient))
        slopes: list[float] = []
        for length in LENGTHS:
            e = float(2 * math.cbrt(self.eps) * length * probe_size(where, signs))
            slope = (g(trees.add(where, signs, e)) - g(trees.add(where, signs, -e))) / (2 * e)
            rounding = 3 * self.eps * abs(float(value.detach())) / (2 * e)
            if math.isfinite(slope) and rounding < DROWNED * max(size, abs(slope)):
                slopes.append(slope)
                if abs(slope - claimed) <= MOST * max(size, abs(slope)):
                    break
        if not slopes:
            return []
        error = min(abs(slope - claimed) / max(size, abs(slope)) for slope in slopes)
        if error > MOST and all(abs(a - b) > MOST * abs(a) for a, b in itertools.combinations(slopes, 2)):
            return []
        sentence = f"Two values of g show the slope in {name} that its gradient has, up to {error:.1%}."
        if error > MOST:
            sentence = (
                f"dg/d{name} is not the gradient of the inner loss: two values of g along a random direction show "
                f"another slope (off by {error:.0%}). Is a part of {name} detached, or turned into numbers, on its "
                "way? A straight-through estimator or a custom backward pass does that too. The algorithm moves "
                "along what autograd says."
            )
        return [Finding(f"slope_{name}", error, error <= MOST, sentence)]


def _reaches(value: Tensor, leaves: Leaves) -> bool:
    """Whether a value depends on any of these leaves."""
    known = {id(t) for t in leaves}
    return any(id(t) in known for t in reached([value]))
