"""What is a method? How y^N is reached, what dy/dx is taken to be, and on which batches; `fit` runs it on a problem."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import optree
import torch
from torch import Tensor

from pzobo.errors import OptionError, StructureError
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.pzobo import PZOBO
from pzobo.outer.minibatches import Minibatches
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.solvers import Iterative, Solver
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree
from pzobo.zeroth_order.directions import Sampler
from pzobo.zeroth_order.smoothing import smooth


@dataclass(frozen=True)
class Method:
    """A solver and a Jacobian, as in `Argmin`, and what a whole run adds to them.

    Args:
        solver: how y^N is reached.
        jacobian: what dy/dx is taken to be.
        around: "inner" estimates the response y^N(x) alone. "objective" puts the smoothing of `jacobian`, which must be
            `PZOBO`, around the whole outer loss instead: HOZOG.
        warm_start: start each inner path where the last one ended, instead of at y0.
        batch_size: S, rows of a batch of each inner step (PZOBO-S); all the training data by default.
        outer_batch_size: D_f, rows of a batch of the outer loss; all the validation data by default.
        jacobian_batches: how many batches of S rows the Jacobian draws for itself (Implicit and Nudged).
        compile: as in `Argmin`.
        check: as in `Argmin`.

    Example:
        >>> method = pzobo.Method(pzobo.GD(lr=0.1, steps=20), pzobo.Unrolled(products="difference"))
        >>> pzobo.fit(problem, method, steps=100, lr=0.05)
    """

    solver: Solver
    jacobian: Jacobian
    around: Literal["inner", "objective"] = "inner"
    warm_start: bool = False
    batch_size: int | None = None
    outer_batch_size: int | None = None
    jacobian_batches: int = 0
    compile: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        if self.around not in ("inner", "objective"):
            raise OptionError(f'around={self.around!r}: must be "inner" or "objective".')
        if self.around == "objective" and not isinstance(self.jacobian, PZOBO):
            raise OptionError(
                f'around="objective" smooths the whole outer loss: give jacobian=PZOBO(...), not {self.jacobian!r}.'
            )
        if self.batch_size is not None and not isinstance(self.solver, Iterative):
            raise OptionError(f"batch_size= needs a solver that makes steps; {type(self.solver).__name__} makes none.")
        if self.jacobian_batches and self.batch_size is None:
            raise OptionError("jacobian_batches= needs batch_size=: without it every step sees all the data.")

    def start(self, problem: Problem, seed: int = 0) -> Bilevel:
        """The objective f(x, y^N(x)) of a problem, at x0."""
        return Bilevel(problem, self, seed)


class Bilevel(Objective):
    """f(x, y^N(x)), with the hypergradient of a method.

    Attributes:
        x: the outer variables.
        y: the inner solution of the last call of `loss`, or y0.
        argmin: the inner problem as a differentiable function.
    """

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        self.problem, self.method = problem, method
        self.x: Tree = problem.start()
        self.y: Tree = problem.y0
        jacobian = _begun(method.jacobian)
        self._smoothing = jacobian if method.around == "objective" and isinstance(jacobian, PZOBO) else None
        jacobian = jacobian if self._smoothing is None else Direct()
        self.argmin = problem.argmin(method.solver, jacobian, compile=method.compile, check=method.check)
        self._steps = method.solver.steps if isinstance(method.solver, Iterative) else 1
        sizes = (method.batch_size, method.batch_size, method.outer_batch_size)
        self._streams = [
            None if size is None else Minibatches(data, size, 3 * seed + i)
            for i, (data, size) in enumerate(zip((problem.train, problem.train, problem.val), sizes, strict=True))
        ]
        self._inner, self._own, self._outer = self._streams
        self._last_batch = problem.train

    def loss(self) -> Tensor:
        method, problem = self.method, self.problem
        data: dict[str, Any] = {"batch": problem.train}
        self._last_batch = problem.train
        if self._inner is not None and self._own is not None:
            data = {"batches": [self._inner.next() for _ in range(self._steps)]}
            self._last_batch = data["batches"][-1]
            if method.jacobian_batches:
                data["jacobian_batches"] = [self._own.next() for _ in range(method.jacobian_batches)]
        val = problem.val if self._outer is None else self._outer.next()
        y0 = self.y if method.warm_start else problem.y0
        reached: list[Tree] = []

        def value(x: Tree) -> Tensor:
            y = self.argmin(x, y0, **data)
            if not reached:  # the others are perturbed paths
                reached.append(optree.tree_map(trees.detach, y))
            return problem.outer_loss(x, y, val)

        loss = value(self.x) if self._smoothing is None else self._smooth(value, self._smoothing)
        self.y = reached[0]
        return loss

    def _smooth(self, value: Callable[[Tree], Tensor], options: PZOBO) -> Tensor:
        smoothed: Tensor = smooth(
            value,
            self.x,
            mu=options.mu,
            directions=options.directions,
            sampler=options.sampler,
            shrink=options.shrink,
            antithetic=options.antithetic,
        )
        return smoothed

    def inner_loss(self) -> float | None:
        problem, batch = self.problem, self._last_batch
        if problem.loss is None:
            return None
        with torch.no_grad():
            z = self.x if problem.prepare is None else problem.prepare(self.x, batch)
            return float(problem.loss(z, self.y, batch))

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return self.problem.metrics(self.x, self.y)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "batches": [None if b is None else b.position for b in self._streams],
            "y": optree.tree_leaves(self.y),
            "argmin": self.argmin.state_dict(),
        }
        if self._smoothing is not None:
            state["sampler"] = self._smoothing.sampler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for batches, position in zip(self._streams, state["batches"], strict=True):
            if batches is not None:
                batches.position = position
        self.argmin.load_state_dict(state["argmin"])
        if self._smoothing is not None:
            self._smoothing.sampler.load_state_dict(state["sampler"])
        leaves, plan = trees.Plan.take(self.problem.y0)
        if [t.shape for t in state["y"]] != [t.shape for t in leaves]:
            raise StructureError(f"y has the shapes {[tuple(t.shape) for t in state['y']]} in the saved state.")
        self.y = plan.build([saved.to(leaf.device) for saved, leaf in zip(state["y"], leaves, strict=True)])


def _begun(jacobian: Jacobian) -> Jacobian:
    """The Jacobian with its sampler at the start of its stream, so that every run of a method is alike."""
    sampler = getattr(jacobian, "sampler", None)
    if not isinstance(sampler, Sampler) or sampler.seed is None:
        return jacobian
    sampler = copy.copy(sampler)
    object.__setattr__(sampler, "generator", torch.Generator().manual_seed(sampler.seed or 0))
    alike: Any = jacobian
    begun: Jacobian = replace(alike, sampler=sampler)
    return begun
