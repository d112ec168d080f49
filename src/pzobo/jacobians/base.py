"""What is asked of a response Jacobian? y^N, and a pullback v -> (dy/dx)^T v that autograd calls when it needs it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pzobo.errors import RequirementError
from pzobo.inner.problem import Inner
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves

Level = Literal["x", "z"]

NEEDS = {
    "gradient": "the gradient of g",
    "path": "a path of gradient steps",
    "map": "the fixed point of the solver's own update",
    "function": "a differentiable formula for y",
}


class Jacobian:
    """An answer to the question: given v = df/dy, what is (dy/dx)^T v?"""

    needs: ClassVar[tuple[frozenset[str], ...]] = ()
    """What it needs of the solver: of each set, at least one."""
    own_batches: ClassVar[bool] = False
    """Whether it evaluates g on batches of its own (`jacobian_batches=`)."""

    def run(self, inner: Inner) -> tuple[Leaves, Pullback]:
        """y^N and the pullback."""
        raise RequirementError(f"{type(self).__name__} does not define run().")

    def level(self, x_size: int, z_size: int) -> Level:
        """Whether it is asked about x itself or about z = prepare(x, batch); autograd does the rest."""
        return "z"

    def requirements(self) -> tuple[frozenset[str], ...]:
        return self.needs

    def check(self, solver: Any) -> None:
        """Refuse a solver that does not give what is needed."""
        for need in self.requirements():
            if not need & solver.gives:
                wanted = " or ".join(NEEDS[n] for n in sorted(need))
                raise RequirementError(
                    f"{type(self).__name__} needs {wanted}, which {type(solver).__name__} does not give. "
                    + _advice(solver)
                )


def refuse_random(inner: Inner, who: str) -> None:
    """Refuse a problem that draws random numbers, for methods that evaluate it at other places or in another order."""
    if inner.replay.random:
        raise RequirementError(
            f"The inner problem draws random numbers (dropout?), and {who} would evaluate it again with others. "
            'Use PZOBO, or Unrolled() or Implicit(...) without compile and with products="autodiff".'
        )


def _advice(solver: Any) -> str:
    if not solver.gives:
        return (
            "With a black box use PZOBO, or Direct as the control; or pzobo.smooth around the whole objective (HOZOG). "
            "If g can be written as a torch function, solver=ClosedForm(fn) lets Implicit work from fn's answer."
        )
    if "function" in solver.gives:
        return "With a closed form use Unrolled() or ForwardMode (which differentiate it), Implicit(CG) or PZOBO."
    return "With this solver use Unrolled, Implicit(CG), Nudged or PZOBO; or give FixedPoint a rate of its own: lr=."
