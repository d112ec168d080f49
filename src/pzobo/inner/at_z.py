"""What is y^N as a function of z = prepare(x, batch)? Autograd carries what is found there on to x."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pzobo.inner.kernel import Z
from pzobo.inner.problem import Call, InnerProblem, Point, Tangent, in_turn
from pzobo.tensors.trees import Leaves, Tree, is_variable, substitute


class AtZ(InnerProblem):
    """y^N as a function of what the inner loss sees of x: one z for all batches without `prepare`, else one for each.

    Its points are those of the path, or of the Jacobian's own batches where there are any; the path itself then keeps
    the z it has.
    """

    def __init__(self, call: Call) -> None:
        asked = call.own or call.batches
        with torch.enable_grad():
            zs = [call.z(call.x_leaves, batch) for batch in (asked if call.prepare is not None else asked[:1])]
        points: list[Point] = []
        inputs: list[Tensor] = []
        for i, batch in enumerate(asked):
            if i < len(zs):
                slots = tuple(k for k, t in enumerate(zs[i]) if is_variable(t))
                offset = len(inputs)
                inputs.extend(zs[i][k] for k in slots)
                z = tuple(t.detach() if isinstance(t, Tensor) else t for t in zs[i])
            points.append(Point(z, batch, slots, offset))
        super().__init__(call, tuple(inputs))
        self.points = points
        self._count = len(zs)
        self._path: Sequence[tuple[Z, Tree]] = self._own_path() if call.own else ()

    def x(self, values: Leaves) -> Tree:
        return self.call.x_plan.build(substitute(self.call.x_leaves, (), ()))

    def feed(self, values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        pairs = self._path or [(z, p.batch) for z, p in zip(self._filled(values), self.points, strict=True)]
        return in_turn(pairs, self.call.steps)

    def tangents(self, u: Leaves) -> Iterator[Tangent]:
        for t in range(self.call.steps):
            point = self.points[t % len(self.points)]
            yield point.z, point.batch, point.slots, u[point.offset : point.offset + len(point.slots)]

    def _own_path(self) -> list[tuple[Z, Tree]]:
        """(z, batch) of the path, where the points are those of other batches."""
        call = self.call
        constants = substitute(call.x_leaves, (), ())
        path = [(call.z(constants, batch), batch) for batch in call.batches]
        return path if call.prepare is not None else [(path[0][0], batch) for _, batch in path]

    def _filled(self, values: Leaves) -> list[Z]:
        """The z of each point with these values; one for all where there is no `prepare`."""
        made = []
        for point in self.points[: self._count]:
            z = list(point.z)
            for k, slot in enumerate(point.slots):
                z[slot] = values[point.offset + k]
            made.append(tuple(z))
        return made * (len(self.points) // len(made))
