"""What is dy/dx of the path itself? Reverse-mode differentiation of the inner steps (ITD-R), whole or truncated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pzobo.inner.kernel import Products, each
from pzobo.inner.problem import InnerProblem
from pzobo.inner.products import Linearization, Transpose, check_products, through, transpose
from pzobo.inner.questions import Finding
from pzobo.inner.tape import Tape
from pzobo.jacobians.audit import difference_finding, exact_slope, product_findings
from pzobo.jacobians.base import Jacobian, refuse_memory, refuse_random
from pzobo.options import whole
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
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
    """

    last: int | None = None
    checkpoint: bool = False
    products: Products = "autodiff"

    def __post_init__(self) -> None:
        check_products(self.products)
        if self.last is not None:
            whole("Unrolled: last", self.last)

    def requirements(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"path", "function"}),) if self.products == "autodiff" else (frozenset({"path"}),)

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        if "function" in inner.solver.gives:
            return _through_formula(inner)
        steps = inner.solver.steps
        first = 0 if self.last is None else max(0, steps - self.last)
        if inner.kernel.compile:
            return self._compiled(inner, first)
        tape: deque[Kept] = deque()
        keep_graph = not (self.checkpoint or self.products != "autodiff")
        with inner.replay.first():
            y, state = (_keep_graph if keep_graph else self._keep_points)(inner, first, tape)

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
            return inner.cotangents(parts)

        return y, pullback

    def _compiled(self, inner: InnerProblem, first: int) -> tuple[Leaves, Pullback]:
        with inner.replay.first():
            tape = Tape(inner, first, self.products)
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

        def visit(z: object, y: Leaves, state: Leaves, batch: object) -> None:
            nonlocal count
            index, point = count % len(points), points[count % len(points)]
            if count >= first:
                drawn = replay.now()
                tape.append(
                    (
                        index,
                        lambda: transpose(
                            inner, point, y, state, point.slots, self.products, lambda: replay.rewind(drawn)
                        ),
                    )
                )
            count += 1

        return inner.kernel.path(inner.feed(inner.variables), inner.y0, visit=visit)


def _keep_graph(inner: InnerProblem, first: int, tape: deque[Kept]) -> tuple[Leaves, Leaves]:
    """The path, with the graph of each step's gradient kept for the backward pass."""
    kernel, solver = inner.kernel, inner.solver
    y, state = inner.y0, solver.init(inner.y0)
    for t, (z, batch) in enumerate(each(inner.feed(inner.variables))):
        if t < first:
            y, state = kernel.step(z, y, state, batch)
            continue
        index = t % len(inner.points)
        linear = Linearization(kernel, z, y, batch, inner.points[index].slots)
        tape.append((index, _kept(through(solver, linear, linear.gradient, y, state))))
        y, state = solver.update(linear.gradient, y, state)
    return y, state


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
