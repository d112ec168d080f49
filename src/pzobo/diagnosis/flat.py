"""What are the two losses as functions of two vectors? A problem taken apart, for spectra, samples and references."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import StructureError
from pzobo.jacobians.base import Jacobian
from pzobo.outer.problem import Problem
from pzobo.solvers import Solver
from pzobo.tensors.trees import Plan, Tree

Function = Callable[[Tensor], Tensor]


class Flat:
    """g(x, y) and f(x, y) of a problem, with x and y as vectors; and where they start."""

    def __init__(self, problem: Problem, x: Tree = None, y0: Tree = None) -> None:
        if x is not None:
            problem = dataclasses.replace(problem, x0=x)
        if y0 is not None:
            problem = dataclasses.replace(problem, y0=y0)
        self.problem = problem
        self._x, self._y = _Vector(problem.x0, "x"), _Vector(problem.y0, "y0")
        self.x, self.y0 = self._x.flat, self._y.flat
        self.p, self.d = self.x.numel(), self.y0.numel()

    def g(self, x: Tensor, y: Tensor, batch: Tree = None) -> Tensor:
        """The inner loss, prepare() included."""
        data = self.problem.train if batch is None else batch
        z = self._x.tree(x)
        if self.problem.prepare is not None:
            z = self.problem.prepare(z, data)
        return self.problem.inner_loss(z, self._y.tree(y), data)

    def f(self, x: Tensor, y: Tensor, batch: Tree = None) -> Tensor:
        """The outer loss."""
        return self.problem.outer_loss(self._x.tree(x), self._y.tree(y), self.problem.val if batch is None else batch)

    def joint(self, fn: Callable[[Tensor, Tensor], Tensor]) -> Function:
        """fn as a function of w = (x, y)."""
        return lambda w: fn(w[: self.p], w[self.p :])

    def inner_tree(self, y: Tensor) -> Tree:
        """The vector y in y0's structure."""
        return self._y.tree(y)

    def parts(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """df/dx and df/dy at (x, y)."""
        gradient = slope(self.joint(self.f), torch.cat([self.x if x is None else x, y]))
        return gradient[: self.p], gradient[self.p :]

    def estimator(self, solver: Solver, jacobian: Jacobian, **options: Any) -> Callable[..., Tensor]:
        """The hypergradient as a user gets it: an `Argmin`, the outer loss, `backward`. Each call draws anew."""
        argmin = self.problem.argmin(solver, jacobian, **{"audit": False, **options})

        def estimate(
            x: Tensor | None = None,
            y0: Tensor | None = None,
            batches: Sequence[Tree] | None = None,
            val: Tree = None,
        ) -> Tensor:
            leaves, tree = self._x.variables(self.x if x is None else x)
            start = self._y.tree(self.y0 if y0 is None else y0)
            y = argmin(tree, start, self.problem.train) if batches is None else argmin(tree, start, batches=batches)
            value = self.problem.outer_loss(tree, y, self.problem.val if val is None else val)
            return _join(torch.autograd.grad(value, leaves, materialize_grads=True))

        return estimate

    def response(self, solver: Solver, jacobian: Jacobian, batches: Sequence[Tree] | None = None) -> Tensor:
        """The whole matrix dy^N/dx, a row for each inner variable."""
        leaves, tree = self._x.variables(self.x)
        argmin = self.problem.argmin(solver, jacobian, audit=False)
        start = self._y.tree(self.y0)
        y = argmin(tree, start, self.problem.train) if batches is None else argmin(tree, start, batches=batches)
        flat = _join(Plan.take(y)[0])
        rows = [torch.autograd.grad(t, leaves, retain_graph=True, materialize_grads=True) for t in flat]
        return torch.stack([_join(row) for row in rows])

    def solve(self, solver: Solver, *, x: Tensor | None = None, y0: Tensor | None = None) -> Tensor:
        """y^N as a vector, by the solver in use; not checked for divergence."""
        from pzobo.jacobians.direct import Direct

        argmin = self.problem.argmin(solver, Direct(), check=False)
        with torch.no_grad():
            y = argmin(
                self._x.tree(self.x if x is None else x),
                self._y.tree(self.y0 if y0 is None else y0),
                self.problem.train,
            )
        return self._y.flatten(y)


class _Vector:
    """A tree of tensors as one vector, and back; what is not a floating-point tensor stays as it is."""

    def __init__(self, tree: Tree, name: str) -> None:
        self._leaves, self._plan = Plan.take(tree)
        self._slots = [i for i, t in enumerate(self._leaves) if isinstance(t, Tensor) and t.is_floating_point()]
        if not self._slots:
            raise StructureError(f"{name} holds no floating-point tensors.")
        self.flat = self.flatten(tree)
        self._sizes = [self._leaves[i].numel() for i in self._slots]

    def flatten(self, tree: Tree) -> Tensor:
        leaves = self._plan.leaves(tree)
        return _join([leaves[i].detach() for i in self._slots])

    def tree(self, flat: Tensor) -> Tree:
        leaves = list(self._leaves)
        for i, part in zip(self._slots, flat.split(self._sizes), strict=True):
            leaves[i] = part.reshape(leaves[i].shape).to(leaves[i].dtype)
        return self._plan.build(leaves)

    def variables(self, flat: Tensor) -> tuple[list[Tensor], Tree]:
        """The tree with its tensors as leaves of a new graph, and those leaves."""
        leaves, plan = Plan.take(self.tree(flat.detach()))
        fresh = [leaf.clone().requires_grad_() if i in self._slots else leaf for i, leaf in enumerate(leaves)]
        return [fresh[i] for i in self._slots], plan.build(fresh)


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def slope(fn: Function, at: Tensor) -> Tensor:
    """The gradient of fn."""
    with torch.enable_grad():
        w = at.detach().requires_grad_()
        value = fn(w)
        if not value.requires_grad:
            return torch.zeros_like(at)
        return torch.autograd.grad(value, w, materialize_grads=True)[0].detach()


def curvature(fn: Function, at: Tensor) -> Function:
    """q -> (d2 fn) q at a point, by double backward; by central differences where that does not exist."""
    with torch.enable_grad():
        w = at.detach().requires_grad_()
        value = fn(w)
        try:
            gradient = torch.autograd.grad(value, w, create_graph=True)[0] if value.requires_grad else None
        except RuntimeError:
            return _differences(fn, at)
    if gradient is None:
        return torch.zeros_like
    if not gradient.requires_grad:  # constant; or from a function that can be differentiated only once and does not say
        return _differences(fn, at)

    def product(q: Tensor) -> Tensor:
        try:
            return torch.autograd.grad(gradient, w, q.to(gradient.dtype), retain_graph=True, materialize_grads=True)[0]
        except RuntimeError:
            return _differences(fn, at)(q)

    return product


def _differences(fn: Function, at: Tensor) -> Function:
    def product(q: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(q))
        if length == 0:
            return torch.zeros_like(q)
        e = 1e-2 * max(float(torch.linalg.vector_norm(at)), 1e-2) / length
        return (slope(fn, at + e * q) - slope(fn, at - e * q)) / (2 * e)

    return product
