"""How are second derivatives of g applied at one point? Backward twice, forward over backward, or by differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, once_differentiable
from torch.autograd.graph import get_gradient_edge

from pzobo.errors import OptionError, RequirementError
from pzobo.inner.kernel import Kernel, Products, Reset, Z, nothing, select
from pzobo.inner.loops import number
from pzobo.inner.problem import Point
from pzobo.inner.questions import Questions
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

    @property
    def eps(self) -> float: ...


def check_products(products: str) -> None:
    if products not in ("autodiff", "forward", "difference"):
        raise OptionError(f'products={products!r}: must be "autodiff", "forward" or "difference".')


def _attention(message: str) -> str:
    """What helps besides, where the operation is a fused form of attention."""
    if "scaled_dot_product" not in message:
        return ""
    return (
        "; or put torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) around the attention, whose form "
        "that is not fused has all derivatives"
    )


@contextmanager
def _double_backward() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        message = str(error)
        if "differentiate twice" in message or "derivative" in message or "double backward" in message.lower():
            raise RequirementError(
                f"The inner loss has an operation that cannot be differentiated twice ({message.splitlines()[0]}). "
                f'Use products="difference", which needs first derivatives only{_attention(message)}.'
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
                + (
                    f'Use products="difference"{_attention(message)}.'
                    if _attention(message)
                    else 'Use products="autodiff", which differentiates backwards twice, or products="difference".'
                )
            ) from error
        raise


_ONCE = once_differentiable(lambda ctx: None).__code__


def _refuse_once_differentiable(value: Tensor) -> None:
    """Find operations marked with @once_differentiable, whose second derivative autograd takes for zero here."""
    todo: list[Any] = [value.grad_fn]
    seen = {None}
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        # Only functions written in Python have such a class, and to ask all others for it takes long.
        operation: Any = getattr(node, "_forward_cls", None) if isinstance(node, BackwardCFunction) else None
        if operation is not None and getattr(operation.backward, "__code__", None) is _ONCE:
            raise RequirementError(
                f"The inner loss has an operation that cannot be differentiated twice ({operation.__name__} is marked "
                'with @once_differentiable). Use products="difference", which needs first derivatives only.'
            )
        todo.extend(following for following, _ in node.next_functions)


class Linearization:
    """The graph of dg/dy at a point, so that each product costs one backward.

    Attributes:
        gradient: dg/dy, to be dropped where it is not needed: products need its graph, not its numbers.
    """

    def __init__(self, kernel: Kernel, z: Z, y: Leaves, batch: Tree, slots: Sequence[int]) -> None:
        variables, fill = select(z, slots)
        with torch.enable_grad(), _double_backward():
            self._y = tuple(t.detach().requires_grad_() for t in y)
            self._z = tuple(t.detach().requires_grad_() for t in variables)
            value = kernel.value(fill(self._z), self._y, batch)
            _refuse_once_differentiable(value)
            if value.requires_grad:
                found = torch.autograd.grad(value, self._y, create_graph=True, materialize_grads=True)
            else:
                found = trees.zeros(y)
        self._graph = [(get_gradient_edge(g), g.dtype) if g.requires_grad else None for g in found]
        self.gradient: Leaves = tuple([g.detach() for g in found])

    def __call__(self, q: Leaves) -> tuple[Leaves, Leaves]:
        answer = self._pull(q, (*self._y, *self._z))
        return answer[: len(self._y)], answer[len(self._y) :]

    def by_z(self, q: Leaves) -> Leaves:
        """(d2g/dz dy) q alone."""
        return self._pull(q, self._z)

    def _pull(self, q: Leaves, to: Leaves) -> Leaves:
        used = [(*g, r) for g, r in zip(self._graph, q, strict=True) if g is not None]
        if not used or not to:
            return trees.zeros(to)
        with _double_backward():
            return torch.autograd.grad(
                [edge for edge, _, _ in used],
                to,
                [r.to(dtype) for _, dtype, r in used],
                retain_graph=True,
                materialize_grads=True,
            )


def linearize(
    inner: Place,
    point: Point,
    y: Leaves,
    slots: Sequence[int],
    products: Products,
    reset: Reset = nothing,
    gradient: bool = False,
) -> Product:
    """The curvature of g at a point, to be multiplied with many vectors; a `Linearization` keeps dg/dy if asked."""
    slots = tuple(slots)
    if products == "autodiff" and not inner.kernel.compile:
        reset()
        linear = Linearization(inner.kernel, point.z, y, point.batch, slots)
        linear.gradient = linear.gradient if gradient else ()
        return linear

    def product(q: Leaves) -> tuple[Leaves, Leaves]:
        if products == "difference":
            adjust(inner, point, y, q, slots, reset)
        return _curvature(inner, point, y, q, slots, products, reset, probe(inner, slots, products))

    return product


def probe(inner: Place, slots: Sequence[int], products: Products) -> Leaves:
    """The lengths of differences, as `Kernel.curvature` takes them."""
    if products != "difference":
        return ()
    found = inner.questions.probes[bool(slots)]
    return tuple(number(length) for length in found.lengths(inner.eps)[: 1 + found.split])


def _curvature(
    inner: Place,
    point: Point,
    y: Leaves,
    q: Leaves,
    slots: tuple[int, ...],
    products: Products,
    reset: Reset,
    probe: Leaves,
) -> tuple[Leaves, Leaves]:
    kernel = inner.kernel
    if kernel.compile:
        compiled = kernel.compiled("curvature", slots, products, len(probe))
        answer: tuple[Leaves, Leaves] = compiled(point.z, y, point.batch, q, slots, products, probe)
        return answer
    with _forward_derivative():
        return kernel.curvature(point.z, y, point.batch, q, slots, products, probe, functional=False, reset=reset)


def adjust(inner: Place, point: Point, y: Leaves, q: Leaves, slots: tuple[int, ...], reset: Reset = nothing) -> None:
    """Look for the lengths of such differences, in the backward passes that are looked at."""
    if inner.questions.closely and trees.is_finite(q) and float(trees.largest(q)) > 0:

        def difference(length: float) -> tuple[Leaves, Leaves]:
            by_y, by_z = _curvature(inner, point, y, q, slots, "difference", reset, (number(length),))
            # A cotangent counts by what it says of a change in proportion to y: variables may differ much in size.
            return tuple(s * t for s, t in zip(by_y, y, strict=True)), by_z

        inner.questions.probes[bool(slots)].adjust(inner.questions.asked, inner.eps, difference)


def transpose(
    inner: Place,
    point: Point,
    y: Leaves,
    state: Leaves,
    slots: Sequence[int],
    products: Products,
    reset: Reset,
    numbers: bool = True,
) -> Transpose:
    """The transposed derivative of the solver's step at a point; `numbers` as in `Kernel.adjoint`."""
    kernel, mine = inner.kernel, slots if numbers else ()
    needed = kernel.needs_gradient(point.z, mine)
    product = linearize(inner, point, y, slots, products, reset, needed)
    if not needed:
        gradient = y
    elif isinstance(product, Linearization):
        gradient = product.gradient
    else:
        reset()
        gradient = kernel.gradient(point.z, y, point.batch)
    return through(kernel, point.z, mine, product, gradient, y, state)


def through(
    kernel: Kernel, z: Z, slots: Sequence[int], product: Product, gradient: Leaves, y: Leaves, state: Leaves
) -> Transpose:
    """The transposed derivative of a step, from products with the derivative of its gradient."""
    solver = kernel.solver_at(z)

    def pull(y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        bar, y_direct, before = solver.pull(gradient, y, state, y_bar, state_bar)
        by_y, by_z = product(bar)
        del bar
        if kernel.numbers is not None:
            by_z = kernel.numbers.pull(by_z, z, slots, gradient, y, state, y_bar, state_bar)
        return trees.add(y_direct, by_y), before, by_z

    return pull
