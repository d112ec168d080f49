"""What is a contender: a whole outer step to time, and a hypergradient to compare with the others'?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.problems import Problem, X


@dataclass(frozen=True)
class Contender:
    name: str
    estimates: str
    """Contenders that estimate the same thing must give the same hypergradient."""
    step: Callable[[], Any]
    """Draw directions, inner paths, outer loss, hypergradient, Adam step on x."""
    hypergradient: Callable[[], Sequence[Any]]
    """At x0; for PZOBO along `problem.direction`, unscaled."""
    x: Callable[[], Sequence[Any]]
    """The outer variables now, to see that they stayed finite."""
    tolerance: float = 5e-3
    """Of the relative error. In float32, delta / mu alone has rounding errors of about 1e-3 on the sparse problem."""


def relative_error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    a, b = (np.concatenate([np.asarray(t, dtype=np.float64).ravel() for t in tree]) for tree in (found, expected))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def torch_contender(
    name: str,
    estimates: str,
    problem: Problem,
    hypergradient: Callable[[X], Sequence[Tensor]],
) -> Contender:
    """A contender whose hypergradient is a function of x, with torch.optim.Adam on x."""
    x = tuple(t.clone().requires_grad_() for t in problem.x0)
    optimizer = torch.optim.Adam(x, lr=problem.outer_lr)

    def step() -> None:
        for parameter, gradient in zip(x, hypergradient(x), strict=True):
            parameter.grad = gradient
        optimizer.step()

    def at_x0() -> Sequence[Tensor]:
        return hypergradient(tuple(t.clone().requires_grad_() for t in problem.x0))

    return Contender(name, estimates, step, at_x0, lambda: [t.detach() for t in x])
