"""What is J^T v by directions? s/Q sum_j <delta_j, v> u_j, where delta_j is how y changes along u_j (Eq. 4).

PZOBO, HOZOG and ES-MAML take delta_j from a difference of two evaluations, `ForwardMode` from a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import DirectionsError, OptionError, SmoothingError
from pzobo.options import positive, whole
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Sampler, Space
from pzobo.zeroth_order.noise import check_lengths, check_weights

Change = Callable[[Leaves], Leaves]
"""How a function's value changes along a direction: per unit, or by a difference over a known width."""


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

    def at(u: Leaves, mu: float) -> Leaves:
        return evaluate(tuple([torch.add(x, d, alpha=mu).to(x.dtype) for x, d in zip(variables, u, strict=True)]))

    def change(u: Leaves) -> Leaves:
        other = at(u, -mu) if antithetic else base
        return tuple([a.to(trees.wide(a.dtype)) - b for a, b in zip(at(u, mu), other, strict=True)])

    return change, 2 * mu if antithetic else mu


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
) -> Leaves:
    """s/Q sum_j <delta(u_j), v> u_j, where delta = change / width.

    `chunk` paths at a time run under `torch.vmap`; at 1 they run one by one. Directions are drawn when they are needed,
    so one by one there are never two of them at once. With `check` the answer must be finite, and with a `floor` the
    changes must be longer than that (or exactly zero: no response): an error if `strict`, else a warning; `note` gets
    the length of the longest.
    """
    space = Space.of(variables)
    scale = factor(shrink, sampler, space.dim, directions) / directions / width
    total: Tensor | None = None
    weights: list[Tensor] = []
    lengths: list[Tensor] = []

    def weigh(flat: Tensor) -> tuple[Tensor, Tensor]:
        found = change(space.split(flat, variables))
        weight = trees.dot(found, v).to(flat) * scale
        return weight, weight if floor is None else trees.norm(found).to(flat)

    for first in range(0, directions, chunk):
        last = min(first + chunk, directions)
        if chunk == 1:
            flat = sampler.draw(key, first, directions, space)
            weight, length = weigh(flat)
            total = flat * weight if total is None else total.addcmul_(flat, weight)
        else:
            stacked = torch.empty(last - first, space.dim, dtype=space.dtype, device=space.device)
            for j, row in enumerate(stacked, first):  # one by one: a sampler may give the same memory each time
                row.copy_(sampler.draw(key, j, directions, space).reshape(row.shape))
            many, length = torch.vmap(weigh, randomness="same")(stacked)
            total = stacked.T @ many if total is None else total.addmv_(stacked.T, many)
            weight, length = many.sum(), length.max()
        weights.append(weight)
        lengths.append(length)
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
