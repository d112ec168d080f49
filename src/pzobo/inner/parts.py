"""How does a solver get its numbers? Those that are no constants travel with z, and parts of y may have others.

The leaves of z are those of prepare(x, batch), then the numbers that are functions of x, then those of the step. So
every path has its own, compiled code takes them as inputs, and the derivative by them is a derivative by z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.inner.loops import number
from pzobo.inner.numbers import Schedule, Source, is_constant
from pzobo.inner.solver import Iterative
from pzobo.options import in_range
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Plan, Tree


@dataclass(frozen=True)
class Part:
    """Some leaves of y, and the solver with their numbers."""

    leaves: tuple[int, ...]
    solver: Any
    places: tuple[tuple[str, int | None, tuple[int, ...]], ...]
    """(name, place in a pair, which of the numbers that come with z; of two, their product)."""
    state: int
    """How many leaves its state has."""
    decays: bool
    """Whether its weight decay is a part of the loss."""

    def at(self, numbers: Sequence[Any]) -> Any:
        """The solver with the numbers that came with z."""
        if not self.places:
            return self.solver
        alike = object.__new__(type(self.solver))
        for name, value in self.solver.__dict__.items():
            object.__setattr__(alike, name, value)
        for name, place, which in self.places:
            value = numbers[which[0]]
            if len(which) == 2:
                value = value * numbers[which[1]]
            if place is not None:
                pair = list(getattr(alike, name))
                pair[place] = value
                value = tuple(pair)
            object.__setattr__(alike, name, value)
        return alike


class Bound:
    """The update of a solver whose numbers are known, part by part of y."""

    def __init__(self, parts: Sequence[Part], numbers: Sequence[Any], linear: bool) -> None:
        self.linear = linear
        self._parts = [(part, part.at(numbers)) for part in parts]

    @property
    def solvers(self) -> list[Any]:
        """That of each part."""
        return [solver for _, solver in self._parts]

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return self._updated("update", gradient, y, state)

    def owning(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        """The same step in the same bits, which may write into y and state."""
        return self._updated("owning", gradient, y, state)

    def _updated(self, name: str, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        if len(self._parts) == 1:
            answer: tuple[Leaves, Leaves] = getattr(self._parts[0][1], name)(gradient, y, state)
            return answer
        new, states = list(y), []
        for part, solver, own in self._each(state):
            moved, after = getattr(solver, name)(_pick(gradient, part), _pick(y, part), own)
            _put(new, part, moved)
            states.extend(after)
        return tuple(new), tuple(states)

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        if len(self._parts) == 1:
            answer: tuple[Leaves, Leaves, Leaves] = self._parts[0][1].pull(gradient, y, state, y_bar, state_bar)
            return answer
        by_gradient, by_y, by_state = list(y), list(y), []
        bars = iter(self._each(state_bar))
        for part, solver, own in self._each(state):
            _, _, bar = next(bars)
            pulled = solver.pull(_pick(gradient, part), _pick(y, part), own, _pick(y_bar, part), bar)
            _put(by_gradient, part, pulled[0])
            _put(by_y, part, pulled[1])
            by_state.extend(pulled[2])
        return tuple(by_gradient), tuple(by_y), tuple(by_state)

    def penalty(self, y: Leaves, like: Tensor) -> Tensor:
        """Half the weight decay times |y|^2: what a weight decay adds to g."""
        total = torch.zeros_like(like)
        for part, solver in self._parts:
            if part.decays:
                rate = solver.weight_decay
                for t in _pick(y, part):
                    square = t.to(trees.wide(t.dtype)).square().sum()
                    half = 0.5 * (rate.to(square.dtype) if isinstance(rate, Tensor) else rate)
                    total = total + (half * square).to(like.dtype)
        return total

    def decay(self, leaves: Sequence[Tensor], like: Tensor) -> Tensor:
        """A term of no value with the gradient of the penalty, weight decay times y, in few launches.

        Half precisions, whose penalty is made in float32, have the penalty itself.
        """
        if any(trees.wide(t.dtype) != t.dtype for t in leaves):
            return self.penalty(tuple(leaves), like)
        found: Tensor = _Decay.apply(self._slopes, like, *leaves)
        return found

    def _slopes(self, y: Leaves) -> list[Tensor | None]:
        found: list[Tensor | None] = [None] * len(y)
        for part, solver in self._parts:
            if part.decays:
                _put(found, part, tuple(trees.scaled(_pick(y, part), solver.weight_decay)))
        return found

    def _each(self, state: Leaves) -> list[tuple[Part, Any, Leaves]]:
        found, first = [], 0
        for part, solver in self._parts:
            found.append((part, solver, state[first : first + part.state]))
            first += part.state
        return found


class _Decay(torch.autograd.Function):
    """Zero, with a gradient that is given as a function of the leaves."""

    @staticmethod
    def forward(ctx: Any, slopes: Callable[[Leaves], list[Tensor | None]], like: Tensor, *leaves: Tensor) -> Tensor:
        ctx.slopes, ctx.leaves = slopes, tuple([t.detach() for t in leaves])
        return torch.zeros_like(like)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, None, *ctx.slopes(ctx.leaves)


def _pick(leaves: Leaves, part: Part) -> Leaves:
    return tuple([leaves[i] for i in part.leaves])


def _put(into: list[Any], part: Part, leaves: Leaves) -> None:
    for i, leaf in zip(part.leaves, leaves, strict=True):
        into[i] = leaf


@dataclass(frozen=True)
class Numbers:
    """The numbers of a solver for one structure of y, where they are not all constants."""

    parts: tuple[Part, ...]
    linear: bool
    by_x: tuple[Source, ...] = ()
    by_step: tuple[Source, ...] = ()
    tensors: bool = False
    """Whether numbers must be tensors, as for compiled code."""
    _table: dict[int, tuple[Any, ...]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, solver: Iterative, y: Leaves, y_plan: Plan, compile: bool) -> Numbers | None:
        """None where all numbers are constants and nothing is added to the loss."""
        own = "numbers" in vars(type(solver))
        varying = [name for name in type(solver).numbers if not is_constant(getattr(solver, name))]
        if varying and not own:
            raise OptionError(
                f"{type(solver).__name__} inherits its numbers {type(solver).numbers}: say which of them its own "
                f"update takes as tensors, numbers = (...), so that {varying[0]} need not be a constant."
            )
        decays = not solver.decoupled and not (is_constant(solver.weight_decay) and solver.weight_decay == 0)
        return _build(cls, solver, y, y_plan, compile) if varying or decays else None

    @property
    def count(self) -> int:
        """How many of them come with z."""
        return len(self.by_x) + len(self.by_step)

    @property
    def decays(self) -> bool:
        """Whether a weight decay is added to the loss."""
        return True in [part.decays for part in self.parts]

    @property
    def key(self) -> tuple[Any, ...]:
        """What compiled code depends on but for the values."""
        return tuple((part.leaves, part.places, part.state, part.decays) for part in self.parts)

    def init(self, y: Leaves) -> Leaves:
        return tuple([t for part in self.parts for t in part.solver.init(_pick(y, part))])

    def bind(self, z: tuple[Any, ...]) -> Bound:
        """The solver's update with the numbers at the end of z."""
        return Bound(self.parts, z[len(z) - self.count :], self.linear)

    def at_x(self, x: Tree) -> tuple[Any, ...]:
        """Those that are functions of x."""
        return tuple([source.at(x) for source in self.by_x])

    def at_step(self, step: int) -> tuple[Any, ...]:
        """Those of a step."""
        if step not in self._table:
            values = [(source, source.of.at(step)) for source in self.by_step]
            for source, value in values:
                source.checked(value, f"at step {step}")
            self._table[step] = tuple([number(float(v)) if self.tensors else float(v) for _, v in values])
        return self._table[step]

    def check(self, x: Tree) -> None:
        """Refuse functions of x whose value here makes no sense."""
        with torch.no_grad():
            for source, value in zip(self.by_x, self.at_x(x), strict=True):
                source.checked(value, "at this x")

    def among(self, z: tuple[Any, ...], slots: Sequence[int]) -> tuple[int, ...]:
        """Those of the slots of z that are numbers of the solver."""
        return tuple([k for k in slots if k >= len(z) - self.count])

    def pull(
        self,
        by_z: Leaves,
        z: tuple[Any, ...],
        slots: Sequence[int],
        gradient: Leaves,
        y: Leaves,
        state: Leaves,
        y_bar: Leaves,
        state_bar: Leaves,
    ) -> Leaves:
        """Cotangents of z at `slots`, with those that the update itself has by the numbers among them."""
        mine = self.among(z, slots)
        if not mine:
            return by_z

        def update(*values: Tensor) -> tuple[Leaves, Leaves]:
            filled = list(z)
            for slot, value in zip(mine, values, strict=True):
                filled[slot] = value
            return self.bind(tuple(filled)).update(gradient, y, state)

        added = torch.func.vjp(update, *[z[slot] for slot in mine])[1]((y_bar, state_bar))
        found = list(by_z)
        for slot, cotangent in zip(mine, added, strict=True):
            found[list(slots).index(slot)] = found[list(slots).index(slot)] + cotangent
        return tuple(found)

    def along(self, feed: Iterator[tuple[Any, Tree, int]]) -> Iterator[tuple[Any, Tree, int]]:
        """A feed, each step with its own numbers."""
        if not self.by_step:
            yield from feed
            return
        t = 0
        for z, batch, times in feed:
            for _ in range(times):
                yield self.stepped(z, t), batch, 1
                t += 1

    def stepped(self, z: tuple[Any, ...], step: int) -> tuple[Any, ...]:
        """z with the numbers of another step."""
        return (*z[: len(z) - len(self.by_step)], *self.at_step(step)) if self.by_step else z


def _build(cls: type[Numbers], solver: Iterative, y: Leaves, y_plan: Plan, compile: bool) -> Numbers:
    names = [f for f in type(solver).numbers if "numbers" in vars(type(solver))]
    chosen = {name: _spread(f"{type(solver).__name__}: {name}", getattr(solver, name), y_plan) for name in names}
    groups: dict[Any, list[int]] = {}
    for i in range(len(y)):
        groups.setdefault(tuple(chosen[name][i][0] for name in names), []).append(i)
    by_x: dict[int, Source] = {}
    by_step: dict[int, Source] = {}
    drafts = []
    for leaves in groups.values():
        values = {name: chosen[name][leaves[0]][1] for name in names}
        pending = []
        for name, value in values.items():
            limit = type(solver).limits.get(name, _anything)
            for place, atom in enumerate(value) if isinstance(value, tuple) else [(None, value)]:
                what = f"{type(solver).__name__}: {name}"
                functions = [atom.times] if isinstance(atom, Schedule) and atom.times is not None else []
                if isinstance(atom, Schedule):
                    by_step.setdefault(id(atom), Source(what, atom, _not_negative if functions else limit))
                elif callable(atom):
                    functions = [atom]
                for function in functions:
                    by_x.setdefault(id(function), Source(what, function, limit))
                if functions or isinstance(atom, Schedule):
                    pending.append((name, place, {id(atom), *map(id, functions)}))
        drafts.append((tuple(leaves), values, pending))
    order = [*by_x, *by_step]  # by identity
    parts = []
    for indices, values, pending in drafts:
        own: Any = solver.alike(**{name: _blank(value) for name, value in values.items()})
        state = len(own.init(tuple(y[i] for i in indices)))
        rate = values.get("weight_decay", own.weight_decay)
        decays = not own.decoupled and not (is_constant(rate) and rate == 0)
        places = tuple(
            (name, place, tuple(i for i, one in enumerate(order) if one in wanted)) for name, place, wanted in pending
        )
        parts.append(Part(indices, own.with_tensors() if compile else own, places, state, decays))
    return cls(tuple(parts), solver.linear, tuple(by_x.values()), tuple(by_step.values()), compile)


def _blank(value: Any) -> Any:
    """A constant, or 0 where a number comes with z: compiled code would look whether the function is the same."""
    if isinstance(value, tuple):
        return tuple(_blank(part) for part in value)
    return value if is_constant(value) else 0.0


def _not_negative(what: str, value: Any) -> float:
    return in_range(f"{what}: Schedule", value, 0, math.inf)


def _anything(what: str, value: Any) -> float:
    return float(value)


def _spread(what: str, value: Any, y_plan: Plan) -> list[tuple[Any, Any]]:
    """For each leaf of y: the names that lead to its number, and the number."""
    found, used = [], set()
    for path in y_plan.spec.paths():
        part, depth = value, 0
        while isinstance(part, Mapping):
            if depth == len(path) or path[depth] not in part:
                raise OptionError(
                    f"{what} has the names {list(part)}, and none for y{''.join(f'[{key!r}]' for key in path)}: give a "
                    "number for each part of y."
                )
            part, depth = part[path[depth]], depth + 1
        used.add(path[:depth])
        found.append((path[:depth], part))
    unused = [names for names in _names(value) if names not in used]
    if unused:
        raise OptionError(f"{what} has a number for y{''.join(f'[{key!r}]' for key in unused[0])}, which y has not.")
    return found


def _names(value: Any) -> Iterator[tuple[Any, ...]]:
    if not isinstance(value, Mapping):
        yield ()
        return
    for key, part in value.items():
        for names in _names(part):
            yield (key, *names)
