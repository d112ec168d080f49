"""What is split over the ranks, and what crosses the wire? The options of `Argmin` and `fit`, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pzobo.distributed.alike import check_alike
from pzobo.distributed.ranks import Ranks, here
from pzobo.errors import OptionError
from pzobo.tensors.trees import Leaves

Kind = Literal["directions", "tasks", "data"]
Wire = Literal["scalars", "vector"]


@dataclass(frozen=True)
class Split:
    """How work is split.

    Attributes:
        kind: "directions" of one call, "tasks" of a meta-batch, or the rows of the "data".
        wire: what crosses for directions: their weights, from which each rank makes the sum of all directions; or the
            "vector" of each rank's own sum.
    """

    kind: Kind
    wire: Wire = "scalars"

    @classmethod
    def of(cls, split: Any, wire: Any, kinds: Sequence[str] = ("directions", "tasks", "data")) -> Split | None:
        """The split that the options say, or None."""
        if split is not None and split not in kinds:
            raise OptionError(f"split={split!r}: must be {', '.join(map(repr, kinds))} or None.")
        if wire not in ("scalars", "vector"):
            raise OptionError(f'wire={wire!r}: must be "scalars" or "vector".')
        return None if split is None else cls(split, wire)

    @property
    def ranks(self) -> Ranks:
        return here()

    def used(self) -> Ranks:
        """The ranks, among whom something is split now."""
        ranks = self.ranks
        ranks.splits += 1
        return ranks


_ambient: ContextVar[Split | None] = ContextVar("split", default=None)


@contextmanager
def splitting(split: Split | None) -> Iterator[None]:
    """What is made inside is split in this way, if it says nothing itself."""
    token = _ambient.set(split)
    try:
        yield
    finally:
        _ambient.reset(token)


def ambient(kind: Kind) -> Split | None:
    """The split of the surrounding `fit`, if it is of this kind."""
    split = _ambient.get()
    return split if split is not None and split.kind == kind else None


def together(split: Split | None) -> AbstractContextManager[None]:
    """An error inside ends all ranks, where something is split; see `Ranks.together`."""
    return nullcontext() if split is None else split.ranks.together()


class Shares:
    """The chunks of one call's directions, each of which one rank runs: chunk i is that of rank i modulo their number.

    Args:
        ranks: who they are split over.
        wire: what crosses.
        chunks: the numbers of the directions of each chunk; the first is the longest.
        alike: what must have the same bits on all ranks, by name. It is looked at now and then.
    """

    def __init__(self, ranks: Ranks, wire: Wire, chunks: Sequence[range], alike: Mapping[str, Leaves | int]) -> None:
        self.ranks, self.scalars = ranks, wire == "scalars"
        self.chunks, self.mine = chunks, chunks[ranks.rank :: ranks.count]
        check_alike(ranks, alike, ranks.splits)

    def combined(
        self, weights: Sequence[Tensor], lengths: Sequence[Tensor], measured: bool, like: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The weights of all chunks and, if they were `measured`, the lengths, from those of this rank's chunks.

        One gather of a row for each chunk. It keeps every bit, which a sum of zeros and weights would not: -0 + 0 is 0.
        Nothing crosses where nothing is needed.
        """
        if not self.scalars and not measured:
            return list(weights), list(lengths)
        width, count = len(self.chunks[0]), self.ranks.count
        rows = torch.zeros(-(-len(self.chunks) // count), width + measured, dtype=like.dtype, device=like.device)
        for i, weight in enumerate(weights):
            rows[i, : weight.numel()] = weight
            if measured:
                rows[i, -1] = lengths[i]
        found = self.ranks.gather(rows)
        each = [found[i % count, i // count] for i in range(len(self.chunks))]
        everywhere = [row[0] if width == 1 else row[: len(c)] for row, c in zip(each, self.chunks, strict=True)]
        return everywhere, [row[-1] for row in each if measured]
