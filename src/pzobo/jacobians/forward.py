"""What is dy/dx along a direction, exactly? PZOBO with mu -> 0, by forward-mode differentiation of the path."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pzobo.inner.kernel import Kernel, Z, select
from pzobo.inner.loops import runs
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import slope_finding
from pzobo.jacobians.directional import At, Directional
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree
from pzobo.zeroth_order.directions import Gaussian, Sampler
from pzobo.zeroth_order.estimate import Change


@dataclass(frozen=True)
class ForwardMode(Directional):
    """delta_j = (dy^N/dx) u_j: the directional derivative in place of PZOBO's difference.

    No mu, no rounding noise; the noise of random directions stays. Needs forward-mode derivatives of dg/dy.

    Args:
        directions: Q. With compile=True each costs about three paths, without it about ten.
        sampler: how the directions are drawn.
        shrink: True scales the estimate for least mean squared error, by 1 / (1 + its relative squared error); False is
            the unbiased one; a number is taken as it is.
        at: differentiate along directions of "x", or of "z" = prepare(x, batch), from which autograd carries the answer
            on to x; "auto" takes the smaller, and "x" where numbers of the solver are functions of it.
        batching: "loop" runs the directions one by one, "vmap" together, a number that many at a time; "auto" is "loop"
            for fewer than 8 directions or with compile=True, and else at most 64 at a time.

    Raises:
        DirectionsError: `directions` is not a whole number of at least 1.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.ForwardMode(3, pzobo.Orthogonal()))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    directions: int = 1
    sampler: Sampler = field(default_factory=Gaussian)
    shrink: bool | float = True
    at: At = "auto"
    batching: str | int = "auto"

    needs = (frozenset({"path", "function"}),)

    def change(self, inner: InnerProblem, y: Leaves, functional: bool) -> tuple[Change, float]:
        def along(u: Leaves) -> Leaves:
            u = tuple(d.to(w.dtype) for d, w in zip(u, inner.variables, strict=True))
            with inner.replay.again():
                if "function" in inner.solver.gives:
                    return _jvp(inner.solve, inner.variables, u)
                return _path(inner, u, functional)

        return along, 1.0

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        found = super().witness(inner, y, v, answer)
        claimed = float(trees.dot(self.change(inner, y, functional=False)[0](answer), v))
        if claimed and math.isfinite(claimed):
            found += slope_finding(inner, y, v, answer, claimed, "The derivative of ForwardMode along its answer")
        return found

    def advice(self, chunk: int) -> str:
        return (
            'It needs forward-mode derivatives of everything in the loss (and of prepare, unless at="z"), and torch '
            'has none for something in it: use PZOBO, Unrolled, or at="z".'
        )


def _jvp(fn: Callable[[Leaves], Leaves], at: Leaves, along: Leaves) -> Leaves:
    return tuple(torch.func.jvp(fn, (at,), (along,))[1])


def _path(inner: InnerProblem, u: Leaves, functional: bool) -> Leaves:
    """The tangent of y^N, carried along beside the path."""
    kernel = inner.kernel
    y, state = inner.y0, inner.call.first_state(inner.y0)
    solver: Any = kernel.solver
    in_place = kernel.numbers is None and solver.linear and solver.owning != solver.update and kernel.owns(y)
    if in_place and not functional and not kernel.compile:
        return _owned(inner, u, trees.copy(y), trees.copy(state))
    carry = y, state, inner.start_along(u), trees.zeros(state)
    if kernel.compile and not functional:
        # Parts of one long vector: torch.compile cannot take their places in it where batches differ in length.
        u = tuple(d.clone() for d in u)
        for slots, piece in itertools.groupby(inner.tangents(u), lambda tangent: tangent[2]):
            for run in runs(((z, batch, z_dot), 1) for z, batch, _, z_dot in piece):
                carry = kernel.loop("tangents", _turn(slots), run, carry, None, slots)
        return carry[2]
    for z, batch, slots, z_dot in inner.tangents(u):
        carry = kernel.tangent((z, batch), z_dot, slots, *carry)
    return carry[2]


def _owned(inner: InnerProblem, u: Leaves, y: Leaves, state: Leaves) -> Leaves:
    """The same, written into its own y, state and tangents: a linear update moves tangents as it moves y."""
    solver: Any = inner.kernel.solver
    update = solver.owning
    y_dot, state_dot = trees.copy(inner.start_along(u)), trees.zeros(state)
    for z, batch, slots, z_dot in inner.tangents(u):
        gradient, gradient_dot = _slope(inner.kernel, (z, batch), z_dot, slots, y, y_dot)
        y, state = update(gradient, y, state)
        del gradient
        y_dot, state_dot = update(gradient_dot, y_dot, state_dot)
        del gradient_dot
    return y_dot


def _slope(
    kernel: Kernel, pair: tuple[Z, Tree], z_dot: Leaves, slots: Sequence[int], y: Leaves, y_dot: Leaves
) -> tuple[Leaves, Leaves]:
    """dg/dy, and its derivative along (z_dot, y_dot)."""
    variables, fill = select(pair[0], slots)

    def gradient(variables: Leaves, y: Leaves) -> Leaves:
        return kernel.gradient(fill(variables), y, pair[1], functional=True)

    found, along, *_ = torch.func.jvp(gradient, (variables, y), (z_dot, y_dot))
    return found, along


def _turn(slots: tuple[int, ...]) -> Any:
    def turn(kernel: Kernel, point: Any, carry: Any, fixed: None) -> Any:
        z, batch, z_dot = point
        return kernel.tangent((z, batch), z_dot, slots, *carry)

    return turn
