"""What is f(x, y^N(x)) over a run? The objective of a method on a problem: its batches, its warm starts, its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import optree
import torch
from torch import Tensor

from pzobo.argmin import Argmin
from pzobo.errors import OptionError, StructureError
from pzobo.outer.minibatches import Minibatches, one_device
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.solvers import Iterative, Solver
from pzobo.tensors import trees
from pzobo.tensors.seeds import mix
from pzobo.tensors.trees import Leaves, Tree

Mixed = Literal["all", "batch"]
"""The rows of the last product of Implicit and Nudged: all the training data, or the batch of the other products."""


@dataclass(frozen=True)
class Batches:
    """Which rows each level sees at a step; all of them where a size is None."""

    inner: int | None = None
    """S, rows of a batch of each inner step."""
    outer: int | None = None
    """D_f, rows of a batch of the outer loss."""
    own: int = 0
    """How many batches of S rows the Jacobian draws for itself."""
    mixed: Mixed = "all"
    """Which rows its last product is taken on."""

    def check(self, solver: Solver) -> None:
        """Refuse what a solver without steps, or without batches, cannot have."""
        if self.inner is not None and not isinstance(solver, Iterative):
            raise OptionError(f"batch_size= needs a solver that makes steps; {type(solver).__name__} makes none.")
        if self.mixed not in ("all", "batch"):
            raise OptionError(f'mixed={self.mixed!r}: must be "all" (the training data) or "batch".')
        if self.own and self.inner is None:
            raise OptionError("jacobian_batches= needs batch_size=: without it every step sees all the data.")


def check_warm_start(warm_start: Any, solver: Solver) -> None:
    """Refuse what is neither yes, no nor "state", and a state where a solver has none."""
    if warm_start not in (True, False, "state"):
        raise OptionError(f'warm_start={warm_start!r}: must be True, False or "state".')
    if warm_start == "state" and not isinstance(solver, Iterative):
        raise OptionError(f'warm_start="state" needs a solver that makes steps; {type(solver).__name__} makes none.')


class Bilevel(Objective):
    """f(x, y^N(x)), with the hypergradient of a method.

    Attributes:
        x: the outer variables, a tree like x0.
        y: the inner solution of the last call of `outer_loss`, or y0.
        argmin: the inner problem as a differentiable function.
    """

    def __init__(
        self, problem: Problem, argmin: Argmin, batches: Batches, warm_start: bool | Literal["state"], seed: int
    ) -> None:
        self.problem, self.argmin, self._warm_start, self._batches = problem, argmin, warm_start, batches
        self.x = problem.start()
        # In a run x alone is learned: weights of a module, which ask for gradients, are constants here.
        self._y0 = self.y = optree.tree_map(trees.detach, problem.y0)
        self._state: Leaves | None = None
        self._steps = argmin.solver.steps if isinstance(argmin.solver, Iterative) else 1
        sizes = (batches.inner, batches.inner, batches.outer)
        device = one_device(self.x, self.y)
        self._streams = [
            None if size is None else Minibatches(data, size, mix(seed, i), device)
            for i, (data, size) in enumerate(zip((problem.train, problem.train, problem.val), sizes, strict=True))
        ]
        self._inner, self._own, self._outer = self._streams
        self._last_batch = problem.train

    def outer_loss(self) -> Tensor:
        problem, data = self.problem, self._data()
        val = problem.val if self._outer is None else self._outer.next()
        y0 = self.y if self._warm_start else self._y0
        reached: list[Tree] = []
        if self._state is not None:
            data["state"] = self._state

        def value(x: Tree) -> Tensor:
            y = self.argmin(x, y0, **data)
            if not reached:  # the others are perturbed paths
                reached.append(optree.tree_map(trees.detach, y))
                if self._warm_start == "state":
                    self._state = self.argmin.last.state
            return problem.outer_loss(x, y, val)

        loss = self.around(value)
        for stream in self._streams:
            if stream is not None:
                stream.fetch()
        self.y = reached[0]
        return loss

    def around(self, value: Callable[[Tree], Tensor]) -> Tensor:
        """f(x, y^N(x)) at the present x, with its derivative: here that of the argmin itself."""
        return value(self.x)

    def _data(self) -> dict[str, Any]:
        """What the argmin gets at this step."""
        self._last_batch = self.problem.train
        if self._inner is None or self._own is None:
            return {"batch": self.problem.train}
        data: dict[str, Any] = {"batches": [self._inner.next() for _ in range(self._steps)]}
        self._last_batch = data["batches"][-1]
        if self._batches.own:
            data["jacobian_batches"] = [self._own.next() for _ in range(self._batches.own)]
        if self._batches.mixed == "all":
            data["mixed_batch"] = self.problem.train
        return data

    def inner_loss(self) -> float | None:
        problem, batch = self.problem, self._last_batch
        if problem.inner_loss is None:
            return None
        with torch.no_grad():
            z = self.x if problem.prepare is None else problem.prepare(self.x, batch)
            return float(problem.inner_loss(z, self.y, batch))

    def replaced(self) -> Leaves:
        return tuple(optree.tree_leaves(self.y))

    def data(self) -> Tree:
        return self.problem.train, self.problem.val

    def chosen(self) -> str:
        return self.argmin.jacobian.why

    def audit(self) -> dict[str, float]:
        return self.argmin.audited()

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return self.problem.metrics(self.x, self.y)

    def state_dict(self) -> dict[str, Any]:
        return {
            "batches": [None if b is None else b.position for b in self._streams],
            "y": optree.tree_leaves(self.y),
            "argmin": self.argmin.state_dict(),
            **({} if self._state is None else {"solver": list(self._state)}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for batches, position in zip(self._streams, state["batches"], strict=True):
            if batches is not None:
                if not isinstance(position, int):
                    raise StructureError(f"A stream of batches stands at {position!r} in the saved state.")
                batches.position = position
        self.argmin.load_state_dict(state["argmin"])
        leaves, plan = trees.Plan.take(self.problem.y0)
        if [(t.shape, t.dtype) for t in state["y"]] != [(t.shape, t.dtype) for t in leaves]:
            found = [(tuple(t.shape), t.dtype) for t in state["y"]]
            raise StructureError(f"y has the shapes and dtypes {found} in the saved state.")
        if "solver" in state:
            self._state = tuple(t.to(leaves[0].device) for t in state["solver"])
        self.y = plan.build([saved.to(leaf.device) for saved, leaf in zip(state["y"], leaves, strict=True)])
