"""What is computed at one point of an inner path? The gradient, a step, its tangent and transpose, curvature products.

Pure functions of the leaves of z and y and a batch; each can run as it is, under `torch.func` transforms
("functional"), or compiled. They are compiled once for each structure of z and y and kept by `Argmin`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pzobo.inner.compiled import Compiled
from pzobo.inner.differences import central, probe_size
from pzobo.inner.loops import Loop, Run, Scan, runs
from pzobo.inner.parts import Numbers
from pzobo.tensors import trees
from pzobo.tensors.checks import scalar
from pzobo.tensors.replay import uncached
from pzobo.tensors.trees import Leaves, Plan, Tree

Products = Literal["autodiff", "forward", "difference"]
Z = tuple[Any, ...]
"""The leaves of z: tensors, and constants; after them numbers of the solver that come with z."""

Feed = Iterable[tuple[Z, Tree, int]]
"""(z, batch, how many steps they serve), in the order of a path."""

Shift = tuple[Leaves, Tensor]
"""(v, e): what is added to the gradient of a nudged path, e v."""

Reset = Callable[[], None]


def nothing() -> None:
    """Where no random numbers are drawn there is nothing to put back."""


class Code:
    """What has been compiled, by name and kind."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found


class Kernel:
    """g and one step of its solver, for one structure of z and y."""

    def __init__(
        self,
        loss: Callable[..., Tensor] | None,
        solver: Any,
        z: Plan,
        y: Plan,
        compile: bool,
        code: Code | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        self.loss: Any = loss
        self.solver = solver if numbers is None else numbers
        self.numbers = numbers
        """Those of the solver's numbers that are no constants, and a weight decay."""
        self.z_plan = z.traceable() if compile else z
        self.y_plan = y.traceable() if compile else y
        self.compile = compile
        self._code = Code() if code is None else code

    # Compiled code: of this class, with the kernel as an argument, so that kernels of other numbers share it

    def compiled(self, name: str, *kind: Any) -> Callable[..., Any]:
        """A method of this class, compiled at first use; for each kind of call on its own, since torch.compile counts
        how often it has compiled a function, and stops."""
        function = self._code.get((name, *kind), lambda: Compiled(getattr(Kernel, name)))
        return functools.partial(function, self)

    def loop(self, name: Any, term: Any, run: Run, carry: Any, fixed: Any, *kind: Any, **options: Any) -> Any:
        """What a `Loop` of this name and kind makes of a carry."""
        loop = self._code.get(
            (name, run.plan, run.stacked, *kind), lambda: Loop(term, run.plan, run.stacked, **options)
        )
        return loop(self, run, carry, fixed)

    def scan(
        self, name: str, term: Any, run: Run, rows: Any, carry: Any, fixed: Any, *kind: Any, **options: Any
    ) -> Any:
        """The same of a `Scan`."""
        scan = self._code.get(
            (name, run.plan, run.stacked, *kind), lambda: Scan(term, run.plan, run.stacked, **options)
        )
        return scan(self, run, rows, carry, fixed)

    # The loss and its first derivatives

    def value(self, z: Z, y: Leaves, batch: Tree) -> Tensor:
        """g(z, y) on a batch, and what a weight decay adds to it."""
        if self.numbers is None:
            return scalar(self.loss(self.z_plan.build(z), self.y_plan.build(y), batch), "The inner loss")
        own = z[: len(z) - self.numbers.count]
        value = scalar(self.loss(self.z_plan.build(own), self.y_plan.build(y), batch), "The inner loss")
        return value + self.numbers.bind(z).penalty(y, value) if self.numbers.decays else value

    def solver_at(self, z: Z) -> Any:
        """The solver with the numbers that come with z."""
        return self.solver if self.numbers is None else self.numbers.bind(z)

    def gradient(self, z: Z, y: Leaves, batch: Tree, functional: bool = False) -> Leaves:
        """dg/dy."""
        return gradient(lambda *leaves: self.value(z, leaves, batch), y, functional)

    def gradients(
        self, z: Z, y: Leaves, batch: Tree, slots: Sequence[int], functional: bool = False
    ) -> tuple[Leaves, Leaves]:
        """dg/dy, and dg/dz for the leaves of z in `slots`."""
        variables, fill = select(z, slots)
        answer = gradient(
            lambda *leaves: self.value(fill(leaves[len(y) :]), leaves[: len(y)], batch), (*y, *variables), functional
        )
        return answer[: len(y)], answer[len(y) :]

    def gradient_z(self, z: Z, y: Leaves, batch: Tree, slots: Sequence[int], functional: bool = True) -> Leaves:
        """dg/dz for the leaves of z in `slots`."""
        variables, fill = select(z, slots)
        return gradient(lambda *leaves: self.value(fill(leaves), y, batch), variables, functional)

    # Steps

    def step(
        self, z: Z, y: Leaves, state: Leaves, batch: Tree, shift: Shift | None = None, functional: bool = False
    ) -> tuple[Leaves, Leaves]:
        """One update of the solver; with a `shift` (v, e), e v is added to the gradient (the loss gains e <v, y>)."""
        direction = self.gradient(z, y, batch, functional)
        if shift is not None:
            direction = trees.add(direction, *shift)
        updated: tuple[Leaves, Leaves] = self.solver_at(z).update(direction, y, state)
        return updated

    def path(
        self,
        feed: Feed,
        y: Leaves,
        shift: Shift | None = None,
        functional: bool = False,
        visit: Callable[[Z, Leaves, Leaves, Tree], None] | None = None,
        state: Leaves | None = None,
    ) -> tuple[Leaves, Leaves]:
        """y^N and the solver's state after it. `visit` sees (z, y, state, batch) before each step."""
        with uncached():
            return self._path(feed, y, state, shift, functional, visit)

    def _path(
        self,
        feed: Feed,
        y: Leaves,
        state: Leaves | None,
        shift: Shift | None,
        functional: bool,
        visit: Callable[[Z, Leaves, Leaves, Tree], None] | None,
    ) -> tuple[Leaves, Leaves]:
        if not functional and not self.compile and visit is None:
            return self._eager_path(feed, y, state, shift)
        state = self.solver.init(y) if state is None else state
        if self.compile and not functional and visit is None:
            for run in runs(((z, batch), times) for z, batch, times in feed):
                y, state = self.loop("path", _step, run, (y, state), shift, shift is None)
            return y, state
        for z, batch in each(feed):
            if visit is not None:
                visit(z, y, state, batch)
            y, state = self.step(z, y, state, batch, shift, functional)
        return y, state

    def owns(self, y: Leaves) -> bool:
        """Whether eager steps may write into y: in half precision torch rounds the numbers of such steps otherwise."""
        return all(trees.wide(t.dtype) == t.dtype for t in y)

    def _eager_path(self, feed: Feed, y: Leaves, state: Leaves | None, shift: Shift | None) -> tuple[Leaves, Leaves]:
        """The same steps with nothing done twice that need not be: a tenth faster than one `step` after another.

        The path has its own y and state, which its steps write into where `owns` says so.
        """
        loss, tree_of, numbers = self.loss, self.y_plan.spec.unflatten, self.numbers
        y, state = trees.copy(y), self.solver.init(y) if state is None else trees.copy(state)
        owns = self.owns(y)
        with torch.enable_grad():
            for z, batch, times in feed:
                solver = self.solver_at(z)
                update = solver.owning if owns else solver.update
                z_tree = self.z_plan.spec.unflatten(z if numbers is None else z[: len(z) - numbers.count])
                for _ in range(times):
                    leaves = [t.detach().requires_grad_() for t in y]
                    value = loss(z_tree, tree_of(leaves), batch)
                    if numbers is not None and numbers.decays:
                        value = value + solver.decay(leaves, value)
                    if value.requires_grad:
                        direction = torch.autograd.grad(value, leaves, materialize_grads=True)
                    else:
                        direction = trees.zeros(y)
                    if shift is not None:
                        slopes = list(direction)
                        del direction
                        direction = trees.add_to(slopes, *shift)
                    y, state = update(direction, y, state)
                    del leaves, value, direction  # their memory is needed for the next
        return y, state

    # Curvature: products with the second derivatives of g, and with the transposed derivative of a step

    def curvature(
        self,
        z: Z,
        y: Leaves,
        batch: Tree,
        q: Leaves,
        slots: Sequence[int],
        products: Products,
        probe: Leaves = (),
        functional: bool = True,
        reset: Reset = nothing,
    ) -> tuple[Leaves, Leaves]:
        """(d2g/dy2) q and (d2g/dz dy) q; no z part where `slots` is empty.

        "autodiff" is the transposed derivative of dg/dy; "forward" and "difference" are the derivative of dg/dy and
        dg/dz along q, which is the same because second derivatives are symmetric. `probe` is the relative length of a
        difference, or two, by y and by z; `reset` puts random numbers back before each evaluation.
        """
        variables, fill = select(z, slots)
        if products != "difference":
            q = tuple([r.to(t.dtype) for r, t in zip(q, y, strict=True)])
        if products == "autodiff":

            def slope(y: Leaves, variables: Leaves) -> Leaves:
                return self.gradient(fill(variables), y, batch, functional=True)

            pulled: tuple[Leaves, Leaves] = torch.func.vjp(slope, y, variables)[1](tuple(q))
            return pulled
        if products == "forward" and functional:

            def both(y: Leaves) -> tuple[Leaves, Leaves]:
                return self.gradients(z, y, batch, slots, functional=True)

            pushed: tuple[Leaves, Leaves] = torch.func.jvp(both, (tuple(y),), (tuple(q),))[1]
            return pushed
        if products == "forward":
            reset()
            return self._pushed(z, y, batch, q, slots)
        if len(probe) > 1 and slots:
            by_y, _ = self.curvature(z, y, batch, q, (), products, probe[:1], functional, reset)
            _, by_z = self.curvature(z, y, batch, q, slots, products, probe[1:], functional, reset)
            return by_y, by_z
        e = probe[0] * probe_size(y, q)
        if functional:
            ends = [itertools.chain(*self.gradients(z, trees.add(y, q, s), batch, slots, True)) for s in (e, -e)]
            slopes = tuple([trees.slope(up, down, 0.5 / e) for up, down in zip(*ends, strict=True)])
        else:
            slopes = central(
                lambda *leaves: self.value(fill(leaves[len(y) :]), leaves[: len(y)], batch),
                lambda e: (*trees.add(y, q, e), *variables),
                e,
                reset,
            )
        return slopes[: len(y)], slopes[len(y) :]

    def _pushed(self, z: Z, y: Leaves, batch: Tree, q: Leaves, slots: Sequence[int]) -> tuple[Leaves, Leaves]:
        """Forward over reverse by dual numbers: the tangents that dg/dy and dg/dz have where y has the tangent q."""
        variables, fill = select(z, slots)
        with torch.enable_grad(), forward_ad.dual_level():
            leaves = tuple([t.detach().requires_grad_() for t in (*y, *variables)])
            duals = [forward_ad.make_dual(t, d.to(t.dtype)) for t, d in zip(leaves[: len(y)], q, strict=True)]
            value = self.value(fill(leaves[len(y) :]), tuple(duals), batch)
            if not value.requires_grad:
                return trees.zeros(y), trees.zeros(variables)
            found = torch.autograd.grad(value, leaves, materialize_grads=True)
            tangents = [forward_ad.unpack_dual(t).tangent for t in found]
            answer = tuple(
                torch.zeros_like(t) if d is None else d.detach() for t, d in zip(leaves, tangents, strict=True)
            )
        return answer[: len(y)], answer[len(y) :]

    def adjoint(
        self,
        z: Z,
        y: Leaves,
        state: Leaves,
        batch: Tree,
        y_bar: Leaves,
        state_bar: Leaves,
        slots: Sequence[int],
        products: Products,
        probe: Leaves = (),
        numbers: bool = True,
    ) -> tuple[Leaves, Leaves, Leaves]:
        """The transposed derivative of one step: cotangents of (y', state') to those of (y, state, z).

        Without `numbers`, as at a fixed point, where the update does not move with its learning rate.
        """
        solver = self.solver_at(z)
        mine = slots if numbers else ()
        direction = self.gradient(z, y, batch, functional=True) if self.needs_gradient(z, mine) else y
        bar, y_direct, before = solver.pull(direction, y, state, y_bar, state_bar)
        by_y, by_z = self.curvature(z, y, batch, bar, slots, products, probe)
        if self.numbers is not None:
            by_z = self.numbers.pull(by_z, z, mine, direction, y, state, y_bar, state_bar)
        return trees.add(y_direct, by_y), before, by_z

    def needs_gradient(self, z: Z, slots: Sequence[int]) -> bool:
        """Whether the transposed derivative of a step needs dg/dy itself."""
        return not self.solver.linear or (self.numbers is not None and bool(self.numbers.among(z, slots)))

    def tangent(
        self,
        pair: tuple[Z, Tree],
        z_dot: Leaves,
        slots: Sequence[int],
        y: Leaves,
        state: Leaves,
        y_dot: Leaves,
        state_dot: Leaves,
    ) -> tuple[Leaves, Leaves, Leaves, Leaves]:
        """One step and its derivative along (z_dot, y_dot, state_dot)."""
        variables, fill = select(pair[0], slots)

        def step(variables: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
            return self.step(fill(variables), y, state, pair[1], functional=True)

        after = torch.func.jvp(step, (variables, y, state), (z_dot, y_dot, state_dot))
        (y, state), (y_dot, state_dot) = after[0], after[1]
        return y, state, y_dot, state_dot


def _step(kernel: Kernel, point: Any, carry: tuple[Leaves, Leaves], shift: Shift | None) -> tuple[Leaves, Leaves]:
    """One turn of a compiled path."""
    z, batch = point
    return kernel.step(z, *carry, batch, shift, functional=True)


def gradient(fn: Callable[..., Tensor], args: Leaves, functional: bool) -> Leaves:
    """The gradient of a scalar function with respect to all its arguments; zero for those it does not use.

    Outside of transforms and compiled code `torch.autograd.grad` is faster and takes any custom autograd function.
    """
    if functional:
        answer: Leaves = torch.func.grad(fn, argnums=tuple(range(len(args))))(*args)
        return answer
    with torch.enable_grad():
        leaves = tuple([t.detach().requires_grad_() for t in args])
        value = fn(*leaves)
        if not value.requires_grad:
            return trees.zeros(args)
        return torch.autograd.grad(value, leaves, materialize_grads=True)


def select(z: Z, slots: Sequence[int]) -> tuple[Leaves, Callable[[Sequence[Tensor]], Z]]:
    """The leaves of z at `slots`, and the function that puts others in their places."""

    def fill(variables: Sequence[Tensor]) -> Z:
        filled = list(z)
        for slot, variable in zip(slots, variables, strict=True):
            filled[slot] = variable
        return tuple(filled)

    return tuple(z[slot] for slot in slots), fill


def each(feed: Feed) -> Iterator[tuple[Z, Tree]]:
    """(z, batch) of each step."""
    for z, batch, times in feed:
        for _ in range(times):
            yield z, batch
