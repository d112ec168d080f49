"""Is a difference more than rounding? Refused where it is not; and what is said where nothing changed at all."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pzobo.errors import DivergenceError, NoResponseWarning, SmoothingError
from pzobo.tensors import trees
from pzobo.tensors.precision import dtype_eps
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Sampler

NOISE = 2.0
"""A difference of less than this many roundings is called noise."""

SEVERAL = 8
"""From this many differences on, not all of them are small by chance."""


def check_weights(weights: list[Tensor], v: Leaves) -> None:
    """Refuse what is not finite, unless v was not: a scaled loss that overflows is the gradient scaler's business."""
    if not trees.is_finite(weights) and trees.is_finite(v):
        raise DivergenceError(
            "A perturbed path left the finite numbers although the base path did not: the inner solver is at the edge "
            "of stability. Try a smaller mu, or a smaller inner learning rate."
        )


def check_lengths(lengths: list[Tensor], floor: Tensor, strict: bool, by: str = "mu") -> None:
    """Refuse changes that are no longer than rounding noise; `by` is the number that makes them longer."""
    noise, *numbers = torch.stack([floor.to(lengths[0]), *lengths]).tolist()
    length = max(numbers)
    if length == 0:
        warnings.warn(
            f"No perturbed path differs from the base path at all: either y does not respond to x, or {by} is so small "
            "that the difference is lost in rounding.",
            NoResponseWarning,
            stacklevel=2,
        )
    if 0 < length < noise:
        message = (
            f"{by} is too small for this precision: the paths differ by {length / noise * NOISE:.1f} roundings. Use "
            f"{by} at least {10 * noise / length:.0f} times as large, or float64."
        )
        if strict:
            raise SmoothingError(message)
        warnings.warn(message, NoResponseWarning, stacklevel=2)


def check_noise(variables: Leaves, mu: float, sampler: Sampler) -> None:
    """Refuse a mu that x + mu u does not show."""
    eps = dtype_eps(variables)
    size = float(trees.norm(variables, torch.float64))
    length = sampler.length(tuple(x.numel() for x in variables))
    if mu * length < NOISE * eps * size:
        raise SmoothingError(
            f"mu={mu:g} is too small: a perturbation of length {mu * length:.1e} is rounding noise beside x of length "
            f"{size:.1e} in {variables[0].dtype}. Use mu of at least {100 * eps * size / length:.0e}, or float64."
        )


def noise_floor(rounding: Tensor, y: Leaves, directions: int) -> Tensor | None:
    """The length of a change that rounding alone could make; None where a change may be that small by chance.

    One number can: a direction may be nearly orthogonal to its gradient. Several will not all be.
    """
    return rounding * NOISE if directions * sum(t.numel() for t in y) >= SEVERAL else None
