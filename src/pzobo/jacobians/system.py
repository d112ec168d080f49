"""What is the linear system at y^N, and how is a series of products with it made? Compiled, it is one call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from pzobo.inner.kernel import Kernel, Products, Z
from pzobo.inner.loops import number, runs
from pzobo.inner.problem import InnerProblem, Point
from pzobo.inner.products import Linearization, Transpose, linearize, probe, transpose
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree

LOOK = 5
"""How often a series on another device than the CPU is asked whether it goes on: each time, the host waits for it."""


class Place(Protocol):
    """A point (z, batch) at y^N, where products are taken."""

    owns: bool
    """Whether a turn may write into what it carries."""

    def product(self, q: Leaves) -> tuple[Leaves, Leaves]:
        """(d2g/dy2) q, and (d2g/dz dy) q where it is asked for."""

    def by_z(self, q: Leaves) -> Leaves:
        """(d2g/dz dy) q alone."""

    def pull(self, state: Leaves, y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """The transposed derivative of the solver's step, from one state: cotangents of (y', state') to those of
        (y, state, z)."""


Turn = Callable[[Place, Any, Any], Any]
"""(place, carry, given) -> carry."""


class System:
    """The linear system (d2g/dy2) q = v at y^N, and where its products are taken.

    The points (z, batch) come in turn: another for each product in the stochastic case, else always the same. The last
    product, which makes the answer, may have data of its own.
    """

    def __init__(self, inner: InnerProblem, y: Leaves, products: Products) -> None:
        self.inner = inner
        self.y = y
        self.products = products
        self.left: Leaves = ()
        """What the way to apply the inverse leaves of v: v - H q, or of about its size."""
        self._turn = itertools.cycle(inner.turn)

    def draw(self) -> int:
        return next(self._turn)

    def last(self) -> int:
        """The point of the last product: that which has data for it alone, else the next in turn."""
        return self.inner.mixed[0] if self.inner.mixed else self.draw()

    def at(self, index: int, slots: tuple[int, ...] = ()) -> Place:
        """Products on one batch; those with d2g/dz dy for the leaves of z in `slots`."""
        return _Here(self.inner, self.inner.points[index], self.y, slots, self.products)

    def mixed(self, q: Leaves) -> Leaves:
        """-(d2g/dz dy) q."""
        index = self.last()
        by_z = self.at(index, self.inner.points[index].slots).by_z(q)
        return self.inner.cotangents({index: trees.mul(by_z, -1.0)})

    def series(
        self,
        term: Turn,
        finish: Turn,
        turns: int,
        start: Callable[[], Any],
        given: Sequence[Any],
        draws: int | None = None,
        going: Callable[[Any, Any], Tensor] | None = None,
    ) -> tuple[Leaves, Any]:
        """carry <- term(place, carry, given), `turns` times; then (cotangents of z, ...) by `finish`.

        Args:
            term: one turn. A static function: compiled code is kept by its name. Where the place `owns` the carry it
                may write into it. A turn that comes after `going` said no changes nothing.
            finish: gives the cotangents of its place's z, and whatever else is to be known.
            turns: how many, at most.
            start: makes what the first turn gets: tensors that nobody else holds.
            given: tensors, numbers and None that all turns see.
            draws: how many points the turns have; by default each has its own.
            going: (carry, given) -> whether there is another turn.
        """
        order = [self.draw() for _ in range(turns if draws is None else draws)]
        last = self.last()
        if draws == 1 or len(self.inner.turn) == 1 or not order:
            feed = [(order[0] if order else last, turns)]
        else:
            feed = [(index, 1) for index in order]
        # Where the lengths of differences are looked for, product by product.
        looking = self.products == "difference" and self.inner.questions.closely
        make = self._compiled if self.inner.kernel.compile and not looking else self._eager
        by_z, told = make(term, finish, feed, last, start, given, going)
        return self.inner.cotangents({last: by_z}), told

    def _eager(
        self, term: Turn, finish: Turn, feed: list[tuple[int, int]], last: int, start: Any, given: Any, going: Any
    ) -> Any:
        carry = start()
        every = 1 if all(t.device.type == "cpu" for t in self.y) else LOOK
        for index, turns in feed:
            place = self.at(index)
            for t in range(turns):
                if going is not None and t % every == 0 and not going(carry, given):
                    break
                carry = term(place, carry, given)
            del place  # the graph that it keeps is as large as y
        return finish(self.at(last, self.inner.points[last].slots), carry, given)

    def _compiled(
        self, term: Turn, finish: Turn, feed: list[tuple[int, int]], last: int, start: Any, given: Any, going: Any
    ) -> Any:
        kernel, points, products = self.inner.kernel, self.inner.points, self.products
        slots, end = points[last].slots, (points[last].z, points[last].batch)
        # A number is an input of compiled code: another one compiles nothing.
        given = tuple([number(value) if isinstance(value, float) else value for value in given])
        one = [index for index, _ in feed] == [last]
        probes = probe(self.inner, (), products), probe(self.inner, slots, products)
        fixed = (self.y, given, None if one else end, probes)

        def turn(kernel: Kernel, point: Any, carry: Any, fixed: Any) -> Any:
            (z, batch), (y, given, _, probes) = point, fixed
            return term(_There(kernel, z, batch, y, (), products, probes[0]), carry, given)

        def ended(kernel: Kernel, point: Any, carry: Any, fixed: Any) -> Any:
            y, given, end, probes = fixed
            z, batch = end or point
            return finish(_There(kernel, z, batch, y, slots, products, probes[1]), carry, given)

        def still(carry: Any, fixed: Any) -> Any:
            return going(carry, fixed[1])

        options = {"going": None if going is None else still}
        kind = (products, one, tuple(value is None for value in given), len(probes[0]), len(probes[1]))
        carry = start()
        parts = list(runs(((points[index].z, points[index].batch), turns) for index, turns in feed))
        for run in parts[:-1]:
            carry = kernel.loop(term, turn, run, carry, fixed, *kind, **options)
        return kernel.loop(term, turn, parts[-1], carry, fixed, *kind, slots, finish=ended, **options)


class _Here:
    """A place in eager code, or with each product compiled on its own: what is needed for many products is kept."""

    owns = True

    def __init__(
        self, inner: InnerProblem, point: Point, y: Leaves, slots: tuple[int, ...], products: Products
    ) -> None:
        self._inner, self._point, self._y, self._slots, self._products = inner, point, y, slots, products
        self._transpose: Transpose | None = None

    @functools.cached_property
    def product(self) -> Any:
        rewind = self._inner.replay.rewind
        return linearize(self._inner, self._point, self._y, self._slots, self._products, rewind)

    def by_z(self, q: Leaves) -> Leaves:
        found: Leaves = self.product.by_z(q) if isinstance(self.product, Linearization) else self.product(q)[1]
        return found

    def pull(self, state: Leaves, y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        if self._transpose is None:
            rewind = self._inner.replay.rewind
            at = self._inner, self._point, self._y, state, self._slots
            self._transpose = transpose(*at, self._products, rewind, numbers=False)
        return self._transpose(y_bar, state_bar)


class _There:
    """A place inside of compiled code."""

    owns = False

    def __init__(
        self,
        kernel: Kernel,
        z: Z,
        batch: Tree,
        y: Leaves,
        slots: tuple[int, ...],
        products: Products,
        probe: Leaves,
    ) -> None:
        self.kernel, self.z, self.batch, self.y = kernel, z, batch, y
        self.slots, self.products, self.probe = slots, products, probe

    def product(self, q: Leaves) -> tuple[Leaves, Leaves]:
        return self.kernel.curvature(self.z, self.y, self.batch, q, self.slots, self.products, self.probe)

    def by_z(self, q: Leaves) -> Leaves:
        return self.product(q)[1]

    def pull(self, state: Leaves, y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        at = self.z, self.y, state, self.batch
        return self.kernel.adjoint(*at, y_bar, state_bar, self.slots, self.products, self.probe, numbers=False)
