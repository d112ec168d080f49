"""What is the inner problem, to a Jacobian? y^N as a function of variables: x itself (`AtX`) or z = prepare(x) (`AtZ`).

One call of `argmin` makes one of the two. It owns the base path; `again` runs others under its conditions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pzobo.distributed.splits import Split
from pzobo.errors import StructureError
from pzobo.inner.kernel import Kernel, Z
from pzobo.inner.questions import Questions
from pzobo.inner.solver import Solver
from pzobo.inner.stopping import until
from pzobo.tensors import trees
from pzobo.tensors.precision import dtype_eps, working_eps
from pzobo.tensors.replay import Replay
from pzobo.tensors.trees import Leaves, Plan, Tree

Tangent = tuple[Z, Tree, tuple[int, ...], Leaves]
"""z and the batch of a step, which leaves of z move, and their derivatives along a direction."""


@dataclass
class Reached:
    """How far the base path of a call came."""

    steps: int
    """How many steps it made: those of the solver, or fewer where the gradient was small enough. Other paths make as
    many."""
    state: Leaves | None = None
    """The solver's state after it, where the call began with one: else it is found again when it is asked for."""


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
    """The batch, or the list of batches, as a black box gets it."""
    prepare: Callable[[Tree, Tree], Tree] | None
    replay: Replay
    check: bool
    questions: Questions
    reached: Reached
    mixed: Sequence[Tree] = ()
    """The data of the last product, d2g/dz dy, where they are not those of the other products: one batch or none."""
    starts: Sequence[tuple[int, Tensor]] = ()
    """Those of y0's tensors that need a gradient, with their graphs, and which they are."""
    eps: float = 0.0
    """The rounding of half precisions that the loss itself computes in."""
    state: Leaves | None = None
    """The solver's state before the first step, where it does not begin anew."""
    split: Split | None = None
    """How directions are split over ranks, if they are."""

    @property
    def steps(self) -> int:
        return self.reached.steps

    @property
    def tol(self) -> float:
        return float(getattr(self.solver, "tol", 0.0))

    def first_state(self, y: Leaves) -> Leaves:
        """The solver's state before the first step."""
        state: Leaves = self.kernel.solver.init(y) if self.state is None else self.state
        return state

    def keep(self, state: Leaves) -> None:
        """Keep the solver's state after the path where one was given before it: those who give one ask for it."""
        if self.state is not None:
            self.reached.state = state

    def z(self, x_leaves: Sequence[Any], batch: Tree) -> Z:
        """The leaves of prepare(x, batch), and after them numbers of the solver: those of the last step."""
        numbers = self.kernel.numbers
        if self.prepare is None:
            z = tuple(x_leaves)
        else:
            answer = self.prepare(self.x_plan.build(x_leaves), batch)
            z = take_apart(answer, self.kernel.z_plan, "The answer of prepare()", "its first answer")
        if numbers is None:
            return z
        return (*z, *numbers.at_x(self.x_plan.build(x_leaves)), *numbers.at_step(self.steps - 1))

    def along(self, feed: Iterator[tuple[Z, Tree, int]]) -> Iterator[tuple[Z, Tree, int]]:
        """A feed, each step with its own numbers of the solver."""
        return feed if self.kernel.numbers is None else self.kernel.numbers.along(feed)

    def stepped(self, z: Z, step: int) -> Z:
        """z with the numbers of a step."""
        return z if self.kernel.numbers is None else self.kernel.numbers.stepped(z, step)


@dataclass(frozen=True)
class Point:
    """One z with the batch it belongs to, and which of its leaves are variables."""

    z: Z
    batch: Tree
    slots: tuple[int, ...]
    offset: int
    """Where its variables stand among all; points that share a z share them."""


class InnerProblem(ABC):
    """y^N as a function of `variables`, for one call of `argmin`.

    Attributes:
        inputs: the tensors asked about, with their graphs: what the answer is attached to. Last come those of y0.
        variables: their values, cut from their graphs.
        points: at z, the points that the variables belong to, in their order; at x none.
        mixed: which of the points are for the last product alone; the others are for all that is taken in turn.
    """

    points: Sequence[Point] = ()
    mixed: range = range(0)

    def __init__(self, call: Call, inputs: Leaves) -> None:
        self.call = call
        self.kernel: Kernel = call.kernel
        self.solver: Any = call.solver
        self.y0, self.data = call.y0, call.data
        self.replay, self.check, self.questions = call.replay, call.check, call.questions
        self.split = call.split
        self._own = len(inputs)
        self.inputs = (*inputs, *[t for _, t in call.starts])
        self.variables: Leaves = tuple(t.detach() for t in self.inputs)

    # What the two kinds differ in

    @abstractmethod
    def feed(self, values: Leaves) -> Iterator[tuple[Z, Tree, int]]:
        """(z, batch, number of steps) along the path, for given values of the variables."""

    @abstractmethod
    def tangents(self, u: Leaves) -> Iterator[Tangent]:
        """The feed and its derivative along a direction, step by step."""

    @abstractmethod
    def x(self, values: Leaves) -> Tree:
        """The outer variables as a tree, for given values of the variables."""

    # What they share

    def own(self, values: Leaves) -> Leaves:
        """Of something for each variable, that of x or z."""
        return values[: self._own]

    def start(self, values: Leaves) -> Leaves:
        """Where a path starts: y0 with these values of those of its tensors that are variables."""
        if not self.call.starts:
            return self.y0
        y0 = list(self.y0)
        for (i, _), value in zip(self.call.starts, values[self._own :], strict=True):
            y0[i] = value
        return tuple(y0)

    def start_along(self, u: Leaves) -> Leaves:
        """The derivative of the start along a direction of the variables."""
        zeros = trees.zeros(self.y0)
        moved = dict(zip([i for i, _ in self.call.starts], u[self._own :], strict=True))
        return tuple(moved.get(i, zero) for i, zero in enumerate(zeros))

    def base(self) -> Leaves:
        """y^N at the variables' own values: the first path, whose conditions later ones repeat."""
        with self.replay.first():
            if "path" not in self.solver.gives:
                return self.solve(self.variables)
            feed, call = self.feed(self.variables), self.call
            if call.tol:
                first = call.first_state(self.y0)
                y, state, call.reached.steps = until(self.kernel, feed, self.y0, first, call.tol)
            else:
                y, state = self.kernel.path(feed, self.y0, state=call.state)
            self.call.keep(state)
            return y

    def again(self, values: Leaves, functional: bool = False) -> Leaves:
        """y^N at other values, under the conditions of the first path."""
        with self.replay.again():
            return self.solve(values, functional)

    def again_all(self, values: Iterable[Leaves]) -> list[Leaves]:
        """The same at many values, side by side where the solver can."""
        solver: Solver = self.solver
        with self.replay.again():
            return solver.solve_all(self, values)

    def solve(self, values: Leaves, functional: bool = False) -> Leaves:
        """y^N at these values of the variables."""
        solver: Solver = self.solver
        return solver.solve(self, values, functional)

    @cached_property
    def eps(self) -> float:
        """The relative rounding of g where the base path is run: of its dtype, or of autocast or TF32."""
        return max(working_eps(self.y0, self.replay.autocast), self.call.eps)

    def rounding(self, y: Leaves) -> Tensor:
        """The length by which rounding may change y: that of storing it, and of what was added to y0 on the way."""
        if self.eps == dtype_eps(y) or self.solver.opaque:
            return trees.norm(y) * dtype_eps(y)
        way = trees.add(y, self.y0, -1.0) if "path" in self.solver.gives else y
        return trees.norm(y) * dtype_eps(y) + trees.norm(way) * self.eps

    def reads_what_it_writes(self, y: Leaves) -> bool:
        """Whether dg/dy depends on buffers that g itself writes: taken twice in a row, between y0 and y, it differs."""
        if not self.replay.wrote:
            return False
        between = trees.mul(trees.add(y, self.y0), 0.5)
        with self.replay.again():
            z, batch, _ = next(iter(self.feed(self.variables)))
            self.replay.rewind()
            first = self.kernel.gradient(z, between, batch)
            self.replay.rewind()
            second = self.kernel.gradient(z, between, batch)
        return bool(trees.norm(trees.add(first, second, -1.0)) > self.eps**0.5 * trees.norm(first))

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

    @property
    def turn(self) -> range:
        """Which of the points are taken in turn."""
        return range(len(self.points) - len(self.mixed))

    def mean(self, indices: Sequence[int], by_z: Callable[[Point], Leaves]) -> Leaves:
        """Cotangents of all variables, from the mean of a derivative by z over some of the points."""
        share = 1.0 / len(indices)
        parts = {i: by_z(self.points[i]) for i in indices}
        return self.cotangents({i: trees.mul(part, share) if share < 1 else part for i, part in parts.items()})

    def cotangents(self, parts: dict[int, Leaves], start: Leaves | None = None) -> Leaves:
        """Cotangents of all variables, from those of some of the points, and of the start of the path if it has any."""
        answer: list[Tensor | None] = [None] * len(self.variables)
        if start is not None:
            answer[self._own :] = [start[i] for i, _ in self.call.starts]
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
