"""How is a loop one compiled call? By `torch.while_loop` and `scan`, over points that all turns share or are stacked.

`Loop` repeats carry <- term(kernel, point, carry, fixed). `Scan` also reads and writes one row of something each turn.
What torch cannot take as a loop is compiled turn by turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor
from torch.utils._pytree import tree_map as _map  # the one that torch.compile looks into

from pzobo.inner.compiled import Compiled
from pzobo.tensors.trees import Plan, Tree

scan: Any
try:  # not public yet (torch 2.13)
    from torch._higher_order_ops.scan import scan
except ImportError:
    scan = None

_NUMBERS: dict[Any, str] = {int: "the whole number ", float: "the number "}
MOST = 2**26
"""Bytes that are stacked for one call, at most: so the memory of a path does not grow with its length."""

Term = Callable[[Any, Tree, Any, Any], Any]
"""(kernel, point, carry, fixed) -> carry: one turn. Tensors in `carry` keep their shapes and dtypes."""


@dataclass(frozen=True)
class Run:
    """Turns that one call makes: the leaves of their points, and which of these are stacked, one row a turn."""

    leaves: tuple[Any, ...]
    stacked: tuple[bool, ...]
    """For each leaf. No numbers of leaves: torch.compile may take numbers for variables, and does not find those."""
    plan: Plan
    turns: int

    def point(self, t: int) -> Tree:
        """The point of one turn."""
        leaves = [_number(leaf) for leaf in self.leaves]
        return self.plan.build([leaf[t] if row else leaf for leaf, row in zip(leaves, self.stacked, strict=True)])

    def ready(self) -> tuple[Any, ...]:
        """The leaves as compiled code gets them: the number of rows is left open, and numbers are constants."""
        for leaf, row in zip(self.leaves, self.stacked, strict=True):
            if row:
                dynamic(leaf)
        return tuple([_constant(leaf) for leaf in self.leaves])


def runs(feed: Iterable[tuple[Tree, int]]) -> Iterator[Run]:
    """A feed of (point, turns it serves) in runs: points that differ only in their numbers are stacked."""
    pending: list[tuple[Any, ...]] = []
    plan = None
    for point, turns in feed:
        leaves, own = Plan.take(point)
        if pending and (turns != 1 or own != plan or not _alike(pending[0], leaves) or _full(pending, leaves)):
            yield _stacked(pending, plan)
            pending = []
        if turns != 1:
            yield Run(leaves, (False,) * len(leaves), own, turns)
            continue
        plan = own
        pending.append(leaves)
    if pending:
        yield _stacked(pending, plan)


def _full(pending: Sequence[tuple[Any, ...]], leaves: tuple[Any, ...]) -> bool:
    """Whether one more point would be more than one call may hold."""
    size = sum(b.nbytes for a, b in zip(pending[0], leaves, strict=True) if b is not a and _plain(b))
    return bool(size * (len(pending) + 1) > MOST)


def _plain(leaf: Any) -> bool:
    return type(leaf) in (Tensor, torch.nn.Parameter) and leaf.layout == torch.strided


def _alike(first: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether two points can stand in one stack."""
    return all(a is b or _same_kind(a, b) for a, b in zip(first, leaves, strict=True))


def _same_kind(a: Any, b: Any) -> bool:
    if _plain(a) and _plain(b):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.device == b.device)
    return type(a) is type(b) and isinstance(a, (int, float, str)) and a == b


def _stacked(points: Sequence[tuple[Any, ...]], plan: Any) -> Run:
    columns = list(zip(*points, strict=True))
    stacked = tuple(_plain(column[0]) and any(leaf is not column[0] for leaf in column) for column in columns)
    leaves = [torch.stack(column) if row else column[0] for column, row in zip(columns, stacked, strict=True)]
    return Run(tuple(leaves), stacked, plan, len(points))


def _constant(leaf: Any) -> Any:
    """A number as text, which is a constant of compiled code.

    torch.compile takes a whole number that changes for a variable, and then a container that holds it for one without
    it (docs/dependencies.md). Other numbers it takes for variables that a loop cannot have.
    """
    return _NUMBERS[type(leaf)] + repr(leaf) if type(leaf) in _NUMBERS else leaf


def _number(leaf: Any) -> Any:
    """The number again."""
    if isinstance(leaf, str):
        for kind, mark in _NUMBERS.items():
            if leaf.startswith(mark):
                return kind(leaf.removeprefix(mark))
    return leaf


def dynamic(rows: Tree) -> Tree:
    """The same tree; its number of rows is left open in what is compiled for it."""
    for leaf in optree.tree_leaves(rows):
        torch._dynamo.maybe_mark_dynamic(leaf, 0)
    return rows


@functools.lru_cache(1000, typed=True)
def number(value: float) -> Tensor:
    """A number as an input of compiled code: another one compiles nothing.

    It is on the CPU whatever the device is: no turn waits for the device to know whether there is another.
    """
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device="cpu")


class Loop:
    """Turns over the points of a run, for one structure of them.

    Args:
        term: one turn.
        plan, stacked: the structure of the points, as a `Run` has it.
        going: (carry, fixed) -> whether there is another turn, looked at before each; always by default.
        finish: (kernel, point, carry, fixed) -> the answer, at the run's last point; the carry itself by default.
    """

    def __init__(
        self,
        term: Term,
        plan: Plan,
        stacked: tuple[bool, ...],
        going: Callable[[Any, Any], Tensor] | None = None,
        finish: Term | None = None,
    ) -> None:
        self._plan, self._stacked, self._going = plan.traceable(), stacked, going
        turn, end = Compiled(term), Compiled(finish) if finish else None
        self._call = Compiled(
            _loop(term, self._plan, stacked, going, finish),
            plain=functools.partial(self._turn_by_turn, term, finish),
            instead=functools.partial(self._turn_by_turn, turn, end),
        )

    def __call__(self, kernel: Any, run: Run, carry: Any, fixed: Any) -> Any:
        return self._call(kernel, run.ready(), number(run.turns), carry, fixed)

    def _turn_by_turn(
        self, term: Any, finish: Any, kernel: Any, leaves: tuple[Any, ...], turns: Tensor, carry: Any, fixed: Any
    ) -> Any:
        run = Run(leaves, self._stacked, self._plan, int(turns))
        for t in range(run.turns):
            if self._going is not None and not self._going(carry, fixed):
                break
            carry = term(kernel, run.point(t), carry, fixed)
        return carry if finish is None else finish(kernel, run.point(run.turns - 1), carry, fixed)


class Scan:
    """Turns that read one row of a tree each, or write one.

    Args:
        term: (kernel, point, row, carry, fixed) -> (carry, what is written).
        plan, stacked: the structure of the points, as a `Run` has it.
        reverse: from the last point to the first.
    """

    def __init__(self, term: Callable[..., Any], plan: Plan, stacked: tuple[bool, ...], reverse: bool = False) -> None:
        self._plan, self._stacked, self._reverse = plan.traceable(), stacked, reverse
        turn = Compiled(term)
        by_turns = functools.partial(self._turn_by_turn, turn)
        if scan is None:
            self._call: Callable[..., Any] = by_turns
        else:
            plain = functools.partial(self._turn_by_turn, term)
            self._call = Compiled(_scan(term, self._plan, stacked, reverse), plain=plain, instead=by_turns)

    def __call__(self, kernel: Any, run: Run, rows: Any, carry: Any, fixed: Any) -> tuple[Any, Any]:
        """The carry after the last turn, and what was written, one row a turn."""
        numbers, rows = dynamic((torch.arange(run.turns, device="cpu"), rows))
        answer: tuple[Any, Any] = self._call(kernel, run.ready(), numbers, rows, carry, fixed)
        return answer

    def _turn_by_turn(
        self, term: Any, kernel: Any, leaves: tuple[Any, ...], numbers: Tensor, rows: Any, carry: Any, fixed: Any
    ) -> tuple[Any, Any]:
        run = Run(leaves, self._stacked, self._plan, len(numbers))
        order = range(run.turns)
        written: list[Any] = [None] * run.turns
        for t in reversed(order) if self._reverse else order:
            row = optree.tree_map(lambda leaf, t=t: leaf[t], rows)
            carry, written[t] = term(kernel, run.point(t), row, carry, fixed)
        return carry, optree.tree_map(lambda *leaves: torch.stack(leaves), *written)


# Inside of compiled code


def _pick(leaves: Sequence[Any], plan: Plan, stacked: tuple[bool, ...], t: Tensor) -> Tree:
    """The point of a turn."""
    return plan.build([_row(leaf, t) if row else _number(leaf) for leaf, row in zip(leaves, stacked, strict=True)])


def _row(leaf: Tensor, t: Tensor) -> Tensor:
    return leaf.index_select(0, t.reshape(1).to(leaf.device)).squeeze(0)


def _own(tree: Tree) -> Tree:
    """Copies: what is carried must be nothing else that the loop sees, and lie in memory as after a turn."""
    return _map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)


def _settled(tree: Tree) -> Tree:
    """What a turn hands on lies in memory as what it got."""
    return _map(Tensor.contiguous, tree)


def _loop(term: Term, plan: Plan, stacked: tuple[bool, ...], going: Any, finish: Any) -> Callable[..., Any]:
    def loop(kernel: Any, leaves: tuple[Any, ...], turns: Tensor, carry: Any, fixed: Any) -> Any:
        def another(t: Tensor, carry: Any) -> Tensor:
            return t < turns if going is None else (t < turns) & going(carry, fixed)

        def turn(t: Tensor, carry: Any) -> tuple[Tensor, Any]:
            return t + 1, _settled(term(kernel, _pick(leaves, plan, stacked, t), carry, fixed))

        _, carry = torch.while_loop(another, turn, (torch.zeros((), dtype=torch.int64, device="cpu"), _own(carry)))
        if finish is None:
            return carry
        return finish(kernel, _pick(leaves, plan, stacked, turns - 1), carry, fixed)

    return loop


def _scan(term: Callable[..., Any], plan: Plan, stacked: tuple[bool, ...], reverse: bool) -> Callable[..., Any]:
    def scanned(kernel: Any, leaves: tuple[Any, ...], numbers: Tensor, rows: Any, carry: Any, fixed: Any) -> Any:
        # The turns read their rows by number: `scan` itself would copy all rows to go over them from the last.
        def turn(carry: Any, t: Tensor) -> Any:
            row = _map(lambda leaf: _row(leaf, t), rows)
            carry, written = term(kernel, _pick(leaves, plan, stacked, t), row, carry, fixed)
            return _settled(carry), _settled(written)

        return scan(turn, _own(carry), numbers, reverse=reverse)

    return scanned
