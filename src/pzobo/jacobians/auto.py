"""Which estimator is the right one here? The fastest whose answer stands, found by trying them on the problem."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from pzobo.errors import AuditError, PzoboError, RequirementError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Finding, Questions
from pzobo.jacobians.audit import exact_slope
from pzobo.jacobians.base import Jacobian, Level
from pzobo.jacobians.implicit import CG, Implicit
from pzobo.jacobians.nudged import Nudged
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unanswered import unanswered
from pzobo.jacobians.unrolled import Unrolled
from pzobo.options import positive
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Orthogonal

MANY = 64
"""From more variables than this, a path for each of them is not tried."""
ROUNDS = 2
"""How often each is timed; the least counts."""


@dataclass(frozen=True)
class Tried:
    """One estimator, tried: its answer, and the seconds of a whole pass with it."""

    name: str
    answer: Leaves
    seconds: float


class Auto(Jacobian):
    """The fastest estimator whose answer stands within `accuracy` of the most exact one, chosen on the problem itself.

    At its first backward pass it times those that fit the solver, and takes the fastest whose answer is within
    `accuracy` of the exact derivative of y^N, if paths confirm that one; where they do not, or nothing can be
    differentiated, of PZOBO with a direction for each variable. Where paths confirm that one neither, the audit warns.
    It chooses again when an audit fails. Two runs may choose differently, since times do: give
    `argmin.jacobian.chosen` itself to repeat a run.

    Args:
        accuracy: the relative error that is allowed, of the answer's own length.

    Attributes:
        chosen: the estimator that it uses; None before the first backward pass.
        why: a line that says what was chosen, and why.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Auto())
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    def __init__(self, accuracy: float = 1e-2) -> None:
        positive("Auto: accuracy", accuracy)
        self.accuracy = float(accuracy)
        self.chosen: Jacobian | None = None
        self.why = ""
        self._name = ""

    def __repr__(self) -> str:
        return f"Auto(accuracy={self.accuracy:g})"

    def at_start(self) -> Self:
        return type(self)(self.accuracy)

    def level(self, x_size: int, z_size: int) -> Level:
        return "z"

    def state_dict(self) -> dict[str, Any]:
        return {"chosen": self._name, "why": self.why}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._name, self.why, self.chosen = state["chosen"], state["why"], None

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        if self.chosen is not None:
            return self.chosen.run(inner)
        named = dict(candidates(inner))
        if len(named) == 1:
            self._name, self.why = next(iter(named)), f"{next(iter(named))}: nothing else takes this solver."
        if self._name in named:  # or after a checkpoint
            self.chosen = named[self._name]
            return self.chosen.run(inner)
        y = inner.base()

        def pullback(v: Leaves) -> Leaves:
            tried = list(self._try(inner, v))
            name, self.why = choose(tried, self._reference(inner, y, v, tried), self.accuracy)
            self._name, self.chosen = name, named[name]
            return next(one.answer for one in tried if one.name == name)

        return y, pullback

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        """The path test, whatever was chosen: it speaks of y^N. What fails is chosen again, but for PZOBO, which is
        taken where nothing else holds."""
        own = self.chosen.witness(inner, y, v, answer) if isinstance(self.chosen, PZOBO) else []
        if any(finding.name == "signal" and finding.value < 1 for finding in own):
            return own  # from fewer directions than there are variables
        found = exact_slope(inner, y, v, answer, f"The hypergradient of Auto, by {self._name},")
        if own:
            return [*own, *found]
        if not all(finding.holds for finding in found):
            self.chosen, self._name = None, ""
        return found

    def _try(self, inner: InnerProblem, v: Leaves) -> Iterator[Tried]:
        """The answer and the time of each estimator that takes this problem."""
        for name, jacobian in candidates(inner):
            questions, best = Questions(), math.inf
            answer: Leaves = ()
            try:
                for turn in range(1 + ROUNDS):
                    # The first is looked at closely, as a first pass is: lengths of differences are found, code is
                    # compiled. It counts neither for the time nor for the answer.
                    questions.asked = 2 * bool(turn)
                    questions.next()
                    with inner.replay.again():
                        began = time.perf_counter()
                        answer = tuple(jacobian.run(alike(inner, questions))[1](v))
                        finite = trees.is_finite(answer)  # waits for a device
                        best = min(best, time.perf_counter() - began) if turn else best
            except (PzoboError, RuntimeError, NotImplementedError):
                continue
            if finite:
                yield Tried(name, answer, best)

    def _reference(self, inner: InnerProblem, y: Leaves, v: Leaves, tried: list[Tried]) -> tuple[str, Leaves]:
        """The most exact answer that can be had, and its name."""
        if not tried:
            raise RequirementError(
                "Auto found no estimator that takes this problem. Try one by hand, to see its message: "
                "PZOBO(...) asks for nothing but values."
            )
        answers = {one.name: one.answer for one in tried}
        for name in ("Unrolled()", 'Unrolled(products="forward")', 'Unrolled(products="difference")'):
            if name in answers and stands(inner, y, v, answers[name]):
                return name, answers[name]
        measured = [one for one in tried if one.name.startswith("PZOBO")]
        if measured:
            return measured[0].name, measured[0].answer
        exact = next((one for one in tried if one.name.startswith("Unrolled")), None)
        if exact is None:
            raise AuditError(
                "Auto cannot say which estimator is right here: none of them is confirmed by the paths, and there are "
                f"more than {MANY} variables to try one by one. Name the Jacobian yourself."
            )
        return exact.name, exact.answer


def candidates(inner: InnerProblem) -> list[tuple[str, Jacobian]]:
    """The estimators that fit the solver, by the line of code that makes them."""
    p = sum(t.numel() for t in inner.variables)
    every: list[tuple[str, Jacobian]] = [
        ("Unrolled()", Unrolled()),
        ('Unrolled(products="forward")', Unrolled(products="forward")),
        ('Unrolled(products="difference")', Unrolled(products="difference")),
        ("Implicit(CG(50))", Implicit(CG(50, tol=1e-3))),
        ('Implicit(CG(50), products="difference")', Implicit(CG(50, tol=1e-3), products="difference")),
        ("Nudged()", Nudged()),
    ]
    numbers = inner.kernel.numbers
    # mu is a length in z. Numbers of the solver there, such as an lr of 0.01, are of another size than all else.
    if inner.solver.opaque or (p <= MANY and (numbers is None or not numbers.by_x)):
        q = min(p, MANY)
        every.append((f"PZOBO(directions={q}, sampler=Orthogonal())", measured(q)))
    return [(name, jacobian) for name, jacobian in every if _fits(jacobian, inner)]


def measured(directions: int) -> PZOBO:
    """PZOBO with orthogonal directions and central differences: the slope at the scale mu, measured."""
    return PZOBO(mu=0.01, directions=directions, sampler=Orthogonal(seed=0), antithetic=True)


def _fits(jacobian: Jacobian, inner: InnerProblem) -> bool:
    try:
        jacobian.check(inner.solver)
    except RequirementError:
        return False
    if inner.kernel.loss is None and jacobian.needs_loss:
        return False
    return not inner.solver.opaque or isinstance(jacobian, PZOBO)


def alike(inner: InnerProblem, questions: Questions) -> InnerProblem:
    """The same inner problem for another estimator, with conditions and questions of its own."""
    kind: Any = type(inner)
    problem: InnerProblem = kind(replace(inner.call, replay=inner.call.replay.fresh(), questions=questions))
    return problem


def stands(inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> bool:
    """Whether more paths confirm an answer, or say nothing against it."""
    found = [*exact_slope(inner, y, v, answer, ""), *unanswered(inner, y, v, answer, "")]
    return all(finding.holds for finding in found)


def choose(tried: list[Tried], reference: tuple[str, Leaves], accuracy: float) -> tuple[str, str]:
    """The fastest within `accuracy` of the reference, and a line that says why."""
    name, exact = reference
    size = float(trees.norm(exact))

    def error(one: Tried) -> float:
        return float(trees.norm(trees.add(one.answer, exact, -1.0))) / size if size > 0 else 0.0

    right = [one for one in tried if error(one) <= accuracy]
    best = min(right, key=lambda one: one.seconds)
    why = f"{best.name}: {1e3 * best.seconds:.3g} ms a pass, {error(best):.1e} from {name}"
    second = min((one for one in right if one is not best), key=lambda one: one.seconds, default=None)
    if second is not None:
        why += f"; {second.name} takes {second.seconds / best.seconds:.2g} times as long"
    wrong = [f"{one.name} ({error(one):.0%})" for one in tried if one.seconds < best.seconds and one not in right]
    return best.name, why + (f"; faster but off: {', '.join(wrong)}." if wrong else ".")
