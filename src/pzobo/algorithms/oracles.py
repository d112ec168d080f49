"""What may an algorithm ask of a problem? Batches, gradients of g and f, and products with g's second derivatives.

Here x and y are `Vector`s: x of those tensors that are optimized, y of all. g is the inner loss after `prepare`, so
that an algorithm sees two functions g(x, y) and f(x, y) of a batch, and nothing of trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.argmin import inner_variable
from pzobo.errors import StructureError
from pzobo.inner.kernel import Kernel, Products, nothing, probe_size
from pzobo.inner.problem import Point
from pzobo.inner.products import Linearization, Product, linearize
from pzobo.inner.questions import Questions
from pzobo.inner.solver import Iterative
from pzobo.outer.minibatches import Minibatches
from pzobo.outer.problem import Problem
from pzobo.tensors import trees
from pzobo.tensors.checks import scalar
from pzobo.tensors.precision import working_eps
from pzobo.tensors.replay import Replay, rewinder
from pzobo.tensors.seeds import generator, mix
from pzobo.tensors.trees import Leaves, Plan, Tree, unique

T = TypeVar("T")


class Slopes(NamedTuple):
    """The value of a loss on a batch, and its gradients.

    Attributes:
        value: the loss.
        y: its gradient in the inner variables.
        x: its gradient in the outer variables.
    """

    value: Tensor
    y: Vector
    x: Vector


class Curved(NamedTuple):
    """dg/dy on a batch, and products with H = d2g/dy2 and J^T = d2g/dx dy.

    Attributes:
        y: dg/dy.
        hv: H v.
        jv: J^T v.
    """

    y: Vector
    hv: Vector
    jv: Vector


@dataclass(frozen=True)
class _Slope(Iterative):
    """A "step" whose answer is the gradient itself, so that the tangent of a step is that of the gradient."""

    steps: int = 1

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return gradient, state


@dataclass
class _Place:
    """Where products with the second derivatives of g are taken."""

    kernel: Kernel
    questions: Questions
    eps: float


class Oracles:
    """g and f of a problem, their batches, and the outer step k.

    Args:
        problem: the problem.
        x: its outer variables, whose tensors an optimizer changes in place.
        sizes: rows of the batches of g and of f; None for all.
        products: how second derivatives are taken.
        seed: of the batches and of all random numbers.

    Attributes:
        x: the outer variables at this step; a copy, so that it can be kept.
        y0: where the inner variables start.
        k: outer steps made.
        calls: how often f and g were differentiated on a batch, and how many products were taken.
    """

    def __init__(
        self, problem: Problem, x: Tree, sizes: tuple[int | None, int | None], products: Products, seed: int
    ) -> None:
        self.problem, self.products, self._seed = problem, products, seed
        self._x_leaves, self._x_plan = Plan.take(x)
        self._variables = unique(self._x_leaves)
        self._all = len(self._variables) == len(self._x_leaves)  # no constants, nothing tied
        y, self.y_plan = Plan.take(problem.y0)
        if not y:
            raise StructureError("y0 holds no tensors; there is nothing to minimise over.")
        self.y0 = Vector(tuple([inner_variable(leaf).clone() for leaf in y]))
        z_plan = Plan.take(self._variables)[1]
        self._g = Kernel(self._inner, _Slope(), z_plan, self.y_plan, compile=False)
        self._f = Kernel(self._outer, _Slope(), z_plan, self.y_plan, compile=False)
        self._slots = tuple(range(len(self._variables)))
        self._place = _Place(self._g, Questions(), working_eps(self.y0.leaves))
        self._values: dict[str, Tensor] = {}
        data = (problem.train, problem.val)
        self._streams = [
            None if size is None else Minibatches(rows, size, mix(seed, 2 * i))
            for i, (rows, size) in enumerate(zip(data, sizes, strict=True))
        ]
        self.last_inner_batch: Tree = problem.train
        self.k, self._draws = 0, 0
        self.calls: Counter[str] = Counter(f=0, g=0, products=0)
        self.x = self.present_x()

    # Where it stands

    def next(self) -> None:
        """An outer step begins: x is where the optimizer has left it."""
        self.x = self.present_x()
        if self.products == "difference":
            self._place.questions.next()
            self._place.eps = working_eps(self.y0.leaves)

    def present_x(self) -> Vector:
        """A copy of the outer variables as they are now."""
        return Vector(tuple([t.detach().clone() for t in self._variables]))

    @property
    def variables(self) -> Leaves:
        """The tensors of x that are optimized, tied ones once."""
        return self._variables

    def rate(self, rate: Rate) -> float:
        """A rate at this outer step."""
        return float(rate(self.k)) if callable(rate) else rate

    def series_rate(self, rate: Rate | None, lr: Rate) -> float:
        """The step of a Neumann series: its own, or else that of y at the first step. It must not decay with k."""
        chosen = lr if rate is None else rate
        return float(chosen(0)) if callable(chosen) else chosen

    def state_dict(self) -> dict[str, Any]:
        positions = [None if s is None else s.position for s in self._streams]
        return {
            "k": self.k,
            "draws": self._draws,
            "batches": positions,
            "calls": dict(self.calls),
            "questions": self._place.questions.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, position in zip(self._streams, state["batches"], strict=True):
            if (stream is None) != (position is None):
                raise StructureError(f"A stream of batches stands at {position!r} in the saved state.")
            if stream is not None:
                stream.position = int(position)
        self._place.questions.load_state_dict(state["questions"])
        self.k, self._draws, self.calls = int(state["k"]), int(state["draws"]), Counter(state["calls"])

    # Batches and random numbers

    def inner_batch(self) -> Tree:
        """The next batch of g."""
        stream = self._streams[0]
        self.last_inner_batch = self.problem.train if stream is None else stream.next()
        return self.last_inner_batch

    def outer_batch(self) -> Tree:
        """The next batch of f."""
        stream = self._streams[1]
        return self.problem.val if stream is None else stream.next()

    def generator(self) -> torch.Generator:
        """The next source of random numbers; number j follows from the seed and j alone."""
        self._draws += 1
        return generator(mix(self._seed, 3), self._draws - 1)

    def draw(self, count: int) -> int:
        """A whole number below `count`, each with the same chance."""
        return int(torch.randint(count, (), generator=self.generator()))

    def normal(self, like: Vector) -> Vector:
        """A vector of independent N(0, 1)."""
        # Drawn in one piece, so that the same numbers come whatever the tree looks like.
        first, count = like.leaves[0], sum(t.numel() for t in like.leaves)
        drawn = torch.randn(count, generator=self.generator(), dtype=trees.wide(first.dtype))
        return like.shaped(drawn.to(first.device))

    # First derivatives

    def f(self, x: Vector, y: Vector, batch: Tree) -> Slopes:
        """f with df/dy and df/dx."""
        self.calls["f"] += 1
        by_y, by_x = self._f.gradients(x.leaves, y.leaves, batch, self._slots)
        return Slopes(self._values["f"], Vector(by_y), Vector(by_x))

    def f_y(self, x: Vector, y: Vector, batch: Tree) -> Vector:
        """df/dy."""
        self.calls["f"] += 1
        return Vector(self._f.gradient(x.leaves, y.leaves, batch))

    def f_value(self, x: Vector, y: Vector, batch: Tree) -> Tensor:
        """f."""
        return self._f.value(x.leaves, y.leaves, batch)

    def g(self, x: Vector, y: Vector, batch: Tree) -> Slopes:
        """g with dg/dy and dg/dx."""
        self.calls["g"] += 1
        by_y, by_x = self._g.gradients(x.leaves, y.leaves, batch, self._slots)
        return Slopes(self._values["g"], Vector(by_y), Vector(by_x))

    def g_y(self, x: Vector, y: Vector, batch: Tree) -> Vector:
        """dg/dy."""
        self.calls["g"] += 1
        return Vector(self._g.gradient(x.leaves, y.leaves, batch))

    def g_value(self, x: Vector, y: Vector, batch: Tree) -> Tensor:
        """g."""
        return self._g.value(x.leaves, y.leaves, batch)

    # Second derivatives of g, by autodiff, forward mode or differences

    def curved(self, x: Vector, y: Vector, batch: Tree, v: Vector) -> Curved:
        """dg/dy, H v and J^T v."""
        product = self._product(x, y, batch, self._slots)
        if isinstance(product, Linearization):
            self.calls["g"] += 1
            slope = Vector(product.gradient)
        else:
            slope = self.g_y(x, y, batch)  # draws what the product draws again
        self.calls["products"] += 1
        hv, jv = product(v.leaves)
        return Curved(slope, Vector(hv), Vector(jv))

    def hessian(self, x: Vector, y: Vector, batch: Tree) -> Callable[[Vector], Vector]:
        """v -> H v, for many v."""
        product = self._product(x, y, batch, ())

        def times(v: Vector) -> Vector:
            self.calls["products"] += 1
            return Vector(product(v.leaves)[0])

        return times

    def both(self, x: Vector, y: Vector, batch: Tree) -> Callable[[Vector], tuple[Vector, Vector]]:
        """v -> (H v, J^T v), for many v."""
        product = self._product(x, y, batch, self._slots)

        def times(v: Vector) -> tuple[Vector, Vector]:
            self.calls["products"] += 1
            hv, jv = product(v.leaves)
            return Vector(hv), Vector(jv)

        return times

    def mixed(self, x: Vector, y: Vector, batch: Tree, v: Vector) -> Vector:
        """J^T v."""
        return self.both(x, y, batch)(v)[1]

    def along(self, x: Vector, y: Vector, batch: Tree, x_dot: Vector, y_dot: Vector) -> Vector:
        """The derivative of dg/dy along (x_dot, y_dot): J x_dot + H y_dot."""
        self.calls["products"] += 1
        if self.products == "difference":
            relative = self._place.questions.probes[1].lengths(self._place.eps)[0]
            e = relative * probe_size((*x.leaves, *y.leaves), (*x_dot.leaves, *y_dot.leaves))
            reset, slopes = rewinder(self._variables), []
            for s in (e, -e):
                reset()
                slopes.append(Vector(self._g.gradient((x + s * x_dot).leaves, (y + s * y_dot).leaves, batch)))
            return (slopes[0] - slopes[1]) * (0.5 / e)
        tangent = self._g.tangent((x.leaves, batch), x_dot.leaves, self._slots, y.leaves, (), y_dot.leaves, ())
        return Vector(tangent[2])

    def _product(self, x: Vector, y: Vector, batch: Tree, slots: tuple[int, ...]) -> Product:
        """q -> (H q, J^T q); all evaluations of a difference draw the same random numbers."""
        reset = nothing if self.products == "autodiff" else rewinder(self._variables)
        return linearize(self._place, Point(x.leaves, batch, slots, 0), y.leaves, slots, self.products, reset)

    # Two points

    def twice(self, oracle: Callable[..., T], now: tuple[Any, ...], before: tuple[Any, ...]) -> tuple[T, T]:
        """An oracle at two points, with the same random numbers and module buffers: dropout drops the same."""
        replay = Replay(self._variables)
        replay.start()
        first = oracle(*now)
        replay.stop()
        with replay.again():
            return first, oracle(*before)

    # The two functions

    def tree(self, x: Vector) -> Tree:
        """x as the problem has it."""
        return self._tree(x.leaves)

    def _tree(self, x: Leaves) -> Tree:
        leaves = x if self._all else trees.substitute(self._x_leaves, self._variables, x)
        return self._x_plan.build(leaves)

    def _inner(self, x: Leaves, y: Tree, batch: Tree) -> Tensor:
        problem, tree = self.problem, self._tree(x)
        z = tree if problem.prepare is None else problem.prepare(tree, batch)
        return self._noted("g", problem.inner_loss(z, y, batch), "The inner loss")

    def _outer(self, x: Leaves, y: Tree, batch: Tree) -> Tensor:
        return self._noted("f", self.problem.outer_loss(self._tree(x), y, batch), "The outer loss")

    def _noted(self, name: str, value: Tensor, what: str) -> Tensor:
        """A loss, whose value is kept: a gradient that was asked for has it for nothing."""
        self._values[name] = scalar(value, what).detach()
        return value
