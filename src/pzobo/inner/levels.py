"""About which variables is a Jacobian asked? The outer variables x themselves, or z = prepare(x, batch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.inner.problem import Inner, Point, Questions, in_turn, take_apart
from pzobo.inner.step import Kernel, Z
from pzobo.tensors import trees
from pzobo.tensors.replay import Replay
from pzobo.tensors.sparse import SparseMatrix
from pzobo.tensors.trees import Leaves, Plan, Tree
from pzobo.zeroth_order.smoothing import substitute


@dataclass(frozen=True)
class Call:
    """The arguments of one call of `argmin`, taken apart."""

    kernel: Kernel
    solver: Any
    x_leaves: Sequence[Any]
    x_plan: Plan
    variables: Leaves
    """Those of x's tensors that need a gradient, tied ones once, with their graphs."""
    y0: Leaves
    batches: Sequence[Tree]
    """One batch for all steps, or one for each."""
    own: Sequence[Tree]
    """The Jacobian's own batches, if any."""
    data: Tree
    prepare: Callable[[Tree, Tree], Tree] | None
    replay: Replay
    check: bool
    questions: Questions

    @property
    def steps(self) -> int:
        return int(getattr(self.solver, "steps", 1))

    def z(self, x_leaves: Sequence[Any], batch: Tree) -> Z:
        """The leaves of prepare(x, batch)."""
        if self.prepare is None:
            return tuple(x_leaves)
        answer = self.prepare(self.x_plan.build(x_leaves), batch)
        return take_apart(answer, self.kernel.z_plan, "The answer of prepare()", "its first answer")


def at_x(call: Call) -> tuple[Inner, Leaves]:
    """The problem as a function of x. z is made anew for each x, and for many batches only when its step comes."""

    def x(values: Leaves) -> list[Any]:
        return substitute(call.x_leaves, call.variables, values)

    shared = call.prepare is None or len(call.batches) == 1

    def feed(values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        leaves = x(values)
        if shared:
            z = call.z(leaves, call.batches[0])
            yield from in_turn([(z, batch) for batch in call.batches], call.steps)
        else:
            for batch in call.batches:
                yield call.z(leaves, batch), batch, 1

    def tangents(u: Leaves) -> Iterator[tuple[Z, Tree, tuple[int, ...], Leaves]]:
        if shared:
            tangent = slope(u, call.batches[0])
            return ((tangent[0], call.batches[t % len(call.batches)], *tangent[1:]) for t in range(call.steps))
        return ((z, batch, *rest) for batch in call.batches for z, *rest in [slope(u, batch)])

    def slope(u: Leaves, batch: Tree) -> tuple[Z, tuple[int, ...], Leaves]:
        """z and its derivative along u, from one evaluation of `prepare`."""
        if call.prepare is None:
            along = {id(variable): d for variable, d in zip(call.variables, u, strict=True)}
            slots = tuple(i for i, leaf in enumerate(call.x_leaves) if id(leaf) in along)
            return tuple(x(values)), slots, tuple(along[id(call.x_leaves[i])] for i in slots)
        slots = ()

        def numbers(*values: Tensor) -> tuple[Leaves, Z]:
            nonlocal slots
            z = call.z(x(values), batch)
            slots = tuple(
                i
                for i, t in enumerate(z)
                if isinstance(t, Tensor) and t.is_floating_point() and not isinstance(t, SparseMatrix)
            )
            return tuple(z[i] for i in slots), z

        found: Any = torch.func.jvp(numbers, values, u, has_aux=True)
        return found[2], slots, found[1]

    values = tuple(t.detach() for t in call.variables)
    inner = Inner(
        kernel=call.kernel,
        solver=call.solver,
        y0=call.y0,
        variables=values,
        feed=feed,
        points=(),
        tangents=tangents,
        x=lambda values: call.x_plan.build(x(values)),
        data=call.data,
        replay=call.replay,
        check=call.check,
        questions=call.questions,
        known={} if len(call.batches) == 1 else None,
    )
    return inner, call.variables


def at_z(call: Call) -> tuple[Inner, Leaves]:
    """The problem as a function of z; autograd carries what is found there on to x, through `prepare`."""
    asked = call.own or call.batches
    with torch.enable_grad():
        zs = [call.z(call.x_leaves, batch) for batch in (asked if call.prepare is not None else asked[:1])]
    points: list[Point] = []
    variables: list[Tensor] = []
    for i, batch in enumerate(asked):
        if i < len(zs):
            slots = tuple(k for k, t in enumerate(zs[i]) if trees.is_variable(t))
            offset = len(variables)
            variables.extend(zs[i][k] for k in slots)
            z = tuple(t.detach() if isinstance(t, Tensor) else t for t in zs[i])
        points.append(Point(z, batch, slots, offset))
    if call.own:
        constants = substitute(call.x_leaves, (), ())
        path = [(call.z(constants, batch), batch) for batch in call.batches]
        if call.prepare is None:
            path = [(path[0][0], batch) for _, batch in path]

    def feed(values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        pairs = path if call.own else [(z, point.batch) for z, point in zip(filled(values), points, strict=True)]
        return in_turn(pairs, call.steps)

    def filled(values: Leaves) -> list[Z]:
        """The z of each point with these values; one for all where there is no `prepare`."""
        made = []
        for point in points[: len(zs)]:
            z = list(point.z)
            for k, slot in enumerate(point.slots):
                z[slot] = values[point.offset + k]
            made.append(tuple(z))
        return made * (len(points) // len(made))

    def tangents(u: Leaves) -> Iterator[tuple[Z, Tree, tuple[int, ...], Leaves]]:
        for t in range(call.steps):
            point = points[t % len(points)]
            yield point.z, point.batch, point.slots, u[point.offset : point.offset + len(point.slots)]

    inner = Inner(
        kernel=call.kernel,
        solver=call.solver,
        y0=call.y0,
        variables=tuple(t.detach() for t in variables),
        feed=feed,
        points=points,
        tangents=tangents,
        x=lambda values: call.x_plan.build(substitute(call.x_leaves, (), ())),
        data=call.data,
        replay=call.replay,
        check=call.check,
        questions=call.questions,
        known={} if len(call.batches) == 1 else None,
    )
    return inner, tuple(variables)
