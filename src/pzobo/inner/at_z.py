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

    Its points are those of the path, or of the Jacobian's own batches where there are any, and after them that of the
    last product where it has data of its own. With `prepare` the path itself then keeps the z it has.
    """

    def __init__(self, call: Call) -> None:
        turn = call.own or call.batches
        points: list[Point] = []
        inputs: list[Tensor] = []
        for i, batch in enumerate([*turn, *call.mixed]):
            if i == 0 or call.prepare is not None:
                # What the last product alone is asked about needs no graph elsewhere.
                with torch.set_grad_enabled(i >= len(turn) or call.prepare is None or not call.mixed):
                    leaves = call.z(call.x_leaves, batch)
                slots = tuple(k for k, t in enumerate(leaves) if is_variable(t))
                offset = len(inputs)
                inputs.extend(leaves[k] for k in slots)
                z = tuple(t.detach() if isinstance(t, Tensor) else t for t in leaves)
            points.append(Point(z, batch, slots, offset))
        super().__init__(call, tuple(inputs))
        self.points = points
        self.mixed = range(len(turn), len(points))
        self._path: Sequence[tuple[Z, Tree]] = ()
        if call.prepare is not None and call.own:
            constants = substitute(call.x_leaves, (), ())
            self._path = [(call.z(constants, batch), batch) for batch in call.batches]
        elif call.prepare is not None and call.mixed:
            self._path = [(points[i].z, points[i].batch) for i in self.turn]

    def x(self, values: Leaves) -> Tree:
        return self.call.x_plan.build(substitute(self.call.x_leaves, (), ()))

    def feed(self, values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        pairs = self._path or list(zip(self._filled(values), self.call.batches, strict=True))
        return self.call.along(in_turn(pairs, self.call.steps))

    def tangents(self, u: Leaves) -> Iterator[Tangent]:
        for t in range(self.call.steps):
            point = self.points[t % len(self.points)]
            yield (
                self.call.stepped(point.z, t),
                point.batch,
                point.slots,
                u[point.offset : point.offset + len(point.slots)],
            )

    def _filled(self, values: Leaves) -> list[Z]:
        """The z of each batch of the path with these values; one for all where there is no `prepare`."""
        made = []
        for point in self.points if self.call.prepare is not None else self.points[:1]:
            z = list(point.z)
            for k, slot in enumerate(point.slots):
                z[slot] = values[point.offset + k]
            made.append(tuple(z))
        return made * (len(self.call.batches) // len(made))
