"""How good is a step? The cosine of its hypergradient to that of f(x, y^N(x)), and what its x is worth."""

from __future__ import annotations

import optree
import torch
from torch import Tensor

from pzobo.jacobians import Direct, Unrolled
from pzobo.outer.bilevel import Bilevel
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.solvers import ClosedForm, Iterative
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


def at_solution(objective: Objective) -> dict[str, float]:
    """f(x, y*(x)), what x is worth with the inner problem solved: whose y the method has does not matter to it."""
    problem = getattr(objective, "problem", None)
    if not isinstance(problem, Problem) or problem.solution is None:
        return {}
    argmin = problem.argmin(ClosedForm(problem.solution), Direct(), check=False)
    with torch.no_grad():
        return {"solved_loss": float(problem.objective(argmin, objective.x))}
