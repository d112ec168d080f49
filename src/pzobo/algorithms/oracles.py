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

from pzobo.algorithms.feed import Feed
from pzobo.algorithms.losses import Losses
from pzobo.algorithms.vector import Vector
from pzobo.errors import StructureError
from pzobo.inner.arguments import inner_variable
from pzobo.inner.differences import probe_size
from pzobo.inner.kernel import Kernel, Products, nothing
from pzobo.inner.problem import Point
from pzobo.inner.products import Linearization, Product, linearize, probe
from pzobo.inner.questions import Questions
from pzobo.inner.solver import Iterative
from pzobo.outer.minibatches import one_device
from pzobo.outer.problem import Problem
from pzobo.tensors.precision import working_eps
from pzobo.tensors.replay import Replay, rewinder
from pzobo.tensors.trees import Leaves, Plan, Tree

T = TypeVar("T")


class Slopes(NamedTuple):
    """The value of a loss on a batch, and its gradients.

    Attributes:
        value: the loss, a scalar.
        y: its gradient in the inner variables, like y.
        x: its gradient in the outer variables, like x.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> at = pzobo.algorithms.Oracles(problem, problem.start(), (None, None), "autodiff", seed=0)
        >>> f = at.f(at.x, at.y0, at.outer_batch())
        >>> f.value.shape, f.y.leaves[0].shape, f.x.leaves[0].shape
        (torch.Size([]), torch.Size([2]), torch.Size([3]))
    """

    value: Tensor
    y: Vector
    x: Vector


class Curved(NamedTuple):
    """dg/dy on a batch, and products with H = d2g/dy2 and J^T = d2g/dx dy.

    Attributes:
        y: dg/dy, like y.
        hv: H v, like y.
        jv: J^T v, like x.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> at = pzobo.algorithms.Oracles(problem, problem.start(), (None, None), "autodiff", seed=0)
        >>> at.curved(at.x, at.y0, at.inner_batch(), at.y0).jv.leaves[0].shape       # J^T v has x's shape
        torch.Size([3])
    """

    y: Vector
    hv: Vector
    jv: Vector


@dataclass(frozen=True)
class _Slope(Iterative):
    """A "step" whose answer is the gradient itself, so that the tangent of a step is that of the gradient."""

    steps: int = 1
    linear = True

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return gradient, state


@dataclass
class _Place:
    """Where products with the second derivatives of g are taken."""

    kernel: Kernel
    questions: Questions
    eps: float


class Oracles(Feed):
    """g and f of a problem, their batches, and the outer step k.

    Args:
        problem: the problem.
        x: its outer variables, a tree like x0, whose tensors an optimizer changes in place.
        sizes: rows of the batches of g and of f; None for all.
        products: how second derivatives are taken.
        seed: of the batches and of all random numbers.

    Attributes:
        x: the outer variables at this step, like x0; a copy, so that it can be kept.
        y0: where the inner variables start, like y.
        zeros: gradients that are zero, by the number of their tensor, those of y before those of x.

    Raises:
        StructureError: y0 holds no tensors.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> at = pzobo.algorithms.Oracles(problem, problem.start(), (None, None), "autodiff", seed=0)
        >>> g = at.curved(at.x, at.y0, at.inner_batch(), at.y0)
        >>> [t.shape for t in (g.y.leaves[0], g.hv.leaves[0], g.jv.leaves[0])]
        [torch.Size([2]), torch.Size([2]), torch.Size([3])]
    """

    def __init__(
        self, problem: Problem, x: Tree, sizes: tuple[int | None, int | None], products: Products, seed: int
    ) -> None:
        self.problem, self.products = problem, products
        self._losses = Losses(problem, x)
        self._variables = self._losses.variables
        y, self.y_plan = Plan.take(problem.y0)
        if not y:
            raise StructureError("y0 holds no tensors; there is nothing to minimise over.")
        self.y0 = Vector(tuple([inner_variable(leaf).clone() for leaf in y]))
        z_plan = Plan.take(self._variables)[1]
        self._g = Kernel(self._losses.inner, _Slope(), z_plan, self.y_plan, compile=False)
        self._f = Kernel(self._losses.outer, _Slope(), z_plan, self.y_plan, compile=False)
        self.slots = tuple(range(len(self._variables)))
        self._place = _Place(self._g, Questions(), working_eps(self.y0.leaves))
        self.zeros: dict[int, Tensor] = {}
        super().__init__(problem.train, problem.val, sizes, seed, one_device(x, problem.y0))
        self.x = self.present_x()

    # Where it stands

    def next(self) -> None:
        """An outer step begins: x is where the optimizer has left it."""
        self.x = self.present_x()
        if self.products == "difference":
            self._place.questions.next()
            self._place.eps = working_eps(self.y0.leaves)

    def looks(self, after: int) -> bool:
        """Whether the lengths of differences are looked for in the step after so many others."""
        asked = self._place.questions.asked + 1 + after
        return self.products == "difference" and asked & (asked - 1) == 0

    def passed(self, steps: int, calls: Counter[str], last: tuple[Tensor, Tensor]) -> None:
        super().passed(steps, calls, last)
        if self.products == "difference":
            self._place.questions.asked += steps
            self._place.questions.closely = False

    def present_x(self) -> Vector:
        """A copy of the outer variables as they are now."""
        return Vector(tuple([t.detach().clone() for t in self._variables]))

    @property
    def device(self) -> torch.device:
        """Where y is."""
        return self.y0.leaves[0].device

    def probes(self) -> tuple[Leaves, Leaves]:
        """The lengths of differences, relative to y: for H v alone, and for J^T v too."""
        by_y, by_x = (probe(self._place, slots, self.products) for slots in ((), self.slots))
        return by_y, by_x

    @property
    def inner_kernel(self) -> Kernel:
        """g as it is differentiated here."""
        return self._g

    @property
    def outer_kernel(self) -> Kernel:
        """f as it is differentiated here."""
        return self._f

    @property
    def variables(self) -> Leaves:
        """The tensors of x that are optimized, tied ones once."""
        return self._variables

    # First derivatives

    def f(self, x: Vector, y: Vector, batch: Tree) -> Slopes:
        """f with df/dy and df/dx."""
        self.calls["f"] += 1
        return self._slopes(self._losses.outer, x, y, batch)

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
        return self._slopes(self._losses.inner, x, y, batch)

    def g_y(self, x: Vector, y: Vector, batch: Tree) -> Vector:
        """dg/dy."""
        self.calls["g"] += 1
        return Vector(self._g.gradient(x.leaves, y.leaves, batch))

    def g_value(self, x: Vector, y: Vector, batch: Tree) -> Tensor:
        """g."""
        return self._g.value(x.leaves, y.leaves, batch)

    def _slopes(self, loss: Callable[..., Tensor], x: Vector, y: Vector, batch: Tree) -> Slopes:
        """A loss with its gradients. One that is zero, as that of an f without x, is made once: no step fills it."""
        count = len(y.leaves)
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (*y.leaves, *x.leaves)]
            value = loss(leaves[count:], self.y_plan.build(leaves[:count]), batch)
            found = (
                torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
            )
        slopes = tuple([self._zero(i, leaves[i]) if d is None else d for i, d in enumerate(found)])
        return Slopes(value.detach(), Vector(slopes[:count]), Vector(slopes[count:]))

    def _zero(self, i: int, like: Tensor) -> Tensor:
        if i not in self.zeros:
            self.zeros[i] = torch.zeros_like(like, requires_grad=False)
        return self.zeros[i]

    # Second derivatives of g, by autodiff, forward mode or differences

    def curved(self, x: Vector, y: Vector, batch: Tree, v: Vector) -> Curved:
        """dg/dy, H v and J^T v."""
        product = self._product(x, y, batch, self.slots, gradient=True)
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
        product = self._product(x, y, batch, self.slots)

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
        tangent = self._g.tangent((x.leaves, batch), x_dot.leaves, self.slots, y.leaves, (), y_dot.leaves, ())
        return Vector(tangent[2])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "questions": self._place.questions.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place.questions.load_state_dict(state["questions"])
        super().load_state_dict(state)

    def _product(self, x: Vector, y: Vector, batch: Tree, slots: tuple[int, ...], gradient: bool = False) -> Product:
        """q -> (H q, J^T q); all evaluations of a difference draw the same random numbers."""
        reset = nothing if self.products == "autodiff" else rewinder(self._variables)
        point = Point(x.leaves, batch, slots, 0)
        return linearize(self._place, point, y.leaves, slots, self.products, reset, gradient)

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
        return self._losses.tree(x.leaves)

    def kernels(self) -> tuple[Kernel, Kernel]:
        """g and f as compiled code takes them."""
        losses = (self._losses.inner, self._losses.outer)
        g, f = (Kernel(loss, _Slope(), self._g.z_plan, self.y_plan, compile=True) for loss in losses)
        return g, f
