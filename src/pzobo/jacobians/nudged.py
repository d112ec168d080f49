"""What is dy/dx by one more path? The inner problem nudged towards v (equilibrium propagation; the idea of F2SA)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pzobo.inner.differences import probe_size
from pzobo.inner.problem import InnerProblem, Point, in_turn
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import product_findings, rounding_finding, solved_slope
from pzobo.jacobians.base import Jacobian, refuse_memory, refuse_random
from pzobo.options import freeze, positive, whole
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.noise import check_lengths, noise_floor


@dataclass(frozen=True)
class Nudged(Jacobian):
    """(dg/dz at y_e - dg/dz at y_-e) / 2e, where y_e minimises g(z, y) + e <v, y>, reached from y^N by the solver.

    First derivatives only, and no noise from p.

    Args:
        eps: the length of the nudge: max |e v_i| as a part of the size that y has where v is. By default what
            central differences want in the precision of g, 2 eps^(1/3): 0.01 in float32, 1e-5 in float64; with
            `symmetric=False` at least 0.01.
        steps: steps of the nudged path; the solver's own number by default.
        symmetric: two paths, nudged both ways. False takes y^N itself in place of y_-e: one path, an error of order eps
            instead of eps^2, and whatever y^N lacks to a solution is divided by eps and added.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Nudged())
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    eps: float | None = None
    steps: int | None = None
    symmetric: bool = True

    needs = (frozenset({"gradient"}), frozenset({"path"}))
    own_batches = True

    def __post_init__(self) -> None:
        if self.eps is not None:
            positive("Nudged: eps", self.eps)
        if self.steps is not None:
            whole("Nudged: steps", self.steps)
        freeze(self)

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        y = inner.base()
        if inner.kernel.compile or not self.symmetric:
            # One path alone divides by eps what y^N lacks to a solution, and with random numbers it always lacks some.
            refuse_random(inner, "Nudged with compile, or of one path,")
        pairs = [(inner.points[i].z, inner.points[i].batch) for i in inner.turn]
        steps = inner.solver.steps if self.steps is None else self.steps

        def slope(y: Leaves) -> Leaves:
            """dg/dz on `mixed_batch`, else averaged over the batches."""

            def by_z(point: Point) -> Leaves:
                inner.replay.rewind()
                if inner.kernel.compile:
                    found: Leaves = inner.kernel.compiled("gradient_z")(point.z, y, point.batch, point.slots)
                    return found
                return inner.kernel.gradient_z(point.z, y, point.batch, point.slots, functional=False)

            return inner.mean(inner.mixed or inner.turn, by_z)

        def pullback(v: Leaves) -> Leaves:
            refuse_memory(inner, y, "Nudged")
            e = self._length(y, v, inner.eps)

            def nudged(e: Tensor) -> Leaves:
                inner.replay.rewind()
                return inner.kernel.path(inner.call.along(in_turn(pairs, steps)), y, shift=(v, e))[0]

            with inner.replay.again():
                up = nudged(e)
                down, width = (nudged(-e), 2 * e) if self.symmetric else (y, e)
                if inner.questions.closely and float(trees.largest(v)) > 0:
                    # A v of zeros nudges nothing, and rightly.
                    rounding, length = inner.rounding(up), trees.norm(trees.add(up, down, -1.0))
                    inner.questions.findings += rounding_finding(length, rounding)
                    floor = noise_floor(rounding, up, directions=1)
                    if inner.check and floor is not None:
                        check_lengths([length], floor, inner.questions.asked == 1, by="eps")
                ends = zip(slope(up), slope(down), strict=True)
                return tuple([trees.slope(after, before, 1.0 / width) for after, before in ends])

        return y, pullback

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        return [
            *product_findings(inner, y, v, "difference"),
            *solved_slope(inner, y, v, answer, "The hypergradient of Nudged"),
        ]

    def _length(self, y: Leaves, v: Leaves, precision: float) -> Tensor:
        """e: the largest nudge of a coordinate is `eps` times the size that y has where v is."""
        best = 2.0 * precision ** (1 / 3)
        # One path alone divides what y^N lacks to a solution by the nudge, which must not be shorter than need be.
        eps = self.eps or (best if self.symmetric else max(best, 0.01))
        return eps * probe_size(y, v)
