"""How good was a solve? Statistics when they are asked for, and what to say when a path diverged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pzobo import deprecated
from pzobo.errors import StaleError
from pzobo.inner.kernel import Z
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Audit
from pzobo.inner.solver import Iterative
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree


class Solution:
    """The last solve of an `Argmin`, measured when asked: each property is computed when it is read.

    `Argmin.last` gives it; a program need not make one.

    Args:
        inner: the inner problem that was solved.
        y: its answer y^N: the tensors of a tree like y0, in its order.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Unrolled())
        >>> problem.objective(argmin, problem.start()).shape
        torch.Size([])
        >>> argmin.last.finite, argmin.last.steps, argmin.last.gradient_norm < 1e-3
        (True, 60, True)
    """

    def __init__(self, inner: InnerProblem, y: Leaves) -> None:
        self._inner, self._y = inner, y
        self._versions = [t._version for t in (*inner.variables, *y)]

    def _check(self) -> None:
        if [t._version for t in (*self._inner.variables, *self._y)] != self._versions:
            raise StaleError(
                "x or y was changed in place since the solve; ask for statistics before the optimizer's step."
            )

    def _measure(self, what: Callable[[Z, Leaves, Tree], Tensor]) -> float:
        self._check()
        if self._inner.kernel.loss is None:
            raise StaleError("There is no inner loss to measure: a black box without one has no such statistics.")
        with torch.no_grad(), self._inner.replay.again():
            *_, (z, batch, _) = self._inner.feed(self._inner.variables)
            return float(what(z, self._y, batch))

    @property
    def audit(self) -> Audit | None:
        """What the last look at a hypergradient found (backward passes 1, 2, 4, 8, ...); None before the first."""
        return self._inner.questions.audit

    @property
    def inner_loss(self) -> float:
        """g(x, y^N), on the last batch of the path."""
        return self._measure(self._inner.kernel.value)

    loss = deprecated.attribute("loss", "inner_loss")

    @property
    def gradient_norm(self) -> float:
        """|dg/dy| at y^N, on the last batch of the path: zero at a solution."""
        return self._measure(lambda *at: trees.norm(self._inner.kernel.gradient(*at)))

    @property
    def steps(self) -> int:
        """How many inner steps were made: those of the solver, or fewer with `tol`. 0 where it makes none."""
        return self._inner.call.steps if isinstance(self._inner.solver, Iterative) else 0

    @property
    def state(self) -> Leaves:
        """The solver's state after the path (momenta, moments), for another call: `argmin(x, y, state=...)`.

        A call that began with a state has kept it. Else the path is walked once more.
        """
        inner = self._inner
        if not isinstance(inner.solver, Iterative):
            return ()
        if inner.call.reached.state is None:
            self._check()
            with torch.no_grad(), inner.replay.again():
                feed = inner.feed(inner.variables)
                inner.call.reached.state = inner.kernel.path(feed, inner.y0, state=inner.call.state)[1]
        return inner.call.reached.state

    @property
    def finite(self) -> bool:
        """Whether all of y^N is finite."""
        return trees.is_finite(self._y)


def diagnose(inner: InnerProblem) -> str:
    """Where a path left the finite numbers, found by walking it again."""
    solver = inner.solver
    if not isinstance(solver, Iterative):
        return f"{type(solver).__name__} returned NaN or infinity for y."
    fine: list[bool] = []

    def visit(z: Z, y: Leaves, state: Leaves, batch: Tree) -> None:
        fine.append(trees.is_finite(y))

    with inner.replay.again():
        inner.kernel.path(inner.feed(inner.variables), inner.y0, visit=visit, state=inner.call.state)
    step = fine.index(False) if False in fine else len(fine)
    if step == 0:
        return "y0 holds NaN or infinity: the inner path must start at finite numbers."
    return (
        f"The inner path left the finite numbers at step {step} of {solver.steps}. Try a smaller inner learning rate "
        f"(now lr={_rate(inner)}), a start y0 nearer to the solution, or look whether the inner loss is "
        "finite there."
    )


def _rate(inner: InnerProblem) -> str:
    """The learning rate of the last step, where it is one number."""
    solver, numbers = inner.solver, inner.kernel.numbers
    if numbers is None or solver.constant:
        return str(getattr(solver, "lr", None))
    *_, (z, _, _) = inner.feed(inner.variables)
    rates = [float(part.lr) for part in numbers.bind(z).solvers if hasattr(part, "lr")]
    return " or ".join(f"{rate:.3g}" for rate in sorted(set(rates)))
