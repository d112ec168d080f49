"""How are many steps one compiled call? A loop whose turn is a step of plain SGD on x, and then one of the algorithm.

What a step asks for (batches, rates, random numbers) is found out once, and given to the loop for all its turns. So the
same batches are seen as without compilation, and a turn is the same code however many turns a call makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import number_at
from pzobo.algorithms.traced import Asked, Data, Recorder, Row, Source, Traced
from pzobo.algorithms.vector import Vector
from pzobo.errors import CompileError
from pzobo.inner.loops import Loop, Run
from pzobo.outer.objective import Turns
from pzobo.tensors import trees
from pzobo.tensors.modules import calls
from pzobo.tensors.sparse import SparseMatrix
from pzobo.tensors.trees import Leaves, Plan

MOST = 128
"""Turns of one call, at most."""

C = TypeVar("C")


class Carry(NamedTuple):
    """What goes from turn to turn."""

    number: Tensor
    x: Leaves
    d: Leaves
    """D of the step before, along which x moves."""
    carried: Leaves
    values: Tensor
    """f at each turn."""
    norms: Tensor
    """|D| at each turn."""


def parts_of(carried: Any) -> dict[str, Any]:
    """The fields of what is carried."""
    return {field.name: getattr(carried, field.name) for field in fields(carried)}


@dataclass(frozen=True)
class Layout(Generic[C]):
    """What an algorithm carries, as tensors: numbers are tensors without dimensions."""

    kind: type[C]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """How many tensors a field has; 0 for one tensor by itself."""
    numbers: tuple[Any, ...]
    """The types of fields that are numbers; None for tensors."""

    @classmethod
    def of(cls, carried: C) -> Layout[C]:
        parts = parts_of(carried)
        sizes = tuple([len(p.leaves) if isinstance(p, Vector) else 0 for p in parts.values()])
        numbers = tuple([None if isinstance(p, (Vector, Tensor)) else type(p) for p in parts.values()])
        return cls(type(carried), tuple(parts), sizes, numbers)

    def leaves(self, carried: C) -> Leaves:
        made: list[Tensor] = []
        for name, number in zip(self.names, self.numbers, strict=True):
            part = getattr(carried, name)
            if isinstance(part, Vector):
                made.extend(part.leaves)
            elif isinstance(part, Tensor):
                made.append(part)
            else:
                made.append(torch.tensor(part, dtype=torch.float64 if number is float else None, device="cpu"))
        return tuple(made)

    def build(self, leaves: Leaves, numbers: bool = False) -> C:
        """The record again; with `numbers`, those that were numbers are."""
        given, parts = iter(leaves), []
        for size, number in zip(self.sizes, self.numbers, strict=True):
            if size:
                parts.append(Vector(tuple([next(given) for _ in range(size)])))
            else:
                part: Any = next(given)
                parts.append(number(part.item()) if numbers and number is not None else part)
        return self.kind(*parts)


class Chunk(Generic[C]):
    """Steps of an algorithm on a problem, compiled.

    Args:
        algorithm: the algorithm.
        at: its oracles.
        sizes: rows of the batches of g and of f.
        carried: what it carries at first.
        k: a step like all that are compiled; None if a step may not ask for its number.
    """

    def __init__(
        self, algorithm: Any, at: Oracles, sizes: tuple[int | None, int | None], carried: C, k: int | None
    ) -> None:
        self.algorithm, self._at, self._sizes = algorithm, at, sizes
        self.layout = Layout.of(carried)
        for data, size in ((at.train, sizes[0]), (at.val, sizes[1])):
            leaves = Plan.take(data)[0]
            if size is not None and any(isinstance(leaf, SparseMatrix) for leaf in leaves):
                raise CompileError("compile=True does not take batches of sparse data: use compile=False.")
            if any(leaf.layout != torch.strided for leaf in leaves if isinstance(leaf, Tensor)):
                raise CompileError(
                    "compile=True does not take torch's own sparse tensors: use compile=False, or give "
                    "pzobo.SparseMatrix.from_torch(tensor)."
                )
        self.source: Source = _source(at, sizes, k)
        self._asked: Asked | None = None
        self._loops: dict[Any, Loop] = {}

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    def ahead(self, most: int) -> int:
        """How many of the next steps one call can make, at most `most`; 0 if the next is made without compilation."""
        at, made = self._at, 0
        while made < min(most, MOST) and self.algorithm.alike(at.k + made) and not at.looks(made):
            made += 1
        return made

    def __call__(self, carried: C, d: Vector, steps: Sequence[Sequence[float]]) -> tuple[C, Vector, Vector, Turns]:
        """For each row of `steps`: x <- x - steps D, tensor by tensor, and a step of the algorithm. Gives what is
        carried, x and D then, and f and |D| at each turn."""
        at, turns = self._at, len(steps)
        if self._asked is None:
            self._asked = self._record(carried)
        row = self._rows(self._asked, steps)
        leaves, plan = Plan.take(row)
        probes = at.probes() if at.products == "difference" else ((), ())
        fixed = (self.source.train.tensors, self.source.val.tensors, probes)
        key = tuple([len(p) for p in probes])
        if key not in self._loops:
            self._loops[key] = Loop(_turn, plan, (True,) * len(leaves))
        blank = torch.zeros(MOST, dtype=torch.float64, device=at.device)
        carry = Carry(
            torch.zeros((), dtype=torch.int64, device=at.device),
            at.x.leaves,
            d.leaves,
            self.layout.leaves(carried),
            blank,
            blank.clone(),
        )
        try:
            made = self._loops[key](self, Run(leaves, (True,) * len(leaves), plan, turns), carry, fixed)
        except CompileError as error:
            instead = f"{self.name}(..., compile=False)"
            raise CompileError(str(error).replace("Argmin(..., compile=False)", instead)) from error
        made = Carry(*made)
        at.passed(turns, self._asked.calls, (row.inner[turns - 1], row.outer[turns - 1]))
        told = Turns(made.values[:turns].tolist(), made.norms[:turns].tolist())
        return self.layout.build(made.carried, numbers=True), Vector(made.x), Vector(made.d), told

    def _record(self, carried: C) -> Asked:
        """What one step asks for. It is found by making one, without a trace."""
        recorder = Recorder(self.source, self._at, self._sizes)
        before = torch.get_rng_state()
        try:
            with torch.no_grad(), calls() as found:
                made = self.algorithm._checked_step(recorder, self.layout.build(self.layout.leaves(carried)))
            drew = not torch.equal(before, torch.get_rng_state())
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            raise CompileError(
                f"{self.name}: the losses write into tensors that are not their own, buffers of modules perhaps, which "
                "compiled steps cannot: use compile=False."
            ) from error
        finally:
            torch.set_rng_state(before)
        if drew or found.writers:
            what = "draw random numbers" if drew else "write into buffers of modules"
            raise CompileError(f"{self.name}: the losses {what}, which compiled steps cannot: use compile=False.")
        after = [(t.shape, t.dtype) for t in self.layout.leaves(made.carried)]
        if after != [(t.shape, t.dtype) for t in self.layout.leaves(carried)]:
            raise CompileError(
                f"{self.name}: what is carried has other shapes or dtypes after a step than before: use compile=False."
            )
        return recorder.asked()

    def _rows(self, asked: Asked, steps: Sequence[Sequence[float]]) -> Row:
        """The inputs of the turns. There is always room for the same number of turns, so that all is compiled once."""
        at, turns = self._at, len(steps)
        inner, outer = at.row_numbers(0, turns, asked.inner), at.row_numbers(1, turns, asked.outer)
        rates = [
            [number_at(rate, 0 if ago is None else at.k + t - ago, most) for rate, ago, most in asked.rates]
            for t in range(turns)
        ]
        longest = max([1 if dtype is None else count for count, dtype in asked.random], default=0)
        random = torch.zeros(turns, len(asked.random), longest, dtype=torch.float64, device="cpu")
        for t in range(turns if asked.random else 0):
            for i, (count, dtype) in enumerate(asked.random):
                if dtype is None:
                    random[t, i, 0] = at.draw(count)
                else:
                    random[t, i, :count] = at.noise(count, dtype)
        numbers = [torch.tensor(n, dtype=torch.float64, device="cpu").view(turns, -1) for n in (rates, steps)]
        parts = (inner, outer, numbers[0], random.to(at.device), numbers[1])
        return Row(*[_padded(part) for part in parts])


def _source(at: Oracles, sizes: tuple[int | None, int | None], k: int | None) -> Source:
    return Source(
        *at.kernels(),
        at.slots,
        at.products,
        at.y0,
        Data(at.train),
        Data(at.val),
        (sizes[0] is not None, sizes[1] is not None),
        k,
    )


def _padded(part: Tensor) -> Tensor:
    if len(part) == MOST:
        return part
    full = part.new_zeros((MOST, *part.shape[1:]))
    full[: len(part)] = part
    return full


def moved(x: Vector, d: Vector, steps: Sequence[Any]) -> Vector:
    """x after a step of plain SGD: rounded the same way in compiled code, where steps are tensors, and outside."""
    pairs = zip(x.leaves, d.leaves, steps, strict=True)
    return Vector(tuple([a - trees.mul((b,), s)[0] for a, b, s in pairs]))


def _turn(chunk: Chunk[Any], row: Row, carry: Carry, fixed: tuple[Leaves, Leaves, tuple[Leaves, Leaves]]) -> Carry:
    """One turn, in compiled code."""
    number, x, d, carried, values, norms = carry
    there = moved(Vector(x), Vector(d), row.steps.unbind())
    at = Traced(chunk.source, there, *fixed, row)
    made = chunk.algorithm.step(at, chunk.layout.build(carried))
    here = torch.arange(MOST, device=number.device) == number
    norm = trees.norm([t.double() for t in made.direction.leaves])
    return Carry(
        number + 1,
        there.leaves,
        made.direction.leaves,
        chunk.layout.leaves(made.carried),
        torch.where(here, made.value.double(), values),
        torch.where(here, norm, norms),
    )
