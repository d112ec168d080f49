"""How are second derivatives of g applied at one point? Backward twice, forward over backward, or by differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pzobo.errors import OptionError, RequirementError
from pzobo.inner.kernel import Kernel, Products, Reset, Z, nothing, select
from pzobo.inner.probe import Probe
from pzobo.inner.problem import Point
from pzobo.inner.questions import Questions
from pzobo.inner.solver import Iterative
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree

Product = Callable[[Leaves], tuple[Leaves, Leaves]]
"""q -> ((d2g/dy2) q, (d2g/dz dy) q)."""

Transpose = Callable[[Leaves, Leaves], tuple[Leaves, Leaves, Leaves]]
"""Cotangents of (y', state') after a step -> those of (y, state, z) before it."""


class Place(Protocol):
    """Where products are taken: g, what was found of it by looking, and its rounding. An `InnerProblem` is one."""

    kernel: Kernel
    questions: Questions
    eps: float


def check_products(products: str) -> None:
    if products not in ("autodiff", "forward", "difference"):
        raise OptionError(f'products={products!r}: must be "autodiff", "forward" or "difference".')


@contextmanager
def _double_backward() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        message = str(error)
        if "differentiate twice" in message or "derivative" in message or "double backward" in message.lower():
            raise RequirementError(
                f"The inner loss has an operation that cannot be differentiated twice ({message.splitlines()[0]}). "
                'Use products="difference", which needs first derivatives only.'
            ) from error
        raise


@contextmanager
def _forward_derivative() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        message = str(error)
        if "forward AD" in message or "forward mode AD" in message or "jvp" in message:
            raise RequirementError(
                f"The inner loss has an operation without a forward derivative ({message.splitlines()[0]}). "
                'Use products="autodiff", which differentiates backwards twice, or products="difference".'
            ) from error
        raise


_ONCE = once_differentiable(lambda ctx: None).__code__


def _refuse_once_differentiable(value: Tensor) -> None:
    """Find operations marked with @once_differentiable, whose second derivative autograd takes for zero here."""
    todo, seen = [value.grad_fn], set()
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = getattr(node, "_forward_cls", None)
        if operation is not None and getattr(operation.backward, "__code__", None) is _ONCE:
            raise RequirementError(
                f"The inner loss has an operation that cannot be differentiated twice ({operation.__name__} is marked "
                'with @once_differentiable). Use products="difference", which needs first derivatives only.'
            )
        todo.extend(following for following, _ in node.next_functions)


class Linearization:
    """dg/dy at a point with its graph, so that each product costs one backward."""

    def __init__(self, kernel: Kernel, z: Z, y: Leaves, batch: Tree, slots: Sequence[int]) -> None:
        variables, fill = select(z, slots)
        with torch.enable_grad(), _double_backward():
            self._y = tuple(t.detach().requires_grad_() for t in y)
            self._z = tuple(t.detach().requires_grad_() for t in variables)
            value = kernel.value(fill(self._z), self._y, batch)
            _refuse_once_differentiable(value)
            if value.requires_grad:
                self._graph = torch.autograd.grad(value, self._y, create_graph=True, materialize_grads=True)
            else:
                self._graph = trees.zeros(y)
        self.gradient: Leaves = tuple(g.detach() for g in self._graph)

    def __call__(self, q: Leaves) -> tuple[Leaves, Leaves]:
        used = [(g, r) for g, r in zip(self._graph, q, strict=True) if g.requires_grad]
        if not used:
            return trees.zeros(self._y), trees.zeros(self._z)
        with _double_backward():
            answer = torch.autograd.grad(
                [g for g, _ in used],
                (*self._y, *self._z),
                [r.to(g.dtype) for g, r in used],
                retain_graph=True,
                materialize_grads=True,
            )
        return answer[: len(self._y)], answer[len(self._y) :]


def linearize(
    inner: Place, point: Point, y: Leaves, slots: Sequence[int], products: Products, reset: Reset = nothing
) -> Product:
    """The curvature of g at a point, to be multiplied with many vectors."""
    slots = tuple(slots)
    if products == "autodiff" and not inner.kernel.compile:
        reset()
        return Linearization(inner.kernel, point.z, y, point.batch, slots)

    def exact(q: Leaves) -> tuple[Leaves, Leaves]:
        return _curvature(inner, point, y, q, slots, products, reset)

    def difference(q: Leaves) -> tuple[Leaves, Leaves]:
        probe = adjusted(inner, point, y, q, slots, reset)
        lengths = probe.lengths(inner.eps)
        by_y, by_z = _curvature(inner, point, y, q, () if probe.split else slots, products, reset, lengths[0])
        if probe.split:
            by_z = _curvature(inner, point, y, q, slots, products, reset, lengths[1])[1]
        return by_y, by_z

    return difference if products == "difference" else exact


def _curvature(
    inner: Place,
    point: Point,
    y: Leaves,
    q: Leaves,
    slots: tuple[int, ...],
    products: Products,
    reset: Reset,
    length: float | None = None,
) -> tuple[Leaves, Leaves]:
    kernel, probe = inner.kernel, None if length is None else torch.tensor(length)
    if kernel.compile:
        compiled = kernel.compiled("curvature", slots, products)
        answer: tuple[Leaves, Leaves] = compiled(point.z, y, point.batch, q, slots, products, probe)
        return answer
    with _forward_derivative():
        return kernel.curvature(point.z, y, point.batch, q, slots, products, probe, functional=False, reset=reset)


def adjusted(inner: Place, point: Point, y: Leaves, q: Leaves, slots: tuple[int, ...], reset: Reset = nothing) -> Probe:
    """The probe of such differences; its lengths are looked for in the backward passes that are looked at."""
    probe = inner.questions.probes[bool(slots)]
    if inner.questions.closely and trees.is_finite(q) and float(trees.largest(q)) > 0:

        def difference(length: float) -> tuple[Leaves, Leaves]:
            by_y, by_z = _curvature(inner, point, y, q, slots, "difference", reset, length)
            # A cotangent counts by what it says of a change in proportion to y: variables may differ much in size.
            return tuple(s * t for s, t in zip(by_y, y, strict=True)), by_z

        probe.adjust(inner.questions.asked, inner.eps, difference)
    return probe


def transpose(
    inner: Place, point: Point, y: Leaves, state: Leaves, slots: Sequence[int], products: Products, reset: Reset
) -> Transpose:
    """The transposed derivative of the solver's step at a point."""
    kernel, solver, slots = inner.kernel, inner.kernel.solver, tuple(slots)
    probe = inner.questions.probes[bool(slots)]
    if kernel.compile and not (products == "difference" and (inner.questions.closely or probe.split)):
        adjoint = kernel.compiled("adjoint", slots, products)
        length = torch.tensor(probe.lengths(inner.eps)[0]) if products == "difference" else None
        return lambda y_bar, state_bar: adjoint(
            point.z, y, state, point.batch, y_bar, state_bar, slots, products, length
        )
    linear = linearize(inner, point, y, slots, products, reset)
    if isinstance(linear, Linearization):
        return through(solver, linear, linear.gradient, y, state)
    reset()
    direction = y if solver.linear else kernel.gradient(point.z, y, point.batch)
    return through(solver, linear, direction, y, state)


def through(solver: Iterative, product: Product, gradient: Leaves, y: Leaves, state: Leaves) -> Transpose:
    """The transposed derivative of a step, from products with the derivative of its gradient."""

    def pull(y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        bar, y_direct, state_bar = solver.pull(gradient, y, state, y_bar, state_bar)
        by_y, by_z = product(bar)
        return trees.add(y_direct, by_y), state_bar, by_z

    return pull
