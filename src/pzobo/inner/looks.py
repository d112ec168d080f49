"""What is known of an inner problem before it is solved? One look tells: its functions, its modules, the size of z.

A look is one evaluation that leaves no trace, made when the structure of a call is new. What is compiled is kept here.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from pzobo.errors import BatchError, CompileWarning, PzoboError, StructureError
from pzobo.inner.kernel import Code, Kernel
from pzobo.inner.parts import Numbers
from pzobo.inner.solver import Iterative, Solver
from pzobo.tensors import trees
from pzobo.tensors.checks import scalar
from pzobo.tensors.modules import Calls, calls, conditions
from pzobo.tensors.precision import Coarsest
from pzobo.tensors.replay import watched
from pzobo.tensors.strangers import reached, strangers
from pzobo.tensors.trees import Leaves, Plan, Taken


class _Key(NamedTuple):
    """What code was compiled for."""

    loss: Hashable
    solver: Hashable
    z: Plan
    y: Plan
    compile: bool
    conditions: Hashable


_CODE: WeakValueDictionary[_Key, Code] = WeakValueDictionary()
"""What was compiled for inner problems, for as long as an `Argmin` uses it: another one with the same loss, for another
N, learning rate or Jacobian, compiles nothing again."""


@dataclass(frozen=True)
class Look:
    """What one look at an inner problem tells: its functions, and the size of z."""

    kernel: Kernel
    z_size: int
    modules: Sequence[nn.Module]
    """Those that a loss called which is to be compiled."""
    conditions: Hashable
    """How they were then: torch.compile does not look at all of it again."""
    eps: float
    """The rounding of half precisions that the loss itself computes in; 0 where it does not."""
    strangers: tuple[torch.Size, ...]
    """The shapes of tensors that ask for a gradient, and that it depends on without being given them."""


Compilations = dict[_Key, Code]


class Looks:
    """Looks at the inner problems of one `Argmin`, by their structure.

    Args:
        inner_loss, prepare, solver, compile: as `Argmin` has them.
        code: what it has compiled so far.
    """

    def __init__(
        self,
        inner_loss: Callable[..., Tensor] | None,
        prepare: Callable[[Any, Any], Any] | None,
        solver: Solver,
        compile: bool,
        code: Compilations,
    ) -> None:
        self.inner_loss, self.prepare, self.solver, self.compile = inner_loss, prepare, solver, compile
        self._update = solver.update_only()
        self._code = code
        self._looks: dict[Any, Look] = {}

    def at(
        self,
        x_leaves: Sequence[Any],
        x_plan: Plan,
        y: Leaves,
        y_plan: Plan,
        batch: Taken,
        given: bool,
    ) -> Look:
        """What is known of this problem, from one evaluation that leaves no trace when its structure is new."""
        signature = (
            x_plan,
            y_plan,
            trees.signature(x_leaves),
            trees.signature(y),
            batch.plan,
            trees.signature(batch.leaves),
        )
        look = self._looks.get(signature)
        if look is not None and (not look.modules or conditions(look.modules) == look.conditions):
            return look
        solver: Any = self.solver
        loss, z_plan, z_size = self.inner_loss, x_plan, 0
        called = Calls()
        coarsest = Coarsest()
        values: list[Any] = []
        with watched(), torch.enable_grad(), coarsest:
            asked = _asking(y)
            try:
                if not solver.opaque:
                    z = x_plan.build(x_leaves)
                    if self.prepare is not None:
                        z = self.prepare(z, batch.tree)
                    if loss is not None:
                        with calls() as called:
                            value = loss(z, y_plan.build(asked), batch.tree)
                        values.append(needs_y(scalar(value, "The inner loss"), asked))
                    if "function" in solver.gives:
                        values += Plan.take(solver.fn(z, batch.tree))[0]
                    z_leaves, z_plan = Plan.take(z)
                    z_size = sum(t.numel() for t in z_leaves if isinstance(t, Tensor) and t.requires_grad)
            except PzoboError:
                raise
            except Exception as error:
                if given:
                    raise
                raise BatchError(
                    f"The inner loss failed ({error}). It got None for a batch, since neither batch= nor batches= was "
                    "given: if it needs one, call argmin(x, y0, batch), or argmin(x, y0, batches=[...]) with one batch "
                    "for each step. It is called as inner_loss(x, y, batch)."
                ) from error
        modules = called.modules if self.compile else ()
        now = conditions(modules) if modules else ()
        hindrance = self._hindrance(called, now) if self.compile else ""
        if hindrance:
            warnings.warn(f"The inner loss goes on without compilation: {hindrance}", CompileWarning, stacklevel=5)
        kernel = self._kernel(z_plan, y_plan, y, self.compile and not hindrance, now)
        if kernel.numbers is not None and kernel.numbers.by_x:
            z_size = 0  # an lr of 0.01 beside features: one length mu cannot serve both, so that x is perturbed
        given_tensors = [t for t in (*x_leaves, *asked) if isinstance(t, Tensor)]
        others = strangers((t for t in values if isinstance(t, Tensor)), given_tensors)
        look = Look(kernel, z_size, modules, now, coarsest.eps, tuple(t.shape for t in others))
        self._looks[signature] = look
        return look

    def _kernel(self, z_plan: Plan, y_plan: Plan, y: Leaves, compile: bool, conditions: Hashable) -> Kernel:
        """The functions of this structure: another number of steps, or another Jacobian, keeps them."""
        update: Any = self._update
        numbers = None
        if isinstance(self._update, Iterative):
            numbers = Numbers.of(self._update, y, y_plan, compile)
            update = self._update.with_tensors() if compile else self._update
        inputs = update.numbers if update is not self._update else ()
        options = {f.name: getattr(update, f.name) for f in fields(update)} | vars(update)
        solver = (type(update), *((name, _identity(value)) for name, value in options.items() if name not in inputs))
        solver += () if numbers is None else (numbers.key,)
        key = _Key(_identity(self.inner_loss), solver, z_plan, y_plan, compile, conditions)
        code = self._code.get(key) or _CODE.get(key) or Code()
        self._code[key] = _CODE[key] = code
        return Kernel(self.inner_loss, update, z_plan, y_plan, compile, code, numbers)

    def _hindrance(self, called: Calls, now: Hashable) -> str:
        """Why the modules of the loss do not let it be compiled, if so."""
        if called.writers:
            return (
                f"it writes into buffers of {type(called.writers[0]).__name__}, which compiled derivatives cannot. "
                "To compile, call the module's eval(), or move it to prepare."
            )
        known = {key.conditions for key in self._code if key.compile}
        if now in known or len(known) < (limit := torch._dynamo.config.recompile_limit):
            return ""
        return (
            f"hooks or modes of its modules have changed {limit} times, and each time it was compiled anew. "
            "To compile, register hooks once, and leave the modules in one mode."
        )


def needs_y(value: Tensor, y: Leaves) -> Tensor:
    """The value of an inner loss, if it depends on y at all."""
    asking = {id(t) for t in y if t.requires_grad}
    if asking and not any(id(t) in asking for t in reached([value])):
        raise StructureError(
            "The inner loss does not depend on y, so no step would move it. Is y detached, or turned into numbers or "
            "NumPy, on its way? Or is a module called with its own weights? net = pzobo.Functional(module), and then "
            "net(y, inputs), takes those in y."
        )
    return value


def _asking(y: Leaves) -> Leaves:
    """y as the steps have it, asking for gradients; as it is inside of a transform, which is refused elsewhere."""
    try:
        return tuple(t.detach().requires_grad_() for t in y)
    except RuntimeError:
        return y


def _identity(thing: Any) -> Hashable:
    """What tells two things apart: their value where it cannot be changed, else who they are, whatever == says."""
    if isinstance(thing, (int, float, str, types.NoneType)):
        return type(thing), thing
    if isinstance(thing, tuple):
        return tuple(_identity(part) for part in thing)
    if isinstance(thing, types.MethodType):  # made anew each time it is named
        return id(thing.__self__), id(thing.__func__)
    return id(thing)
