"""How is a compiled path differentiated in reverse? One call keeps its points, another goes back over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pzobo.inner.kernel import Feed, Kernel, Products, nothing
from pzobo.inner.loops import Run, runs
from pzobo.inner.problem import InnerProblem, Point
from pzobo.inner.products import probe, transpose
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree


class Tape:
    """The y and state before each of the last steps of a path, in runs of steps."""

    def __init__(self, inner: InnerProblem, first: int, products: Products) -> None:
        self._inner, self._products = inner, products
        self._runs: list[tuple[int, tuple[int, ...], Run, Any]] = []
        kernel = inner.kernel
        before, after = _cut(inner.feed(inner.variables), first)
        y, state = kernel.path(before, inner.y0, state=inner.call.state)
        index = first
        for slots, feed in _by_slots(after, inner.points, first):
            for run in runs(feed):
                (y, state), points = kernel.scan("kept path", _keep, run, (), (y, state), None)
                self._runs.append((index, slots, run, points))
                index += run.turns
        self.y: Leaves = y
        self.state: Leaves = state
        self._first = first

    def pull(self, v: Leaves) -> Leaves:
        """(dy^N/dz)^T v."""
        parts: dict[int, Leaves] = {}
        # Where the lengths of differences are looked for, step by step.
        looking = self._products == "difference" and self._inner.questions.closely
        back = self._step_by_step if looking else self._in_one_call
        bars = v, trees.zeros(self.state)
        for index, slots, run, points in reversed(self._runs):
            bars, found = back(index, slots, run, points, bars)
            for where, part in found:
                parts[where] = trees.add(parts[where], part) if where in parts else part
        return self._inner.cotangents(parts, None if self._first else bars[0])

    def _in_one_call(
        self, index: int, slots: tuple[int, ...], run: Run, points: Any, bars: tuple[Leaves, Leaves]
    ) -> tuple[tuple[Leaves, Leaves], list[tuple[int, Leaves]]]:
        """Over one run: the cotangents before it, and those of its z."""
        each = tuple(run.stacked[k] for k in slots)
        sums = tuple(torch.zeros_like(run.leaves[k]) for k, own in zip(slots, each, strict=True) if not own)
        lengths, term = probe(self._inner, slots, self._products), _back(slots, each, self._products)
        (*after, sums), rows = self._inner.kernel.scan(
            "adjoint", term, run, points, (*bars, sums), lengths, slots, self._products, len(lengths), reverse=True
        )
        found = []
        for t in range(run.turns if any(each) else 1):
            by_row, total = iter(rows), iter(sums)
            part = tuple(next(by_row)[t] if own else _once(next(total), t) for own in each)
            found.append(((index + t) % len(self._inner.points), part))
        return (after[0], after[1]), found

    def _step_by_step(
        self, index: int, slots: tuple[int, ...], run: Run, points: Any, bars: tuple[Leaves, Leaves]
    ) -> tuple[tuple[Leaves, Leaves], list[tuple[int, Leaves]]]:
        inner, found = self._inner, []
        for t in reversed(range(run.turns)):
            where = (index + t) % len(inner.points)
            y, state = (tuple(leaf[t] for leaf in leaves) for leaves in points)
            point = replace(inner.points[where], z=inner.call.stepped(inner.points[where].z, index + t))
            pull = transpose(inner, point, y, state, slots, self._products, nothing)
            *after, by_z = pull(*bars)
            bars = after[0], after[1]
            found.append((where, by_z))
        return bars, found


def _once(total: Tensor, t: int) -> Tensor:
    """The cotangent of a leaf of z that all turns share counts once."""
    return total if t == 0 else torch.zeros_like(total)


def _keep(kernel: Kernel, point: Any, row: Any, carry: tuple[Leaves, Leaves], fixed: None) -> Any:
    (z, batch), (y, state) = point, carry
    before = tuple(t.clone() for t in y), tuple(t.clone() for t in state)
    return kernel.step(z, y, state, batch, functional=True), before


def _back(slots: tuple[int, ...], each: tuple[bool, ...], products: Products) -> Any:
    """A step of the adjoint: cotangents of z are summed, or written down for each turn that has a z of its own."""

    def back(kernel: Kernel, point: Any, row: tuple[Leaves, Leaves], carry: Any, probe: Leaves) -> Any:
        (z, batch), (y, state), (y_bar, state_bar, sums) = point, row, carry
        y_bar, state_bar, by_z = kernel.adjoint(z, y, state, batch, y_bar, state_bar, slots, products, probe)
        shared = [b for b, own in zip(by_z, each, strict=True) if not own]
        written = tuple([b.clone() for b, own in zip(by_z, each, strict=True) if own])
        return (y_bar, state_bar, trees.add(sums, shared)), written

    return back


def _cut(feed: Feed, first: int) -> tuple[Feed, Feed]:
    """The first steps of a feed, and the others."""
    before, after = [], []
    for z, batch, times in feed:
        early = min(times, first)
        first -= early
        before += [(z, batch, early)] if early else []
        after += [(z, batch, times - early)] if times > early else []
    return before, after


def _by_slots(
    feed: Feed, points: Iterable[Point], first: int
) -> Iterator[tuple[tuple[int, ...], Iterator[tuple[Tree, int]]]]:
    """A feed from its step `first` on, in pieces whose variables have the same places in z."""
    turn = itertools.islice(itertools.cycle(points), first, None)
    for slots, piece in itertools.groupby(zip(feed, turn, strict=False), lambda pair: pair[1].slots):
        yield slots, (((z, batch), times) for (z, batch, times), _ in piece)
