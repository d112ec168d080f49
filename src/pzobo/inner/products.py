"""How are second derivatives of g applied at one point? By double backward, compiled code, or central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pzobo.errors import OptionError, RequirementError
from pzobo.inner.kernel import Kernel, Products, Z, select
from pzobo.inner.solver import Iterative
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree

Product = Callable[[Leaves], tuple[Leaves, Leaves]]
"""q -> ((d2g/dy2) q, (d2g/dz dy) q)."""

Transpose = Callable[[Leaves, Leaves], tuple[Leaves, Leaves, Leaves]]
"""Cotangents of (y', state') after a step -> those of (y, state, z) before it."""


def check_products(products: str) -> None:
    if products not in ("autodiff", "difference"):
        raise OptionError(f'products={products!r}: must be "autodiff" or "difference".')


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


def linearize(kernel: Kernel, z: Z, y: Leaves, batch: Tree, slots: Sequence[int], products: Products) -> Product:
    """The curvature of g at a point, to be multiplied with many vectors."""
    if not kernel.compile and products == "autodiff":
        return Linearization(kernel, z, y, batch, slots)
    if kernel.compile:
        slots = tuple(slots)
        curvature = kernel.compiled("curvature", slots, products)
        return lambda q: curvature(z, y, batch, q, slots, products)
    return lambda q: kernel.curvature(z, y, batch, q, slots, products, functional=False)


def transpose(
    kernel: Kernel,
    z: Z,
    y: Leaves,
    state: Leaves,
    batch: Tree,
    slots: Sequence[int],
    products: Products,
) -> Transpose:
    """The transposed derivative of the solver's step at a point."""
    if kernel.compile:
        slots = tuple(slots)
        adjoint = kernel.compiled("adjoint", slots, products)
        return lambda y_bar, state_bar: adjoint(z, y, state, batch, y_bar, state_bar, slots, products)
    if products == "difference":
        return lambda y_bar, state_bar: kernel.adjoint(
            z, y, state, batch, y_bar, state_bar, slots, products, functional=False
        )
    return through(kernel.solver, Linearization(kernel, z, y, batch, slots), y, state)


def through(solver: Iterative, linear: Linearization, y: Leaves, state: Leaves) -> Transpose:
    """The transposed derivative of a step whose gradient has been linearized."""

    def pull(y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        bar, y_direct, state_bar = solver.pull(linear.gradient, y, state, y_bar, state_bar)
        by_y, by_z = linear(bar)
        return trees.add(y_direct, by_y), state_bar, by_z

    return pull
