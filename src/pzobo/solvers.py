"""How is y^N reached? Inner solvers: small objects that know one update, and nothing of how y is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.solver import Iterative, Solver
from pzobo.options import in_range
from pzobo.tensors import trees
from pzobo.tensors.checks import untouched
from pzobo.tensors.trees import Leaves, Tree

__all__ = ["GD", "Adam", "BlackBox", "ClosedForm", "HeavyBall", "Iterative", "Solver"]


@dataclass(frozen=True)
class GD(Iterative):
    """Gradient descent, y <- y - lr * dg/dy (Algorithm 1, line 5; with `batches=` it is SGD, Algorithm 2).

    Args:
        lr: the inner step size, alpha in the paper; positive. Of a tensor the number that it holds now is taken, here
            and in all options.
        steps: N, the number of inner steps; at least 1.
    """

    lr: float
    steps: int
    numbers = ("lr",)

    def __post_init__(self) -> None:
        self._check(lr=self.lr)

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return trees.add(y, gradient, -self.lr), state

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        return trees.mul(y_bar, -self.lr), y_bar, ()


@dataclass(frozen=True)
class HeavyBall(Iterative):
    """Gradient descent with momentum, as torch.optim.SGD: b <- momentum * b + dg/dy, y <- y - lr * b.

    Args:
        lr: the inner step size; positive.
        momentum: what a step keeps of b, in [0, 1). 0 is gradient descent.
        steps: N, the number of inner steps; at least 1.
    """

    lr: float
    momentum: float
    steps: int
    numbers = ("lr", "momentum")

    def __post_init__(self) -> None:
        self._check(lr=self.lr)
        in_range("HeavyBall: momentum", self.momentum, 0, 1)

    def init(self, y: Leaves) -> Leaves:
        return trees.zeros(y)

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        state = trees.add(gradient, state, self.momentum)
        return trees.add(y, state, -self.lr), state

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        bar = trees.add(state_bar, y_bar, -self.lr)
        return bar, y_bar, trees.mul(bar, self.momentum)


@dataclass(frozen=True)
class Adam(Iterative):
    """Adam with the numbers of torch.optim.Adam. Its derivative at a zero gradient is finite.

    Args:
        lr: the inner step size; positive.
        steps: N, the number of inner steps; at least 1.
        betas: what the averages of the gradient and of its square keep at each step, both in [0, 1).
        eps: added to the root of the averaged square, so that nothing is divided by 0; positive.
    """

    lr: float
    steps: int
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    # Adam's map changes with its state and has no fixed point of its own to differentiate at.
    gives = frozenset({"gradient", "path"})
    numbers = ("lr", "betas", "eps")
    linear = False

    def __post_init__(self) -> None:
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise OptionError(f"Adam: betas={self.betas!r}: must be a pair of numbers in [0, 1).")
        for beta in self.betas:
            in_range("Adam: betas", beta, 0, 1)
        object.__setattr__(self, "betas", tuple(self.betas))
        self._check(lr=self.lr, eps=self.eps)

    def init(self, y: Leaves) -> Leaves:
        # 1 - beta^t by its recursion c <- beta c + (1 - beta): full relative precision also in float32, where
        # computing 1 - beta^t directly would lose four digits at t = 1.
        corrections = tuple(torch.zeros((), dtype=trees.wide(y[0].dtype), device=y[0].device) for _ in range(2))
        return (*corrections, *trees.zeros(y), *trees.zeros(y))

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        beta1, beta2 = self.betas
        c1 = _of(beta1, state[0]) * state[0] + _of(1 - beta1, state[0])
        c2 = _of(beta2, state[1]) * state[1] + _of(1 - beta2, state[1])
        first = tuple(torch.lerp(m, g, _of(1 - beta1, m)) for m, g in zip(state[2 : 2 + len(y)], gradient, strict=True))
        second = tuple(
            _of(beta2, v) * v + _of(1 - beta2, v) * g * g for v, g in zip(state[2 + len(y) :], gradient, strict=True)
        )
        new = tuple(
            t
            - (self.lr / c1).to(t.dtype)
            * torch.where(v > 0, m / (_sqrt(v) / c2.sqrt().to(t.dtype) + _of(self.eps, v)), 0.0)
            for t, m, v in zip(y, first, second, strict=True)
        )
        return new, (c1, c2, *first, *second)


def _of(number: float | Tensor, like: Tensor) -> Any:
    """A number that does not change the dtype of what it is multiplied with: a tensor would where both are scalars."""
    return number.to(like.dtype) if isinstance(number, Tensor) else number


def _sqrt(v: Tensor) -> Tensor:
    """The square root with derivative 0 at 0 instead of infinity (which times 0 would be NaN)."""
    return torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0)


@dataclass(frozen=True)
class ClosedForm(Solver):
    """y = fn(z, batch): the inner problem solved by a formula.

    `Unrolled` and `ForwardMode` differentiate `fn` itself; `Implicit` uses only its value and the loss.

    Args:
        fn: the formula as `fn(z, batch) -> y`, in y0's structure, where z = prepare(x, batch), or x itself.
    """

    fn: Callable[[Tree, Tree], Tree]
    gives = frozenset({"gradient", "function"})

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        z, batch, _ = next(problem.feed(values))
        answer = problem.like_y0(self.fn(problem.kernel.z_plan.build(z), batch), "The closed form")
        return tuple([t.clone() for t in answer])  # fn may give the same memory each time, filled anew


@dataclass(frozen=True)
class BlackBox(Solver):
    """y = fn(x, y0, batch): any code at all (NumPy, scikit-learn, a subprocess). Nothing is asked of it but values.

    With `batches=` it gets the whole list. It may return NumPy arrays; gradients are enabled while it runs.

    Args:
        fn: the code as `fn(x, y0, batch) -> y`, in y0's structure. It gets a copy of y0, which it may change.
    """

    fn: Callable[[Tree, Tree, Tree], Tree]
    opaque = True

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        # Whatever the black box keeps or writes into is not what the caller has, nor what the other paths see.
        x = optree.tree_map(trees.copied, problem.x(values))
        y0 = problem.kernel.y_plan.build(t.clone() for t in problem.y0)
        with torch.enable_grad(), untouched(problem.data, "The black box", "its batch", closely=problem.check):
            answer = self.fn(x, y0, problem.data)
        return tuple([t.detach().clone() for t in problem.like_y0(answer, "The black box")])
