"""What are the oracles inside compiled code? Pure functions: whatever a step asks for is an input of the code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pzobo.algorithms.oracles import Curved, Oracles, Slopes
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.errors import CompileError
from pzobo.inner.differences import probe_size
from pzobo.inner.kernel import Kernel
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Plan, Tree

T = TypeVar("T")


class Row(NamedTuple):
    """The inputs of one step: what it asks for, in this order. Each is a tensor with a first dimension for them."""

    inner: Tensor
    """Row numbers of the batches of g."""
    outer: Tensor
    """Row numbers of the batches of f."""
    rates: Tensor
    random: Tensor
    """Whole numbers, and vectors of normal ones; each as long as the longest."""
    steps: Tensor
    """How far the optimizer moves each tensor of x along D before the step."""


AskedRate = tuple[Rate, int | None, float]
"""A rate, how many steps ago (None for that of the first step), and the most that it may be."""


@dataclass(frozen=True)
class Asked:
    """What a step asks for: how many batches, which rates, random numbers, and calls of the oracles."""

    inner: int
    outer: int
    rates: tuple[AskedRate, ...]
    random: tuple[tuple[int, torch.dtype | None], ...]
    """A whole number below the first, or so many normal numbers of the second, a dtype."""
    calls: Counter[str]


class Data:
    """A tree of data as an input of compiled code: its tensors; what else is in it are constants."""

    def __init__(self, tree: Tree) -> None:
        leaves, plan = Plan.take(tree)
        self._plan = plan.traceable()
        self._constants = tuple([None if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        self._is_tensor = tuple([isinstance(leaf, Tensor) for leaf in leaves])
        self.tensors = tuple([leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def build(self, tensors: Leaves) -> Tree:
        """The tree of other tensors."""
        given = iter(tensors)
        pairs = zip(self._is_tensor, self._constants, strict=True)
        return self._plan.build([next(given) if tensor else constant for tensor, constant in pairs])

    def rows(self, tensors: Leaves, index: Tensor) -> Tree:
        """Some rows of each."""
        return self.build(tuple([t.index_select(0, index) for t in tensors]))


@dataclass
class Source:
    """What does not change from step to step."""

    g: Kernel
    f: Kernel
    slots: tuple[int, ...]
    products: Any
    y0: Vector
    train: Data
    val: Data
    batches: tuple[bool, bool]
    """Whether g, and f, see batches."""
    k: int | None
    """A step like all that are compiled; None if a step may not ask for its number."""


class Traced(Oracles):
    """The oracles of one step, by `torch.func`. Batches, rates and random numbers come from a `Row`.

    Args:
        source: what all steps share.
        x: the outer variables.
        train: the tensors of the training data.
        val: the tensors of the validation data.
        probes: the lengths of differences of gradients: for H v alone, and for J^T v too.
        row: what this step gets.
    """

    def __init__(
        self, source: Source, x: Vector, train: Leaves, val: Leaves, probes: tuple[Leaves, Leaves], row: Row
    ) -> None:
        # Nothing of the host's: no streams, no counters.
        self._source, self.x, self.y0 = source, x, source.y0
        self._g, self._f, self.slots, self.products = source.g, source.f, source.slots, source.products
        self._train, self._val, self._probes = train, val, probes
        self.train, self.val = source.train.build(train), source.val.build(val)
        self._inner_rows, self._outer_rows = iter(row.inner.unbind()), iter(row.outer.unbind())
        self._rates, self._random = iter(row.rates.unbind()), iter(row.random.unbind())

    def __getattr__(self, name: str) -> Any:
        if name != "k":
            raise AttributeError(name)
        if self._source.k is None:
            raise CompileError(
                "The step looks at its number, at.k, and many steps are compiled as one: say by a method alike(k) "
                "which steps do the same, or use compile=False."
            )
        return self._source.k

    # What comes from the row

    def inner_batch(self) -> Tree:
        return self._source.train.rows(self._train, next(self._inner_rows)) if self._source.batches[0] else self.train

    def outer_batch(self) -> Tree:
        return self._source.val.rows(self._val, next(self._outer_rows)) if self._source.batches[1] else self.val

    def rate(self, rate: Rate, ago: int = 0, most: float = math.inf) -> Any:
        return next(self._rates)

    def series_rate(self, rate: Rate | None, lr: Rate) -> Any:
        return next(self._rates)

    def draw(self, count: int) -> Any:
        return next(self._random)[0]

    def some_batches(self, most: int) -> list[tuple[Tree, Tensor | None]]:
        p = self.draw(most + 1)
        return [(self.inner_batch(), p > i) for i in range(most)]

    def normal(self, like: Vector) -> Vector:
        count = sum([t.numel() for t in like.leaves])
        return like.shaped(next(self._random)[:count])

    # Derivatives

    def _count(self, name: str) -> None:
        """Compiled code counts nothing: `Recorder` does, once for all steps."""

    def f(self, x: Vector, y: Vector, batch: Tree) -> Slopes:
        self._count("f")
        return _slopes(self._f, x, y, batch)

    def g(self, x: Vector, y: Vector, batch: Tree) -> Slopes:
        self._count("g")
        return _slopes(self._g, x, y, batch)

    def f_y(self, x: Vector, y: Vector, batch: Tree) -> Vector:
        self._count("f")
        return Vector(self._f.gradient(x.leaves, y.leaves, batch, functional=True))

    def g_y(self, x: Vector, y: Vector, batch: Tree) -> Vector:
        self._count("g")
        return Vector(self._g.gradient(x.leaves, y.leaves, batch, functional=True))

    def curved(self, x: Vector, y: Vector, batch: Tree, v: Vector) -> Curved:
        if self.products == "autodiff":

            def slope(y: Leaves, x: Leaves) -> Leaves:
                return self._g.gradient(x, y, batch, functional=True)

            self._count("g")
            self._count("products")
            linear: Any = torch.func.vjp(slope, y.leaves, x.leaves)
            hv, jv = linear[1](v.leaves)
            return Curved(Vector(linear[0]), Vector(hv), Vector(jv))
        hv, jv = self.both(x, y, batch)(v)
        return Curved(self.g_y(x, y, batch), hv, jv)

    def hessian(self, x: Vector, y: Vector, batch: Tree) -> Callable[[Vector], Vector]:
        return lambda v: self._times(x, y, batch, v, ())[0]

    def both(self, x: Vector, y: Vector, batch: Tree) -> Callable[[Vector], tuple[Vector, Vector]]:
        return lambda v: self._times(x, y, batch, v, self.slots)

    def _times(self, x: Vector, y: Vector, batch: Tree, v: Vector, slots: tuple[int, ...]) -> tuple[Vector, Vector]:
        self._count("products")
        probe = self._probes[1 if slots else 0]
        hv, jv = self._g.curvature(x.leaves, y.leaves, batch, v.leaves, slots, self.products, probe)
        return Vector(hv), Vector(jv)

    def along(self, x: Vector, y: Vector, batch: Tree, x_dot: Vector, y_dot: Vector) -> Vector:
        self._count("products")
        if self.products == "difference":
            e = self._probes[1][0] * probe_size((*x.leaves, *y.leaves), (*x_dot.leaves, *y_dot.leaves))
            points = [(x.step(-s, x_dot), y.step(-s, y_dot)) for s in (e, -e)]
            up, down = [Vector(self._g.gradient(p.leaves, q.leaves, batch, functional=True)) for p, q in points]
            return (up - down).times(0.5 / e)
        tangent = self._g.tangent((x.leaves, batch), x_dot.leaves, self.slots, y.leaves, (), y_dot.leaves, ())
        return Vector(tangent[2])

    def twice(self, oracle: Callable[..., T], now: tuple[Any, ...], before: tuple[Any, ...]) -> tuple[T, T]:
        return oracle(*now), oracle(*before)


class Recorder(Traced):
    """Finds out what a step asks for, by making one on the first rows of the data."""

    def __init__(self, source: Source, at: Oracles, sizes: tuple[int | None, int | None]) -> None:
        nothing = torch.empty(0, device="cpu")
        lengths = at.probes() if source.products == "difference" else ((), ())
        row = Row(nothing, nothing, nothing, nothing, nothing)
        super().__init__(source, at.x, source.train.tensors, source.val.tensors, lengths, row)
        self._first = [None if size is None else torch.arange(size, device=at.device) for size in sizes]
        self._at = at
        self._batches: list[int] = [0, 0]
        self._asked_rates: list[AskedRate] = []
        self._asked_random: list[tuple[int, torch.dtype | None]] = []
        self.calls = Counter(f=0, g=0, products=0)

    def asked(self) -> Asked:
        """What the step asked for."""
        inner, outer = self._batches
        return Asked(inner, outer, tuple(self._asked_rates), tuple(self._asked_random), self.calls)

    def _count(self, name: str) -> None:
        self.calls[name] += 1

    def inner_batch(self) -> Tree:
        return self._batch(0, self._source.train, self.train)

    def outer_batch(self) -> Tree:
        return self._batch(1, self._source.val, self.val)

    def _batch(self, level: int, data: Data, every: Tree) -> Tree:
        index = self._first[level]
        if index is None:
            return every
        self._batches[level] += 1
        return data.rows(data.tensors, index)

    def rate(self, rate: Rate, ago: int = 0, most: float = math.inf) -> Any:
        self._asked_rates.append((rate, ago, most))
        return torch.tensor(self._at.rate(rate, ago, most), dtype=torch.float64, device="cpu")

    def series_rate(self, rate: Rate | None, lr: Rate) -> Any:
        self._asked_rates.append((lr if rate is None else rate, None, math.inf))
        return torch.tensor(self._at.series_rate(rate, lr), dtype=torch.float64, device="cpu")

    def draw(self, count: int) -> Any:
        self._asked_random.append((count, None))
        return torch.tensor(0, device="cpu")

    def normal(self, like: Vector) -> Vector:
        dtype = trees.wide(like.leaves[0].dtype)
        self._asked_random.append((sum([t.numel() for t in like.leaves]), dtype))
        return like.zeros()


def _slopes(kernel: Kernel, x: Vector, y: Vector, batch: Tree) -> Slopes:
    def value(x: Leaves, y: Leaves) -> Tensor:
        return kernel.value(x, y, batch)

    (by_x, by_y), found = torch.func.grad_and_value(value, argnums=(0, 1))(x.leaves, y.leaves)
    return Slopes(found, Vector(by_y), Vector(by_x))
