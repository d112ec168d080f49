"""What is SABA? SOBA with SAGA's variance reduction of all its directions (Dagréou et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.blocks import Blocks, Table
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import Rate
from pzobo.algorithms.vector import Vector
from pzobo.errors import OptionError


@dataclass(frozen=True)
class SABAState:
    """y and v as in SOBA; a memory and its mean for each of dg/dy, H v, J^T v, df/dy and df/dx."""

    y: Vector
    v: Vector
    g_y: Vector
    g_y_mean: Vector
    hv: Vector
    hv_mean: Vector
    jv: Vector
    jv_mean: Vector
    f_y: Vector
    f_y_mean: Vector
    f_x: Vector
    f_x_mean: Vector

    def table(self, name: str) -> Table:
        return Table(getattr(self, name), getattr(self, f"{name}_mean"))

    def put(self, name: str, table: Table) -> SABAState:
        return replace(self, **{name: table.memory, f"{name}_mean": table.mean})


INNER, OUTER = ("g_y", "hv", "jv"), ("f_y", "f_x")


@dataclass(frozen=True)
class SABA(SecondOrder[SABAState]):
    """SABA, a `SecondOrder` algorithm with a single loop.

    SOBA's step, in which each of dg/dy, H v, J^T v, df/dy and df/dx on block b of the data is replaced by

    new - memory[b] + mean of the memory;  then memory[b] = new

    The data is in fixed blocks of `batch_size` and `outer_batch_size` rows, drawn at random with their share of the
    rows. A step costs what one of SOBA costs. It carries y, v and the memory: twice the size of x and three times that
    of y for each block. With the full batch it is SOBA. The learning rates are constant.

    Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global variance
    reduction algorithms", NeurIPS 2022, section 2.3.

    Checked against the text of the paper (its submission, Eq. 11) and the authors' code (benchmark_bilevel, run
    beside).

    Args:
        lr: the step of y; a number, or a function of the outer step.
        v_lr: the step of v; `lr` by default.
        memory: "full" fills the memory at the first step, with one pass over the data; "zero" starts it at zero.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.SABA(lr=0.1)
        >>> found = pzobo.fit(problem, method, 200, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::100]]
        [0.35, 0.07, 0.06]
    """

    lr: Rate = 0.1
    v_lr: Rate | None = None
    memory: Literal["full", "zero"] = "full"

    not_compiled = "its step writes into its memory, which is as large as the data has blocks."

    system = "v"

    def __post_init__(self) -> None:
        if self.memory not in ("full", "zero"):
            raise OptionError(f'SABA: memory={self.memory!r}: must be "full" or "zero".')
        super().__post_init__()

    def begin(self, at: Oracles) -> SABAState:
        counts = [blocks.count for blocks in self._blocks(at)]
        like = {"g_y": at.y0, "hv": at.y0, "jv": at.x, "f_y": at.y0, "f_x": at.x}
        parts: dict[str, Vector] = {}
        for name, vector in like.items():
            table = Table.zeros(vector, counts[name in OUTER])
            parts |= {name: table.memory, f"{name}_mean": table.mean}
        return SABAState(at.y0, at.y0.zeros(), **parts)

    def step(self, at: Oracles, now: SABAState) -> Step[SABAState]:
        inner, outer = self._blocks(at)
        if at.k == 0 and self.memory == "full":
            for b in range(inner.count):
                now = self._remember(now, INNER, b, self._inner(at, now, inner, b), inner.weight(b))
            for b in range(outer.count):
                now = self._remember(now, OUTER, b, self._outer(at, now, outer, b)[1], outer.weight(b))
        lr = at.rate(self.lr)
        v_lr = lr if self.v_lr is None else at.rate(self.v_lr)
        i, o = inner.draw(at), outer.draw(at)
        new_inner = self._inner(at, now, inner, i)
        value, new_outer = self._outer(at, now, outer, o)
        d = {name: now.table(name).direction(i, new) for name, new in zip(INNER, new_inner, strict=True)}
        d |= {name: now.table(name).direction(o, new) for name, new in zip(OUTER, new_outer, strict=True)}
        now = self._remember(now, INNER, i, new_inner, inner.weight(i))
        now = self._remember(now, OUTER, o, new_outer, outer.weight(o))
        carried = replace(now, y=now.y.step(lr, d["g_y"]), v=now.v.step(v_lr, d["hv"] + d["f_y"]))
        return Step(carried, value, d["f_x"] + d["jv"])

    def _blocks(self, at: Oracles) -> tuple[Blocks, Blocks]:
        return Blocks(at.train, self.batch_size), Blocks(at.val, self.outer_batch_size)

    def _inner(self, at: Oracles, now: SABAState, blocks: Blocks, b: int) -> tuple[Vector, ...]:
        at.last_inner_batch = blocks.batch(b)
        return tuple(at.curved(at.x, now.y, at.last_inner_batch, now.v))

    def _outer(self, at: Oracles, now: SABAState, blocks: Blocks, b: int) -> tuple[Tensor, tuple[Vector, ...]]:
        at.last_outer_batch = blocks.batch(b)
        f = at.f(at.x, now.y, at.last_outer_batch)
        return f.value, (f.y, f.x)

    def _remember(
        self, now: SABAState, names: tuple[str, ...], block: int, found: tuple[Vector, ...], weight: float
    ) -> SABAState:
        for name, new in zip(names, found, strict=True):
            now = now.put(name, now.table(name).put(block, new, weight))
        return now
