"""What is a differentiable argmin? Problem x solver x Jacobian; its answer y is an ordinary autograd value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from pzobo import deprecated
from pzobo.distributed.alike import check_alike
from pzobo.distributed.ranks import here
from pzobo.distributed.rows import OverRows, check_mean, is_number, over_rows
from pzobo.distributed.splits import Split, Wire, ambient, together
from pzobo.errors import (
    DivergenceError,
    OptionError,
    RequirementError,
    StaleError,
    StructureError,
)
from pzobo.inner.arguments import MISSING, batches_of, inner_variable, known_state, refuse_variables
from pzobo.inner.at_x import AtX
from pzobo.inner.at_z import AtZ
from pzobo.inner.looks import Compilations, Looks
from pzobo.inner.problem import Call, InnerProblem, Reached
from pzobo.inner.questions import Questions
from pzobo.inner.solution import Solution, diagnose
from pzobo.inner.solver import Iterative, Solver
from pzobo.jacobians.base import Jacobian, check_jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.directional import Directional
from pzobo.jacobians.over_rows import check_rows
from pzobo.jacobians.verdict import look_at, say_strangers
from pzobo.options import check_audit
from pzobo.solvers import ClosedForm
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.checks import check_x
from pzobo.tensors.replay import Replay
from pzobo.tensors.saved import no_saved_tensor_hooks
from pzobo.tensors.transforms import refuse_transforms
from pzobo.tensors.trees import Leaves, Plan, Taken, Tree, is_variable, unique

Loss = Callable[[Any, Any, Any], Tensor]


class Argmin:
    """y = argmin_y g(x, y) by `solver`, with dy/dx by `jacobian`.

    Args:
        inner_loss: g as `inner_loss(z, y, batch) -> scalar`. None is enough for a `BlackBox`, and for a `ClosedForm`
            with a Jacobian that does not ask for g.
        solver: how y^N is reached: GD, HeavyBall, Adam, AdamW, ClosedForm, BlackBox or an `Iterative` of your own.
        jacobian: what dy/dx is taken to be: Auto, PZOBO, Implicit, Unrolled, ForwardMode, Nudged or Direct.
        prepare: `prepare(x, batch) -> z`, what the loss needs of x, computed once per path and batch, not once per step
            (the features of a network, say). z is x itself by default.
        compile: compile the inner steps with torch.compile.
        check: look for non-finite numbers, and now and then for rounding noise, and say so instead of returning them.
        audit: compare the answer of backward passes 1, 2, 4, 8, ... with evaluations that do not share its assumptions;
            `argmin.last.audit` tells what was found, and a clear fault is an `AuditWarning`, once of each kind. "error"
            makes it an `AuditError`; False switches it off.
        split: what is split over the ranks of torchrun: the "directions" of PZOBO and ForwardMode, or the rows of the
            "data" of every inner step. Each rank has the whole answer. In one process nothing changes.
        wire: what crosses the network with "directions": "scalars", one number for each, from which every rank makes
            the sum of all, with the same bits for any number of ranks; or a "vector" like x, the sum of each rank's
            own, for fast networks and many directions.

    Raises:
        OptionError: an option has a value that makes no sense, or solver and Jacobian are none.
        RequirementError: the Jacobian needs what this solver or loss does not give; the message names those that work.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (batch @ y - 1).square().mean() + x.exp() * y.square().sum()
        >>> argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(lr=0.1, steps=20), jacobian=pzobo.Unrolled())
        >>> x, y0 = torch.zeros((), requires_grad=True), torch.zeros(3)
        >>> y = argmin(x, y0, torch.eye(3))         # N inner steps; y carries dy/dx
        >>> (y - 1).square().sum().backward()       # any outer loss; the hypergradient is in x.grad
        >>> y, x.grad
        (tensor([0.2495, 0.2495, 0.2495], grad_fn=<_AttachBackward>), tensor(0.8302))
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
        split: Literal["directions", "data"] | None = None,
        wire: Wire = "scalars",
    ) -> None:
        check_audit("audit", audit)
        self._inner_loss, self._prepare, self._compile = inner_loss, prepare, compile
        self.check, self.audit = check, audit
        self._code: Compilations = {}
        self._split = Split.of(split, wire, ("directions", "data"))
        self._directions = self._split if split == "directions" else ambient("directions")
        self._set(solver, jacobian)
        self._last: Solution | None = None

    loss = deprecated.attribute("loss", "inner_loss")

    def __call__(
        self,
        x: Tree,
        y0: Tree,
        batch: Tree = MISSING,
        *,
        batches: Sequence[Tree] | None = None,
        jacobian_batches: Sequence[Tree] | None = None,
        mixed_batch: Tree = MISSING,
        state: Leaves | None = None,
    ) -> Tree:
        """y^N(x), in y0's structure.

        Args:
            x: the outer variables, any tree of tensors. Those that need no gradient are constants.
            y0: where the path starts, any tree of tensors. Those that need a gradient get that of y^N, which is zero
                from Implicit, Nudged and Direct. A warm start is `y0 = y.detach()` of the last call.
            batch: the data of every step (PZOBO): any tree of tensors and other things.
            batches: a tree like `batch` for each step, the same sequence for every path (PZOBO-S).
            jacobian_batches: trees like `batch` that the Jacobian draws for itself (Implicit and Nudged).
            mixed_batch: a tree like `batch`, for the Jacobian's last product, d2g/dx dy (Implicit and Nudged): all the
                rows, say, where each has a weight in x. By default that product has the batches of the others.
            state: the solver's state to begin with: momenta and moments like y, as `argmin.last.state` has them of
                another call; by default it begins anew. It is a constant.

        Returns:
            y^N, a tree like y0, with tensors of the same shapes. Autograd can differentiate it once.

        Raises:
            NonFiniteError: x holds NaN or infinity.
            DivergenceError: the path left the finite numbers.
            StructureError: a tree, shape or dtype is not the one that was expected.
            BatchError: `batch` and `batches` are both missing where the loss needs one, both given, or too few.
            ScalarLossError: the inner loss did not return one number.
            RequirementError: a derivative that the Jacobian needs does not exist.
        """
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                x, y0, batch, batches = (trees.normal(tree) for tree in (x, y0, batch, batches))
                return self._call(x, y0, *batches_of(self.solver, batch, batches), [], [], state)
        takes = self.jacobian.own_batches
        own = jacobian_batches if jacobian_batches is not None and takes else ()
        mixed = [mixed_batch] if mixed_batch is not MISSING and takes else ()
        own, mixed = ([Taken.of(batch) for batch in given] for given in (own, mixed))
        return self._call(x, y0, *batches_of(self.solver, batch, batches), own, mixed, state)

    def _set(self, solver: Solver, jacobian: Jacobian) -> None:
        """Take a solver and a Jacobian, if they go together and with the rest."""
        if not isinstance(solver, Solver):
            raise OptionError(f"solver={solver!r}: give one of GD, HeavyBall, Adam, AdamW, ClosedForm or BlackBox.")
        check_jacobian(jacobian)
        jacobian.check(solver)
        if solver.opaque:
            if self.prepare is not None:
                raise RequirementError("A black box gets x itself: call prepare inside of it, and drop prepare=.")
            if jacobian.only_at_z:
                raise RequirementError('A black box is a function of x, not of z: use at="x" or at="auto".')
        elif self.inner_loss is None and (isinstance(solver, Iterative) or jacobian.needs_loss):
            who = solver if isinstance(solver, Iterative) else jacobian
            raise OptionError(
                f"{type(who).__name__} needs a loss; a BlackBox does without, and a ClosedForm with Unrolled, "
                "ForwardMode, PZOBO or Direct."
            )
        # Direct stands inside of what is split around it, as in HOZOG.
        if self._directions is not None and not isinstance(jacobian, (Directional, Direct)):
            raise RequirementError(
                f'split="directions" needs directions to split, and {type(jacobian).__name__} has none: use PZOBO or '
                'ForwardMode; or split="data".'
            )
        self._solver, self._jacobian = solver, jacobian
        self._look()
        self._questions = Questions()

    def _look(self) -> None:
        """Begin to look at the problem; its data may be split over ranks."""
        loss, prepare = self.inner_loss, self.prepare
        if self._split is not None and self._split.kind == "data":
            loss, prepare = over_rows(loss, prepare)
        self._rows = isinstance(loss, OverRows)
        if self._rows or (self._split is not None and self._split.kind == "data"):
            check_rows(self.solver, self.jacobian, prepare is not None, self.compile)
        self._calls = 0
        self._functions = loss, prepare
        self._looks = Looks(loss, prepare, self.solver, self.compile, self._code)

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
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_looks", "_code", "_last", "_functions")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _code={}, _last=None)
        self._look()

    # The parts of a call

    def _call(
        self,
        x: Tree,
        y0: Tree,
        data: list[Taken],
        many: bool,
        given: bool,
        own: list[Taken],
        mixed: list[Taken],
        state: Leaves | None,
    ) -> Tree:
        self._last = None  # its memory is needed
        (x_leaves, x_plan), (y_leaves, y_plan) = Plan.take(x), Plan.take(y0)
        leaves = [leaf for batch in (*data, *own, *mixed) for leaf in batch.leaves]
        refuse_transforms([t for t in (*x_leaves, *y_leaves, *leaves) if isinstance(t, Tensor)])
        variables = unique(x_leaves) if torch.is_grad_enabled() else ()
        starts = [(i, t) for i, t in enumerate(y_leaves) if torch.is_grad_enabled() and is_variable(t)]
        if variables or starts:
            refuse_variables(leaves)
        y = tuple(inner_variable(leaf) for leaf in y_leaves)
        if not y:
            raise StructureError("y0 holds no tensors; there is nothing to minimise over.")
        _, prepare = self._functions
        if self._rows:
            self._check_rows(x, y0, data[0].tree, y)
        with no_saved_tensor_hooks():
            look = self._looks.at(x_leaves, x_plan, y, y_plan, data[0], given)
            if torch.is_grad_enabled():
                say_strangers(self._questions, look.strangers, self.audit)
            batches = [batch.tree for batch in data]
            tensors = [t for t in (*x_leaves, *y, *leaves) if isinstance(t, Tensor)]
            replay = Replay(tensors, look.modules, look.kernel.compile and not self.solver.opaque)
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
                prepare=None if prepare is None else replay.eager(prepare),
                replay=replay,
                check=self.check,
                questions=self._questions,
                eps=look.eps,
                reached=Reached(getattr(solver, "steps", 1)),
                mixed=[batch.tree for batch in mixed],
                starts=() if isinstance(solver, ClosedForm) else starts,  # which has no start
                state=None if state is None else known_state(state, look.kernel, solver, y),
                split=self._directions,
            )
            if self.check and look.kernel.numbers is not None:
                look.kernel.numbers.check(x_plan.build(x_leaves))
            with torch.no_grad():
                if not variables and not starts:
                    inner: InnerProblem = AtX(call)
                    return y_plan.build(self._solved(inner, inner.base(), x_leaves))
                z_size = look.z_size * (1 if self.prepare is None else len(batches))
                level = self.jacobian.level(sum(t.numel() for t in variables), z_size)
                if self._rows and isinstance(self.jacobian, Directional):
                    level = "x"  # z has other rows on each rank, and so would directions
                inner = AtZ(call) if level == "z" and not self.solver.opaque else AtX(call)
                # Nothing responds, or to nothing.
                empty = not any(t.numel() for t in inner.inputs) or not any(t.numel() for t in y)
                jacobian = Direct() if empty else self.jacobian
                answer, pullback = jacobian.run(inner)
                self._solved(inner, answer, x_leaves, variables)
        asked = {id(t) for t in inner.inputs}
        others = [t for t in (*variables, *[t for _, t in starts]) if id(t) not in asked]
        constants = [t for t in x_leaves if not (isinstance(t, Tensor) and t.requires_grad)]

        questions, split = self._questions, self._directions
        # With its rows on many ranks, no rank has all of an answer about z.
        audit = self.audit if not self._rows or prepare is None else False

        def watched_pullback(v: Leaves) -> Sequence[Tensor]:
            questions.next()
            with together(split):
                found = tuple(pullback(v))
            if questions.closely and trees.is_finite(v):
                look_at(inner, jacobian, self.jacobian, answer, v, found, audit)
            return found

        return y_plan.build(
            attach(answer, watched_pullback, inner.inputs, others, fixed=[*y, *constants, *leaves, *(state or ())])
        )

    def _check_rows(self, x: Tree, y0: Tree, batch: Tree, y: Leaves) -> None:
        """Whether a problem whose rows are on many ranks is the same on all of them, and its loss a mean over rows."""
        self._calls += 1
        if self._calls == 1:
            check_mean(*self._functions, x, y0, batch, "inner loss")
        numbers = tuple(t for t in Plan.take(x)[0] if is_number(t))
        check_alike(here(), {"random numbers": (torch.get_rng_state(),), "x": numbers, "y": y}, self._calls)

    def _solved(self, inner: InnerProblem, y: Leaves, x_leaves: Sequence[Any], wanted: Leaves = ()) -> Leaves:
        """y, checked; and remembered for statistics."""
        self._last = Solution(inner, y)
        # x and y in one look, since a second would show beside a short path.
        if self.check and not trees.is_finite((*wanted, *y)):
            check_x([t for t in x_leaves if isinstance(t, Tensor) and t.is_floating_point()])
            raise DivergenceError(diagnose(inner))
        return y
