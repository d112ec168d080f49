"""How good is a hypergradient? Its cosine to the exact gradient of f(x, y^N(x)) at the same x."""

from __future__ import annotations

import optree
import torch
from torch import Tensor

from pzobo.jacobians import Unrolled
from pzobo.outer.bilevel import Bilevel
from pzobo.outer.objective import Objective
from pzobo.solvers import Iterative
from pzobo.tensors import trees


def cosine(objective: Objective, solver: Iterative) -> dict[str, float]:
    """The cosine between the gradient that the last backward pass left in x, and the exact one of a solver's path."""
    if not isinstance(objective, Bilevel):
        return {}
    variables: list[Tensor] = [t for t in optree.tree_leaves(objective.x) if trees.is_variable(t)]
    estimate = [t.grad for t in variables if t.grad is not None]
    if len(estimate) < len(variables):
        return {}
    problem = objective.problem
    with torch.enable_grad():
        loss = problem.objective(problem.argmin(solver, Unrolled()), objective.x)
        exact = torch.autograd.grad(loss, variables)
    lengths = float(trees.norm(estimate) * trees.norm(exact))
    return {"cosine": float(trees.dot(estimate, exact)) / lengths} if lengths > 0 else {}
