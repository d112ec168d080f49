"""What is a derivative without derivatives? The zeroth-order primitive, of which PZOBO and HOZOG are two uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import (
    DirectionsError,
    DivergenceError,
    NonFiniteError,
    NoResponseWarning,
    OptionError,
    SmoothingError,
    StructureError,
)
from pzobo.options import positive, whole
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.replay import Replay, watched
from pzobo.tensors.trees import Leaves, Plan, Tree
from pzobo.zeroth_order.directions import Gaussian, Sampler, Space

Change = Callable[[Leaves], Leaves]
"""How a function's value changes along a direction: per unit, or by a difference over a known width."""

NOISE = 2.0
"""A difference of less than this many roundings is called noise."""

SEVERAL = 8
"""From this many differences on, not all of them are small by chance."""


def check_mu(mu: float) -> None:
    positive("mu", mu, SmoothingError, "a positive number; 0.01 is a good start")


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
) -> Leaves:
    """s/Q sum_j <delta(u_j), v> u_j, where delta = change / width.

    `chunk` paths at a time run under `torch.vmap`; at 1 they run one by one. Directions are drawn when they are needed,
    so one by one there are never two of them at once. With `check` the answer must be finite, and with a `floor` the
    changes must be longer than that (or exactly zero: no response): an error if `strict`, else a warning.
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
        flat = [sampler.draw(key, j, directions, space) for j in range(first, min(first + chunk, directions))]
        if chunk == 1:
            weight, length = weigh(flat[0])
            total = flat[0].mul_(weight) if total is None else total.addcmul_(flat[0], weight)
        else:
            stacked = torch.stack(flat)
            many, length = torch.vmap(weigh, randomness="same")(stacked)
            total = stacked.T @ many if total is None else total.addmv_(stacked.T, many)
            weight, length = many.sum(), length.max()
        weights.append(weight)
        lengths.append(length)
    if check:
        check_finite(weights, v)
    if floor is not None:
        check_lengths(lengths, floor, strict)
    assert total is not None
    return tuple([part.to(x.dtype) for part, x in zip(space.split(total, variables), variables, strict=True)])


def check_finite(weights: list[Tensor], v: Leaves) -> None:
    """Refuse what is not finite, unless v was not: a scaled loss that overflows is the gradient scaler's business."""
    if not trees.is_finite(weights) and trees.is_finite(v):
        raise DivergenceError(
            "A perturbed path left the finite numbers although the base path did not: the inner solver is at the edge "
            "of stability. Try a smaller mu, or a smaller inner learning rate."
        )


def check_lengths(lengths: list[Tensor], floor: Tensor, strict: bool) -> None:
    """Refuse changes that are no longer than rounding noise."""
    noise, *numbers = torch.stack([floor.to(lengths[0]), *lengths]).tolist()
    length = max(numbers)
    if length == 0:
        warnings.warn(
            "No perturbed path differs from the base path at all: either y does not respond to x, or mu is so small "
            "that the difference is lost in rounding.",
            NoResponseWarning,
            stacklevel=2,
        )
    if 0 < length < noise:
        message = (
            f"mu is too small for this precision: the paths differ by {length / noise * NOISE:.1f} roundings. Use a mu "
            f"at least {10 * noise / length:.0f} times as large, or float64."
        )
        if strict:
            raise SmoothingError(message)
        warnings.warn(message, NoResponseWarning, stacklevel=2)


def check_noise(variables: Leaves, mu: float, sampler: Sampler) -> None:
    """Refuse a mu that x + mu u does not show."""
    eps = max(torch.finfo(x.dtype).eps for x in variables)
    size = float(trees.norm([x.double() for x in variables]))
    length = sampler.length(tuple(x.numel() for x in variables))
    if mu * length < NOISE * eps * size:
        raise SmoothingError(
            f"mu={mu:g} is too small: a perturbation of length {mu * length:.1e} is rounding noise beside x of length "
            f"{size:.1e} in {variables[0].dtype}. Use mu of at least {100 * eps * size / length:.0e}, or float64."
        )


def check_x(variables: Sequence[Tensor]) -> None:
    """Refuse an x that is not finite."""
    if not trees.is_finite(variables):
        raise NonFiniteError("x holds NaN or infinity; look at the last step of the outer optimizer.")


def noise_floor(y: Leaves, directions: int) -> Tensor | None:
    """The length of a change that rounding alone could make; None where a change may be that small by chance.

    One number can: a direction may be nearly orthogonal to its gradient. Several will not all be.
    """
    if directions * sum(t.numel() for t in y) < SEVERAL:
        return None
    return trees.norm(y) * (NOISE * max(torch.finfo(t.dtype).eps for t in y))


def smooth(
    fn: Callable[[Tree], Tree],
    x: Tree,
    *,
    mu: float,
    directions: int = 1,
    sampler: Sampler | None = None,
    shrink: bool | float = False,
    antithetic: bool = False,
    batching: str | int = "loop",
) -> Tree:
    """fn(x), with a zeroth-order derivative: the backward is (1/Q) sum_j <(fn(x + mu u_j) - fn(x)) / mu, v> u_j.

    Around a whole bilevel objective this is HOZOG (and ES-MAML); around an inner solve it is PZOBO. `fn` may be any
    code that gives tensors for tensors; the perturbed evaluations are made in the backward pass, under the random
    numbers of the first, so nothing is evaluated that is not needed and nothing is kept.

    Example:
        >>> x = torch.zeros(3, requires_grad=True)
        >>> loss = pzobo.smooth(lambda x: (x - 1).square().sum(), x, mu=1e-3, directions=3, sampler=pzobo.Orthogonal())
        >>> loss.backward()    # x.grad is close to (-2, -2, -2)
    """
    check_mu(mu)
    check_directions(directions)
    check_batching(batching)
    sampler = Gaussian() if sampler is None else sampler
    check_sampler(sampler, shrink)
    leaves, plan = Plan.take(x)
    variables = unique(leaves)
    structure: list[Plan] = []

    def evaluate(values: Leaves) -> Leaves:
        with torch.enable_grad():
            answer = fn(plan.build(substitute(leaves, variables, values)))
        outputs, plan_of_answer = Plan.take(answer)
        if structure and structure[0] != plan_of_answer:
            raise StructureError("smooth(fn, ...): fn's answer at a perturbed x has another structure than at x.")
        structure[:] = [plan_of_answer]
        for output in outputs:
            if not isinstance(output, Tensor):
                raise StructureError(f"smooth(fn, ...): fn returned a {type(output).__name__}; expected tensors.")
        return tuple(output.detach() for output in outputs)

    active = torch.is_grad_enabled() and bool(variables)
    key = sampler.key() if active else 0
    values = tuple(t.detach() for t in variables)
    if active:
        check_x(values)
    replay = Replay(values)
    replay.start()
    base = evaluate(values)
    replay.stop()
    rebuild = structure[0].build
    if not active:
        return rebuild(base)

    def pullback(v: Leaves) -> Leaves:
        check_noise(values, mu, sampler)

        def again(values: Leaves) -> Leaves:
            with replay.again(), watched():
                return evaluate(values)

        return estimate(
            *difference(again, base, values, mu, antithetic),
            v,
            values,
            sampler=sampler,
            key=key,
            directions=directions,
            shrink=shrink,
            chunk=chunk_size(batching, directions, loop=True),
            floor=noise_floor(base, directions),
        )

    constants = [t for t in leaves if isinstance(t, Tensor) and not trees.is_variable(t)]
    return rebuild(attach(base, pullback, variables, fixed=constants))


def chunk_size(batching: str | int, directions: int, *, loop: bool) -> int:
    """How many paths run at once; `loop` is what "auto" means here."""
    if isinstance(batching, int):
        return batching
    if batching == "loop" or (batching == "auto" and loop):
        return 1
    return directions if batching == "vmap" else min(directions, 64)


def unique(leaves: Sequence[Any]) -> Leaves:
    """The variables among the leaves, tied ones once."""
    return tuple({id(leaf): leaf for leaf in leaves if trees.is_variable(leaf)}.values())


def substitute(leaves: Sequence[Any], variables: Leaves, values: Leaves) -> list[Any]:
    """The leaves with new values for the variables (tied ones alike); the other tensors are cut from their graphs."""
    by_id = {id(variable): value for variable, value in zip(variables, values, strict=True)}
    return [by_id.get(id(leaf), trees.detach(leaf)) for leaf in leaves]
