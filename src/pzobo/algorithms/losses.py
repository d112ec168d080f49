"""What are g and f as functions of the tensors of x? `prepare` is a part of g, and constants in x are put back."""

from __future__ import annotations

from torch import Tensor

from pzobo.outer.problem import Problem
from pzobo.tensors import trees
from pzobo.tensors.checks import scalar
from pzobo.tensors.trees import Leaves, Plan, Tree, unique


class Losses:
    """g and f of a problem, of those tensors of x that are optimized.

    Args:
        problem: the problem.
        x: its outer variables.

    Attributes:
        variables: the tensors that are optimized, tied ones once.
    """

    def __init__(self, problem: Problem, x: Tree) -> None:
        self._problem = problem
        leaves, plan = Plan.take(x)
        self._plan = plan.traceable()
        self.variables: Leaves = unique(leaves)
        number = {id(variable): i for i, variable in enumerate(self.variables)}
        self._numbers = tuple([number.get(id(leaf), -1) for leaf in leaves])
        self._constants = tuple([None if id(leaf) in number else trees.detach(leaf) for leaf in leaves])
        self._all = len(self.variables) == len(leaves)  # no constants, nothing tied

    def tree(self, x: Leaves) -> Tree:
        """x as the problem has it."""
        if self._all:
            return self._plan.build(x)
        pairs = zip(self._numbers, self._constants, strict=True)
        return self._plan.build([constant if i < 0 else x[i] for i, constant in pairs])

    def inner(self, x: Leaves, y: Tree, batch: Tree) -> Tensor:
        """g."""
        problem, tree = self._problem, self.tree(x)
        z = tree if problem.prepare is None else problem.prepare(tree, batch)
        return scalar(problem.inner_loss(z, y, batch), "The inner loss")

    def outer(self, x: Leaves, y: Tree, batch: Tree) -> Tensor:
        """f."""
        return scalar(self._problem.outer_loss(self.tree(x), y, batch), "The outer loss")
