"""What is J^T v by directions? s/Q sum_j <delta_j, v> u_j, where delta_j is how y changes along u_j (Eq. 4).

PZOBO, HOZOG and ES-MAML take delta_j from a difference of two evaluations, `ForwardMode` from a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.distributed.splits import Shares, Split
from pzobo.errors import DirectionsError, OptionError, SmoothingError
from pzobo.options import positive, whole
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Sampler, Space, drawn_by
from pzobo.zeroth_order.noise import check_lengths, check_weights

KEPT = 2**26
"""So many bytes of a rank's own directions are kept until the weights of all have come, instead of made again."""

Change = Callable[[Leaves], Leaves]
"""How a function's value changes along a direction: per unit, or by a difference over a known width."""

Changes = Callable[[Iterable[Leaves]], Iterable[Leaves]]
"""The same along many directions, side by side; in their order."""


def factor(shrink: bool | float, sampler: Sampler, p: int, directions: int) -> float:
    """s: 1 for `shrink=False`, the factor of least mean squared error for True, or the number given."""
    if shrink is True:
        return sampler.shrinkage(p, directions)
    return 1.0 if shrink is False else float(shrink)


def difference(
    evaluate: Callable[[Leaves], Leaves], base: Leaves, variables: Leaves, mu: float, antithetic: bool
) -> tuple[Change, float]:
    """u -> fn(x + mu u) - fn(x) and its width mu, whose quotient is delta (Eq. 4); or both ways, of width 2 mu.

    Half precisions are perturbed and subtracted in float32.
    """

    def change(u: Leaves) -> Leaves:
        up = evaluate(moved(variables, u, mu))
        return subtracted(up, evaluate(moved(variables, u, -mu)) if antithetic else base)

    return change, 2 * mu if antithetic else mu


def differences(
    evaluate: Callable[[Iterable[Leaves]], Iterable[Leaves]],
    base: Leaves,
    variables: Leaves,
    mu: float,
    antithetic: bool,
) -> Changes:
    """The changes along many directions, by a function that evaluates many x side by side."""

    def changes(directions: Iterable[Leaves]) -> Iterator[Leaves]:
        signs = (mu, -mu) if antithetic else (mu,)
        found = iter(evaluate(moved(variables, u, step) for u in directions for step in signs))
        for up in found:
            yield subtracted(up, next(found) if antithetic else base)

    return changes


def moved(variables: Leaves, u: Leaves, mu: float) -> Leaves:
    """x + mu u."""
    return tuple([torch.add(x, d, alpha=mu).to(x.dtype) for x, d in zip(variables, u, strict=True)])


def subtracted(a: Leaves, b: Leaves) -> Leaves:
    return tuple([s.to(trees.wide(s.dtype)) - t for s, t in zip(a, b, strict=True)])


def estimate(
    change: Change,
    width: float,
    v: Leaves,
    variables: Leaves,
    *,
    sampler: Sampler,
    key: int,
    directions: int,
    shrink: bool | float,
    chunk: int,
    floor: Tensor | None = None,
    strict: bool = True,
    check: bool = True,
    note: Callable[[Tensor], None] | None = None,
    changes: Changes | None = None,
    split: Split | None = None,
    base: Leaves = (),
) -> Leaves:
    """s/Q sum_j <delta(u_j), v> u_j, where delta = change / width.

    `chunk` paths at a time run under `torch.vmap`; at 1 they run one by one, or side by side where `changes` does so.
    Directions are drawn when they are needed, so one by one there are never two of them at once. With `check` the
    answer must be finite, and with a `floor` the changes must be longer than that (or exactly zero: no response): an
    error if `strict`, else a warning; `note` gets the length of the longest.

    With `split` each rank runs some of the chunks. All ranks must hold the same v, variables, key and `base`, which is
    the value at the variables; then all have the same answer.
    """
    space = Space.of(variables)
    scale = factor(shrink, sampler, space.dim, directions) / directions / width
    chunks = [range(first, min(first + chunk, directions)) for first in range(0, directions, chunk)]

    def drawn(numbers: range) -> Tensor:
        """Directions as one vector, or as the rows of a matrix where they run together."""
        if chunk == 1:
            return drawn_by(sampler, key, numbers[0], directions, space)
        stacked = torch.empty(len(numbers), space.dim, dtype=space.dtype, device=space.device)
        for j, row in zip(numbers, stacked, strict=True):  # one by one: a sampler may give the same memory each time
            row.copy_(drawn_by(sampler, key, j, directions, space).reshape(row.shape))
        return stacked

    def weigh(found: Leaves, flat: Tensor) -> tuple[Tensor, Tensor]:
        weight = trees.dot(found, v).to(flat) * scale
        return weight, weight if floor is None else trees.norm(found).to(flat)

    def run(flat: Tensor) -> tuple[Tensor, Tensor]:
        return weigh(change(space.split(flat, variables)), flat)

    def weighed(mine: Sequence[range]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Directions, their weights, and the length of their longest change."""
        if changes is not None and chunk == 1:
            found = changes(space.split(drawn(numbers), variables) for numbers in mine)
            for numbers, one in zip(mine, found, strict=True):
                flat = drawn(numbers)
                yield flat, *weigh(one, flat)
            return
        for numbers in mine:
            flat = drawn(numbers)
            if chunk == 1:
                yield flat, *run(flat)
            else:
                many, length = torch.vmap(run, randomness="same")(flat)
                yield flat, many, length.max()

    def added(total: Tensor | None, flat: Tensor, weight: Tensor) -> Tensor:
        if chunk == 1:
            return flat * weight if total is None else total.addcmul_(flat, weight)
        return flat.T @ weight if total is None else total.addmv_(flat.T, weight)

    total: Tensor | None = None
    weights: list[Tensor] = []
    lengths: list[Tensor] = []
    ranks = None if split is None else split.used()
    if split is None or ranks is None or ranks.count == 1:
        for flat, weight, length in weighed(chunks):
            total = added(total, flat, weight)
            weights.append(weight if chunk == 1 else weight.sum())
            lengths.append(length)
    else:
        shares = Shares(ranks, split.wire, chunks, {"key": key, "x": variables, "y": base, "v": v})
        kept: dict[range, Tensor] = {}
        few = len(shares.mine) * chunk * space.dim * torch.finfo(space.dtype).bits // 8 <= KEPT
        for numbers, (flat, weight, length) in zip(shares.mine, weighed(shares.mine), strict=True):
            weights.append(weight)
            lengths.append(length)
            if not shares.scalars:
                total = added(total, flat, weight)
            elif few:
                kept[numbers] = flat.clone()  # a sampler may give the same memory each time
        like = torch.zeros(space.dim if total is None else 0, dtype=space.dtype, device=space.device)
        weights, lengths = shares.combined(weights, lengths, floor is not None, like)
        if shares.scalars:
            for numbers, weight in zip(chunks, weights, strict=True):
                total = added(total, kept[numbers] if numbers in kept else drawn(numbers), weight)
        else:
            total = ranks.sum(like if total is None else total)
    if check:
        check_weights(weights, v)
    if floor is not None:
        check_lengths(lengths, floor, strict)
        if note is not None:
            note(torch.stack(lengths).max())
    assert total is not None
    return tuple([part.to(x.dtype) for part, x in zip(space.split(total, variables), variables, strict=True)])


# The options that all uses share


def check_mu(mu: float) -> float:
    return positive("mu", mu, SmoothingError, "a positive number; 0.01 is a good start")


def check_directions(directions: int) -> None:
    whole("directions", directions, DirectionsError)


def check_sampler(sampler: Any, shrink: Any) -> None:
    if not isinstance(sampler, Sampler):
        raise OptionError(f"sampler={sampler!r}: give one of Gaussian(), Sphere(), Rademacher(), Orthogonal(), ...")
    if not isinstance(shrink, bool):
        positive("shrink", shrink, least="True, False or a positive number")


def check_batching(batching: str | int) -> None:
    if not isinstance(batching, str):
        whole('batching: "auto", "vmap", "loop" or a chunk size; chunk size', batching)
    elif batching not in ("auto", "vmap", "loop"):
        raise OptionError(f'batching={batching!r}: must be "auto", "vmap", "loop" or a chunk size of at least 1.')


def chunk_size(batching: str | int, directions: int, *, loop: bool) -> int:
    """How many paths run at once; `loop` is what "auto" means here."""
    if isinstance(batching, int):
        return batching
    if batching == "loop" or (batching == "auto" and loop):
        return 1
    return directions if batching == "vmap" else min(directions, 64)
