"""What is dy/dx of the path itself? Reverse-mode differentiation of the inner steps (ITD-R), whole or truncated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from pzobo.errors import RequirementError
from pzobo.inner.kernel import Products, Z, each
from pzobo.inner.problem import InnerProblem
from pzobo.inner.products import Linearization, Transpose, check_products, through, transpose
from pzobo.inner.questions import Finding
from pzobo.inner.tape import Tape
from pzobo.jacobians.audit import difference_finding, exact_slope, product_findings
from pzobo.jacobians.base import Jacobian, refuse_memory, refuse_random
from pzobo.options import whole
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.replay import uncached
from pzobo.tensors.trees import Leaves

Kept = tuple[int, Callable[[], Transpose]]
"""For each differentiated step: the point it is taken at, and how to get its transposed derivative."""


@dataclass(frozen=True)
class Unrolled(Jacobian):
    """(dy^N/dz)^T v by the recursion y_bar <- A_t^T y_bar, z_bar <- z_bar + B_t^T y_bar over the steps, last first.

    Args:
        last: differentiate only this many of the last steps (truncated back-propagation).
        checkpoint: keep only the path's y and make each step's graph again in the backward pass: less memory,
            more time.
        products: how products with second derivatives are made. "autodiff" differentiates backwards twice; "forward"
            is forward over backward, as exact, and keeps no graph; "difference" takes central differences of
            first-order gradients (Hessian-free).
        offload: keep the path's y in the memory of the host, as `checkpoint` keeps it on the device; not with
            compile=True.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Unrolled())
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    last: int | None = None
    checkpoint: bool = False
    products: Products = "autodiff"
    offload: bool = False

    def __post_init__(self) -> None:
        check_products(self.products)
        if self.last is not None:
            whole("Unrolled: last", self.last)

    def requirements(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"path", "function"}),) if self.products == "autodiff" else (frozenset({"path"}),)

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        if "function" in inner.solver.gives:
            return _through_formula(inner)
        conditions: Callable[[], AbstractContextManager[Any]] = inner.replay.first
        if inner.call.tol:  # a path that is not kept tells how many steps there are
            inner.base()
            conditions = inner.replay.again
        steps = inner.call.steps
        first = 0 if self.last is None else max(0, steps - self.last)
        if inner.kernel.compile:
            if self.offload:
                raise RequirementError("Unrolled(offload=True) keeps points one by one, and compiled code does not.")
            return self._compiled(inner, first, conditions)
        tape: deque[Kept] = deque()
        keep_graph = not (self.checkpoint or self.offload or self.products != "autodiff")
        with conditions(), uncached():
            y, state = (_keep_graph if keep_graph else self._keep_points)(inner, first, tape)
        inner.call.keep(state)

        def pullback(v: Leaves) -> Leaves:
            y_bar, state_bar = v, trees.zeros(state)
            parts: dict[int, Leaves] = {}
            if not keep_graph:
                refuse_memory(inner, y, 'Unrolled with checkpoint=True, or products other than "autodiff",')
            with inner.replay.again():
                for index, step in reversed(tape):
                    y_bar, state_bar, by_z = step()(y_bar, state_bar)
                    parts[index] = trees.add(parts[index], by_z) if index in parts else by_z
            self._find(inner)
            return inner.cotangents(parts, None if first else y_bar)

        return y, pullback

    def _compiled(
        self, inner: InnerProblem, first: int, conditions: Callable[[], AbstractContextManager[Any]]
    ) -> tuple[Leaves, Pullback]:
        with conditions():
            tape = Tape(inner, first, self.products)
        inner.call.keep(tape.state)
        refuse_random(inner, "Unrolled with compile")

        def pullback(v: Leaves) -> Leaves:
            with inner.replay.again():
                answer = tape.pull(v)
            self._find(inner)
            return answer

        return tape.y, pullback

    def _find(self, inner: InnerProblem) -> None:
        if inner.questions.closely and self.products == "difference":
            inner.questions.findings += difference_finding(inner.questions.probes[True].error)

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        found = exact_slope(inner, y, v, answer, "The hypergradient of Unrolled")
        if self.products != "autodiff" and "path" in inner.solver.gives:
            found += product_findings(inner, y, v, self.products)
        return found

    def _keep_points(self, inner: InnerProblem, first: int, tape: deque[Kept]) -> tuple[Leaves, Leaves]:
        points, replay = inner.points, inner.replay
        count = 0

        def visit(z: Z, y: Leaves, state: Leaves, batch: object) -> None:
            nonlocal count
            index = count % len(points)
            point = replace(points[index], z=z)
            if count >= first:
                drawn, back = replay.now(), _aside(y, state) if self.offload else lambda: (y, state)
                tape.append(
                    (
                        index,
                        lambda: transpose(
                            inner, point, *back(), point.slots, self.products, lambda: replay.rewind(drawn)
                        ),
                    )
                )
            count += 1

        return inner.kernel.path(inner.feed(inner.variables), inner.y0, visit=visit, state=inner.call.state)


def _keep_graph(inner: InnerProblem, first: int, tape: deque[Kept]) -> tuple[Leaves, Leaves]:
    """The path, with the graph of each step's gradient kept for the backward pass."""
    kernel = inner.kernel
    y, state = inner.y0, inner.call.first_state(inner.y0)
    for t, (z, batch) in enumerate(each(inner.feed(inner.variables))):
        if t < first:
            y, state = kernel.step(z, y, state, batch)
            continue
        index = t % len(inner.points)
        slots = inner.points[index].slots
        linear = Linearization(kernel, z, y, batch, slots)
        gradient = linear.gradient if kernel.needs_gradient(z, slots) else y
        tape.append((index, _kept(through(kernel, z, slots, linear, gradient, y, state))))
        y, state = kernel.solver_at(z).update(linear.gradient, y, state)
        linear.gradient = ()
    return y, state


def _aside(y: Leaves, state: Leaves) -> Callable[[], tuple[Leaves, Leaves]]:
    """y and the state put into the host's memory, and how to get them back."""
    devices = [t.device for t in (*y, *state)]
    kept, count = [t.cpu() for t in (*y, *state)], len(y)

    def back() -> tuple[Leaves, Leaves]:
        leaves = tuple(t.to(device, non_blocking=True) for t, device in zip(kept, devices, strict=True))
        return leaves[:count], leaves[count:]

    return back


def _kept(pull: Transpose) -> Callable[[], Transpose]:
    return lambda: pull


def _through_formula(inner: InnerProblem) -> tuple[Leaves, Pullback]:
    """Autograd through a closed form."""
    with torch.enable_grad():
        variables = tuple(t.detach().requires_grad_() for t in inner.variables)
        y = inner.solve(variables)

    def pullback(v: Leaves) -> Leaves:
        used = [(t, w) for t, w in zip(y, v, strict=True) if t.requires_grad]
        if not used:
            return trees.zeros(variables)
        return torch.autograd.grad(
            [t for t, _ in used], variables, [w for _, w in used], retain_graph=True, materialize_grads=True
        )

    return tuple(t.detach() for t in y), pullback
