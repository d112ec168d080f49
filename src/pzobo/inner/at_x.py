"""What is y^N as a function of x? z is made anew for each x, and for many batches only when its step comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pzobo.inner.kernel import Z
from pzobo.inner.problem import Call, InnerProblem, Tangent, in_turn
from pzobo.tensors.sparse import SparseMatrix
from pzobo.tensors.trees import Leaves, Tree, refuse_complex, substitute


class AtX(InnerProblem):
    """y^N as a function of the outer variables themselves."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, call.variables)
        self._one_z = call.prepare is None or len(call.batches) == 1

    def x(self, values: Leaves) -> Tree:
        return self.call.x_plan.build(self._x_leaves(values))

    def feed(self, values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        return self.call.along(self._feed(values))

    def _feed(self, values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        call, leaves = self.call, self._x_leaves(values)
        if self._one_z:
            z = call.z(leaves, call.batches[0])
            yield from in_turn([(z, batch) for batch in call.batches], call.steps)
        else:
            for batch in call.batches[: call.steps]:
                yield call.z(leaves, batch), batch, 1

    def tangents(self, u: Leaves) -> Iterator[Tangent]:
        batches = self.call.batches
        if self._one_z:
            z, *rest = self._slope(u, batches[0])
            return ((self.call.stepped(z, t), batches[t % len(batches)], *rest) for t in range(self.call.steps))
        return (
            (self.call.stepped(z, t), batch, *rest)
            for t, batch in enumerate(batches[: self.call.steps])
            for z, *rest in [self._slope(u, batch)]
        )

    def _x_leaves(self, values: Leaves) -> list[Any]:
        return substitute(self.call.x_leaves, self.call.variables, self.own(values))

    def _slope(self, u: Leaves, batch: Tree) -> tuple[Z, tuple[int, ...], Leaves]:
        """z, its slots that are numbers, and their derivatives along u, from one evaluation of `prepare`."""
        call = self.call
        if call.prepare is None and call.kernel.numbers is None:
            along = {id(variable): d for variable, d in zip(call.variables, self.own(u), strict=True)}
            slots = tuple(i for i, leaf in enumerate(call.x_leaves) if id(leaf) in along)
            return tuple(self._x_leaves(self.variables)), slots, tuple(along[id(call.x_leaves[i])] for i in slots)
        slots, constants = (), {}

        def numbers(*values: Tensor) -> tuple[Leaves, Leaves]:
            nonlocal slots, constants
            z = call.z(self._x_leaves(values), batch)
            for t in z:
                if isinstance(t, Tensor):
                    refuse_complex(t)
            slots = tuple(
                i
                for i, t in enumerate(z)
                if isinstance(t, Tensor) and t.is_floating_point() and not isinstance(t, SparseMatrix)
            )
            constants = {i: t for i, t in enumerate(z) if not isinstance(t, Tensor)}
            return tuple(z[i] for i in slots), tuple(t for t in z if isinstance(t, Tensor))

        found: Any = torch.func.jvp(numbers, self.own(self.variables), self.own(u), has_aux=True)
        tensors = iter(found[2])
        z = tuple(constants[i] if i in constants else next(tensors) for i in range(len(constants) + len(found[2])))
        return z, slots, found[1]
