"""What model does the found x give, fitted again on all data? As every search of scikit-learn ends."""

from __future__ import annotations

from typing import Any

import optree
import torch

from pzobo.argmin import Argmin
from pzobo.errors import OptionError, RequirementError
from pzobo.inner.solver import Iterative
from pzobo.jacobians.direct import Direct
from pzobo.outer.problem import Problem
from pzobo.solvers import Solver
from pzobo.tensors import trees
from pzobo.tensors.trees import Tree


def refit_solver(problem: Any, method: Any, refit: bool | Solver) -> Solver | None:
    """The solver of a last fit, or None if there is none; refused before a run begins if it could not be made."""
    if refit is False:
        return None
    if not isinstance(problem, Problem) or problem.all_data is None:
        raise RequirementError(
            "refit=True fits the model again on all data, and this problem does not say what that is: give it "
            "all_data=, a function of x, train and val."
        )
    solver = getattr(method, "solver", None) if refit is True else refit
    if refit is True and isinstance(solver, Iterative) and getattr(method, "warm_start", False):
        raise OptionError(
            f"refit=True: {type(method).__name__} goes on at each outer step from where y was. A last fit begins at "
            "y0, from where its steps may be too few: give a solver that makes enough, as in "
            "refit=pzobo.GD(lr=0.1, steps=500)."
        )
    if not isinstance(solver, Solver):
        raise OptionError(
            f"refit={refit!r}: {type(method).__name__} has no solver of its own; give one, as in "
            "refit=pzobo.GD(lr=0.1, steps=500)."
        )
    return solver


def refitted(problem: Problem, solver: Solver, x: Tree) -> Tree:
    """y of the model at x, fitted from y0 on training and validation data together."""
    assert problem.all_data is not None
    with torch.no_grad():
        z, batch = problem.all_data(optree.tree_map(trees.detach, x), problem.train, problem.val)
        argmin = Argmin(problem.inner_loss, solver=solver, jacobian=Direct(), audit=False)
        return argmin(z, problem.y0, batch)
