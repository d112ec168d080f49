"""What does a Jacobian see of one call of `argmin`? The inner problem as a function of the variables asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import StructureError
from pzobo.inner.step import Kernel, Z
from pzobo.solvers import BlackBox, ClosedForm, Iterative
from pzobo.tensors.replay import Replay, uncached, watched
from pzobo.tensors.trees import Leaves, Plan, Tree


@dataclass(frozen=True)
class Point:
    """One z with the batch it belongs to, and which of its leaves are variables."""

    z: Z
    batch: Tree
    slots: tuple[int, ...]
    offset: int
    """Where its variables stand among all; points that share a z share them."""


class Questions:
    """How often a Jacobian was asked, and so whether it is time for a check that would cost too much every time."""

    def __init__(self) -> None:
        self.asked = 0

    def look_closely(self) -> bool:
        """At the 1st, 2nd, 4th, 8th... question."""
        self.asked += 1
        return self.asked & (self.asked - 1) == 0


@dataclass(frozen=True)
class Inner:
    """y^N as a function of `variables`: the outer variables themselves ("x"), or what `prepare` made of them ("z")."""

    kernel: Kernel
    solver: Any
    y0: Leaves
    variables: Leaves
    """The values, cut from their graphs."""
    feed: Callable[[Leaves], Iterator[tuple[Z, Tree, int]]]
    """(z, batch, number of steps) along the path, for given values of the variables."""
    points: Sequence[Point]
    """At level "z": the points that the variables belong to, in their order."""
    tangents: Callable[[Leaves], Iterator[tuple[Z, Tree, tuple[int, ...], Leaves]]]
    """The feed and its derivative along a direction: (z, batch, slots of z, their tangents) for each step."""
    x: Callable[[Leaves], Tree]
    """At level "x": the tree x for given values of the variables."""
    data: Tree
    """The batch, or the list of batches."""
    replay: Replay
    check: bool
    questions: Questions
    known: dict[str, Any] | None = None
    """Where all steps have one batch: machine code of the base path, for the other paths of this call."""

    def solve(self, variables: Leaves, functional: bool = False) -> Leaves:
        """y^N at these values of the variables."""
        solver = self.solver
        if isinstance(solver, Iterative):
            with uncached():
                return self.kernel.path(self.feed(variables), self.y0, functional=functional, known=self.known)[0]
        if isinstance(solver, ClosedForm):
            return self.formula(variables)
        assert isinstance(solver, BlackBox)
        # Whatever the black box keeps or writes into is not what the other paths see.
        with torch.enable_grad():
            answer = solver.fn(self.x(variables), self.kernel.y_plan.build(t.clone() for t in self.y0), self.data)
        return tuple([t.detach().clone() for t in self.like_y0(answer, "The black box")])

    def formula(self, variables: Leaves) -> Leaves:
        """The closed form's answer, differentiable."""
        z, batch, _ = next(self.feed(variables))
        return self.like_y0(self.solver.fn(self.kernel.z_plan.build(z), batch), "The closed form")

    def base(self) -> Leaves:
        """y^N at the variables' own values: the first solve, whose conditions later ones repeat."""
        self.replay.start()
        y = self.solve(self.variables)
        self.replay.stop()
        return y

    def again(self, variables: Leaves, functional: bool = False) -> Leaves:
        """`solve` under the conditions of the first time."""
        with self.replay.again(), watched() if isinstance(self.solver, BlackBox) else nullcontext():
            return self.solve(variables, functional)

    def like_y0(self, answer: Tree, who: str) -> Leaves:
        """An answer as leaves like those of y0."""
        leaves = take_apart(answer, self.kernel.y_plan, f"{who}'s answer", "y0")
        try:
            tensors = [
                leaf.to(t.device, t.dtype)
                if isinstance(leaf, Tensor)
                else torch.as_tensor(leaf, dtype=t.dtype, device=t.device)
                for leaf, t in zip(leaves, self.y0, strict=True)
            ]
        except (TypeError, ValueError, RuntimeError) as error:
            raise StructureError(f"{who} returned something that is not a tensor or an array: {error}") from error
        for found, expected in zip(tensors, self.y0, strict=True):
            if found.shape != expected.shape:
                raise StructureError(
                    f"{who} returned a tensor of shape {tuple(found.shape)} where y0 has {tuple(expected.shape)}; "
                    "the answer must have y0's structure and shapes."
                )
        return tuple(tensors)

    def cotangents(self, parts: dict[int, Leaves]) -> Leaves:
        """Cotangents of all variables, from those of some of the points."""
        answer: list[Tensor | None] = [None] * len(self.variables)
        for i, part in parts.items():
            for k, cotangent in enumerate(part, self.points[i].offset):
                before = answer[k]
                answer[k] = cotangent if before is None else before + cotangent
        return tuple(
            torch.zeros_like(t) if found is None else found for found, t in zip(answer, self.variables, strict=True)
        )


def take_apart(tree: Tree, plan: Plan, what: str, like: str) -> tuple[Any, ...]:
    """The leaves of a tree that must have a given structure."""
    leaves, found = Plan.take(tree)
    if found != plan:
        raise StructureError(f"{what} has the structure {found.spec}; expected that of {like}, {plan.spec}.")
    return leaves


def in_turn(pairs: Sequence[tuple[Z, Tree]], steps: int) -> Iterator[tuple[Z, Tree, int]]:
    """A feed of `steps` steps in all: the one pair for all of them, or the pairs in turn."""
    if len(pairs) == 1:
        return iter([(*pairs[0], steps)])
    return ((*pairs[t % len(pairs)], 1) for t in range(steps))
