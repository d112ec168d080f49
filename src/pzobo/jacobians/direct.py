"""What if y did not depend on x? No response at all: the control that every comparison shows."""

from __future__ import annotations

from dataclasses import dataclass

from pzobo.inner.problem import InnerProblem
from pzobo.jacobians.base import Jacobian, Level
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves


@dataclass(frozen=True)
class Direct(Jacobian):
    """dy/dx = 0, so the hypergradient is df/dx alone (Eq. 2 without its second term).

    A method that does not beat it has not shown that its Jacobian helps.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=20), pzobo.Direct())
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.equal(x.grad, x.detach() / 10)                 # df/dx, and nothing of the response
        True
    """

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        return inner.base(), lambda v: trees.zeros(inner.variables)

    def level(self, x_size: int, z_size: int) -> Level:
        return "x"
