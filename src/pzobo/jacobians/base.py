"""What is asked of a response Jacobian? y^N, and a pullback v -> (dy/dx)^T v that autograd calls when it needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

from pzobo.errors import OptionError, RequirementError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Finding
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves

Level = Literal["x", "z"]

NEEDS = {
    "gradient": "a path that ends at a minimum of g",
    "path": "a path of gradient steps",
    "map": "the fixed point of the solver's own update",
    "function": "a differentiable formula for y",
}


def check_jacobian(jacobian: Any) -> None:
    """Refuse what is no Jacobian."""
    if not isinstance(jacobian, Jacobian):
        raise OptionError(
            f"jacobian={jacobian!r}: give one of Auto, PZOBO, Implicit, Unrolled, ForwardMode, Nudged or Direct. An "
            "algorithm such as SOBA has none: it is a method by itself, for fit."
        )


class Jacobian(ABC):
    """An answer to the question: given v = df/dy, what is (dy/dx)^T v?

    Examples:
        >>> isinstance(pzobo.PZOBO(mu=0.01, directions=4), pzobo.Jacobian)
        True
    """

    needs: ClassVar[tuple[frozenset[str], ...]] = ()
    """What it needs of the solver: of each set, at least one."""
    own_batches: ClassVar[bool] = False
    """Whether it evaluates g on batches of its own (`jacobian_batches=`)."""

    why: str = ""
    """What was chosen and why, for a Jacobian that chooses."""

    @abstractmethod
    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        """y^N and the pullback."""

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        """What evaluations that do not share its assumptions say of its answer to v; see `pzobo.jacobians.audit`."""
        return []

    @property
    def needs_loss(self) -> bool:
        """Whether it evaluates g itself, where the solver does not."""
        return any("gradient" in need for need in self.requirements())

    @property
    def only_at_z(self) -> bool:
        """Whether it must be asked about z, which a black box does not have."""
        return False

    def level(self, x_size: int, z_size: int) -> Level:
        """Whether it is asked about x itself or about z = prepare(x, batch); autograd does the rest."""
        return "z"

    def seeded(self, seed: int) -> Self:
        """The same Jacobian, with all that it draws following from this seed."""
        return self

    def at_start(self) -> Self:
        """The same Jacobian with streams of its own, at their start: every run that begins with it is alike."""
        return self

    def state_dict(self) -> dict[str, Any]:
        """What changes in it from call to call, for checkpoints: tensors, numbers, strings, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if state.keys() != self.state_dict().keys():
            raise OptionError(
                f"The checkpoint is of another Jacobian: it has {sorted(state) or 'no state'}, where "
                f"{type(self).__name__} has {sorted(self.state_dict()) or 'none'}."
            )

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


def refuse_random(inner: InnerProblem, who: str) -> None:
    """Refuse a problem that draws random numbers, where other ones would be drawn in the backward pass."""
    if inner.replay.random:
        raise RequirementError(
            f"The inner problem draws random numbers (dropout?), and {who} would evaluate it again with others. "
            "Use compile=False and two-sided nudges, or PZOBO."
        )


def refuse_memory(inner: InnerProblem, y: Leaves, who: str) -> None:
    """Refuse a g that goes on with buffers it has written itself, in the passes that are looked at closely."""
    if inner.questions.closely and inner.reads_what_it_writes(y):
        raise RequirementError(
            "The gradient of the inner loss depends on buffers that it writes itself (spectral normalisation? a "
            f"running mean?), so that it is another one each time, and {who} evaluates it again outside of its path. "
            "Call eval() on the module, or use PZOBO, which runs whole paths, or Unrolled(), which keeps each step's "
            "graph."
        )


def _advice(solver: Any) -> str:
    if not solver.gives:
        return (
            "With a black box use PZOBO, or Direct as the control; or pzobo.smooth around the whole objective (HOZOG). "
            "If g can be written as a torch function, solver=ClosedForm(fn) lets Implicit work from fn's answer."
        )
    if "gradient" not in solver.gives:
        return (
            "Its weight decay is no part of g, and moves that end: use Unrolled, ForwardMode or PZOBO, or a solver "
            "whose weight decay is added to g, as that of Adam."
        )
    if "function" in solver.gives:
        return "With a closed form use Unrolled() or ForwardMode (which differentiate it), Implicit(CG) or PZOBO."
    return "With this solver use Unrolled, Implicit(CG), Nudged or PZOBO; or give FixedPoint an lr of its own."
