"""What is a differentiable argmin? Problem x solver x Jacobian; its answer y is an ordinary autograd value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from pzobo import deprecated
from pzobo.errors import (
    BatchError,
    DivergenceError,
    OptionError,
    RequirementError,
    StaleError,
    StructureError,
)
from pzobo.inner.at_x import AtX
from pzobo.inner.at_z import AtZ
from pzobo.inner.looks import Compilations, Looks
from pzobo.inner.problem import Call, InnerProblem
from pzobo.inner.questions import Questions
from pzobo.inner.solution import Solution, diagnose
from pzobo.inner.solver import Solver
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.verdict import look_at
from pzobo.solvers import ClosedForm
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.checks import check_x
from pzobo.tensors.replay import Replay
from pzobo.tensors.saved import no_saved_tensor_hooks
from pzobo.tensors.transforms import refuse_transforms
from pzobo.tensors.trees import Leaves, Plan, Taken, Tree, unique

Loss = Callable[[Any, Any, Any], Tensor]
_MISSING: Any = object()


class Argmin:
    """y = argmin_y g(x, y) by `solver`, with dy/dx by `jacobian`.

    Args:
        inner_loss: g as `inner_loss(z, y, batch) -> scalar`. None is enough for a `BlackBox`.
        solver: how y^N is reached: GD, HeavyBall, Adam, ClosedForm or BlackBox.
        jacobian: what dy/dx is taken to be: PZOBO, Implicit, Unrolled, ForwardMode, Nudged or Direct.
        prepare: `prepare(x, batch) -> z`, what the loss needs of x, computed once per path and batch, not once per step
            (the features of a network, say). z is x itself by default.
        compile: compile the inner steps with torch.compile.
        check: look for non-finite numbers, and now and then for rounding noise, and say so instead of returning them.
        audit: compare the answer of backward passes 1, 2, 4, 8, ... with evaluations that do not share its assumptions;
            `argmin.last.audit` tells what was found, and a clear fault is an `AuditWarning`, once of each kind. "error"
            makes it an `AuditError`; False switches it off.

    Examples:
        >>> argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(lr=1e-3, steps=20), jacobian=pzobo.PZOBO(mu=1e-2))
        >>> y = argmin(x, y0, train)            # N inner steps; y carries an estimate of dy/dx
        >>> outer_loss(x, y, val).backward()    # the hypergradient is in x.grad
    """

    @deprecated.keywords(loss="inner_loss")
    def __init__(
        self,
        inner_loss: Loss | None,
        *,
        solver: Solver,
        jacobian: Jacobian,
        prepare: Callable[[Any, Any], Any] | None = None,
        compile: bool = False,
        check: bool = True,
        audit: bool | Literal["error"] = True,
    ) -> None:
        if audit not in (True, False, "error"):
            raise OptionError(f'audit={audit!r}: must be True, False or "error".')
        self._inner_loss, self._prepare, self._compile = inner_loss, prepare, compile
        self.check, self.audit = check, audit
        self._code: Compilations = {}
        self._set(solver, jacobian)
        self._last: Solution | None = None

    loss = deprecated.attribute("loss", "inner_loss")

    def __call__(
        self,
        x: Tree,
        y0: Tree,
        batch: Tree = _MISSING,
        *,
        batches: Sequence[Tree] | None = None,
        jacobian_batches: Sequence[Tree] | None = None,
        mixed_batch: Tree = _MISSING,
    ) -> Tree:
        """y^N(x), in y0's structure.

        Args:
            x: the outer variables. Tensors that need no gradient are constants.
            y0: where the path starts; it gets no gradient. A warm start is `y0 = y.detach()` of the last call.
            batch: the data of every step (PZOBO).
            batches: one batch for each step, the same sequence for every path (PZOBO-S).
            jacobian_batches: batches that the Jacobian draws for itself (Implicit and Nudged).
            mixed_batch: the data of the Jacobian's last product, d2g/dx dy (Implicit and Nudged): all the rows, say,
                where each has a weight in x. By default that product is taken on the same batches as the others.
        """
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                x, y0, batch, batches = (trees.normal(tree) for tree in (x, y0, batch, batches))
                return self._call(x, y0, *self._data(batch, batches), [], [])
        takes = self.jacobian.own_batches
        own = jacobian_batches if jacobian_batches is not None and takes else ()
        mixed = [mixed_batch] if mixed_batch is not _MISSING and takes else ()
        taken = ([Taken.of(batch) for batch in given] for given in (own, mixed))
        return self._call(x, y0, *self._data(batch, batches), *taken)

    def _set(self, solver: Solver, jacobian: Jacobian) -> None:
        """Take a solver and a Jacobian, if they go together and with the rest."""
        if not isinstance(solver, Solver):
            raise OptionError(f"solver={solver!r}: give one of GD, HeavyBall, Adam, ClosedForm or BlackBox.")
        if not isinstance(jacobian, Jacobian):
            raise OptionError(
                f"jacobian={jacobian!r}: give one of PZOBO, Implicit, Unrolled, ForwardMode, Nudged or Direct."
            )
        jacobian.check(solver)
        if solver.opaque:
            if self.prepare is not None:
                raise RequirementError("A black box gets x itself: call prepare inside of it, and drop prepare=.")
            if jacobian.only_at_z:
                raise RequirementError('A black box is a function of x, not of z: use at="x" or at="auto".')
        elif self.inner_loss is None:
            raise OptionError(f"{type(solver).__name__} needs a loss; only a BlackBox does without.")
        self._solver, self._jacobian = solver, jacobian
        self._looks = Looks(self.inner_loss, self.prepare, solver, self.compile, self._code)
        self._questions = Questions()

    @property
    def inner_loss(self) -> Loss | None:
        """g. It can be replaced; what was seen of it and compiled is then forgotten."""
        return self._inner_loss

    @inner_loss.setter
    def inner_loss(self, inner_loss: Loss | None) -> None:
        self._inner_loss = inner_loss
        self._code = {}
        self._set(self._solver, self._jacobian)

    @property
    def prepare(self) -> Callable[[Any, Any], Any] | None:
        """z = prepare(x, batch), or None. It can be replaced."""
        return self._prepare

    @prepare.setter
    def prepare(self, prepare: Callable[[Any, Any], Any] | None) -> None:
        self._prepare = prepare
        self._set(self._solver, self._jacobian)

    @property
    def compile(self) -> bool:
        """Whether the inner steps are compiled. It can be replaced."""
        return self._compile

    @compile.setter
    def compile(self, compile: bool) -> None:
        self._compile = compile
        self._set(self._solver, self._jacobian)

    @property
    def solver(self) -> Solver:
        """How y^N is reached. It can be replaced; another number of steps compiles nothing anew."""
        return self._solver

    @solver.setter
    def solver(self, solver: Solver) -> None:
        self._set(solver, self._jacobian)

    @property
    def jacobian(self) -> Jacobian:
        """What dy/dx is taken to be. It can be replaced."""
        return self._jacobian

    @jacobian.setter
    def jacobian(self, jacobian: Jacobian) -> None:
        self._set(self._solver, jacobian)

    @property
    def last(self) -> Solution:
        """Statistics of the last solve, computed when asked for: `inner_loss`, `gradient_norm`, `finite`, `audit`."""
        if self._last is None:
            raise StaleError("There is no solve yet to tell of.")
        return self._last

    def audited(self) -> dict[str, float]:
        """The numbers of `last.audit`, if it was the last backward pass that was looked at; else none."""
        audit = self._questions.audit
        return dict(audit.numbers) if audit is not None and audit.asked == self._questions.asked else {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: how often the Jacobian was asked, and the Jacobian's own state."""
        return {**self._questions.state_dict(), "jacobian": self.jacobian.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        # Version 0.1 kept the sampler's state beside the number.
        self.jacobian.load_state_dict(state.get("jacobian", {k: state[k] for k in ("sampler",) if k in state}))
        self._questions.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: what was compiled, seen and solved is left behind."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_looks", "_code", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _code={}, _last=None)
        self._looks = Looks(self.inner_loss, self.prepare, self.solver, self.compile, self._code)

    # The parts of a call

    def _data(self, batch: Tree, batches: Sequence[Tree] | None) -> tuple[list[Taken], bool, bool]:
        """The batches of the path, whether there is one for each step, and whether any were given."""
        if batches is None:
            given = batch is not _MISSING
            return [Taken.of(batch if given else None)], False, given
        if batch is not _MISSING:
            raise BatchError(
                "Got both batch= and batches=; give the one batch of all steps, or one batch for each step."
            )
        taken = [Taken.of(batch) for batch in batches]
        if isinstance(self.solver, ClosedForm):
            raise BatchError("A closed form has no steps: give it one batch=, not batches=.")
        steps = getattr(self.solver, "steps", len(taken))
        if len(taken) != steps or not taken:
            raise BatchError(
                f"Got {len(taken)} batches for {steps} inner steps; batches= must hold exactly one for each step."
            )
        return taken, True, True

    def _call(
        self, x: Tree, y0: Tree, data: list[Taken], many: bool, given: bool, own: list[Taken], mixed: list[Taken]
    ) -> Tree:
        (x_leaves, x_plan), (y_leaves, y_plan) = Plan.take(x), Plan.take(y0)
        leaves = [leaf for batch in (*data, *own, *mixed) for leaf in batch.leaves]
        refuse_transforms([t for t in (*x_leaves, *y_leaves, *leaves) if isinstance(t, Tensor)])
        variables = unique(x_leaves) if torch.is_grad_enabled() else ()
        if variables:
            refuse_variables(leaves)
        y = tuple(inner_variable(leaf) for leaf in y_leaves)
        if not y:
            raise StructureError("y0 holds no tensors; there is nothing to minimise over.")
        with no_saved_tensor_hooks():
            look = self._looks.at(x_leaves, x_plan, y, y_plan, data[0], given)
            batches = [batch.tree for batch in data]
            replay = Replay((*variables, *y), look.modules, look.kernel.compile and not self.solver.opaque)
            solver = self.solver
            if isinstance(solver, ClosedForm):
                solver = replace(solver, fn=replay.eager(solver.fn))
            call = Call(
                kernel=look.kernel,
                solver=solver,
                x_leaves=x_leaves,
                x_plan=x_plan,
                variables=variables,
                y0=y,
                batches=batches,
                own=[batch.tree for batch in own],
                data=batches if many else batches[0],
                prepare=None if self.prepare is None else replay.eager(self.prepare),
                replay=replay,
                check=self.check,
                questions=self._questions,
                mixed=[batch.tree for batch in mixed],
            )
            with torch.no_grad():
                if not variables:
                    inner: InnerProblem = AtX(call)
                    return y_plan.build(self._solved(inner, inner.base(), x_leaves))
                z_size = look.z_size * (1 if self.prepare is None else len(batches))
                level = self.jacobian.level(sum(t.numel() for t in variables), z_size)
                inner = AtZ(call) if level == "z" and not self.solver.opaque else AtX(call)
                # Nothing responds, or to nothing.
                empty = not any(t.numel() for t in inner.inputs) or not any(t.numel() for t in y)
                jacobian = Direct() if empty else self.jacobian
                answer, pullback = jacobian.run(inner)
                self._solved(inner, answer, x_leaves, variables)
        asked = {id(t) for t in inner.inputs}
        others = [t for t in variables if id(t) not in asked]
        constants = [t for t in x_leaves if not (isinstance(t, Tensor) and t.requires_grad)]

        questions = self._questions

        def watched_pullback(v: Leaves) -> Sequence[Tensor]:
            questions.next()
            found = tuple(pullback(v))
            if questions.closely and trees.is_finite(v):
                look_at(inner, jacobian, self.jacobian, answer, v, found, self.audit)
            return found

        return y_plan.build(attach(answer, watched_pullback, inner.inputs, others, fixed=[*y, *constants, *leaves]))

    def _solved(self, inner: InnerProblem, y: Leaves, x_leaves: Sequence[Any], wanted: Leaves = ()) -> Leaves:
        """y, checked; and remembered for statistics."""
        self._last = Solution(inner, y)
        # x and y in one look, since a second would show beside a short path.
        if self.check and not trees.is_finite((*wanted, *y)):
            check_x([t for t in x_leaves if isinstance(t, Tensor) and t.is_floating_point()])
            raise DivergenceError(diagnose(inner))
        return y


def inner_variable(leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout != torch.strided:
        found = f"a tensor of {leaf.dtype}, {leaf.layout}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
        raise StructureError(f"y0 holds {found}; the inner variables must be dense floating-point tensors.")
    # Forward derivatives write into copies of y, which then need memory for each element.
    return leaf.detach().contiguous() if 0 in leaf.stride() else leaf.detach()


def refuse_variables(leaves: Sequence[Any]) -> None:
    """Refuse a batch that would get no gradient although it asks for one."""
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise StructureError(
                f"A tensor of shape {tuple(leaf.shape)} in the batch requires a gradient, but the batch is a constant "
                "and gets none. Give it as a part of x, or without its graph: t.detach()."
            )
