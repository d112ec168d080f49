"""How long is a difference of gradients, and how is it made in the memory of two of them?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves


def probe_size(y: Leaves, q: Leaves) -> Tensor:
    """The length e along q for which the coordinate that moves most moves by the size that y has where q is:
    e = s / max |q_i| with s^2 = sum q_i^2 y_i^2 / sum q_i^2.

    So it does not grow with the number of variables, nor with those that q does not touch.
    """
    along, everywhere = trees.norm(q), trees.norm(y) / max(1, sum([t.numel() for t in y])) ** 0.5
    there = trees.norm([s.to(trees.wide(s.dtype)) * t for s, t in zip(y, q, strict=True)]) / torch.where(
        along > 0, along, 1.0
    )
    size = torch.where(there > 0, there, torch.where(everywhere > 0, everywhere, 1.0))
    largest = trees.largest(q)
    length = size / torch.where(largest > 0, largest, 1.0)
    # A q of the smallest numbers there are counts as none.
    finite: Tensor = torch.where(length.isfinite(), length, size)
    return finite


def central(fn: Callable[..., Tensor], at: Callable[[Tensor], Leaves], e: Tensor, reset: Callable[[], None]) -> Leaves:
    """(dfn(at(e)) - dfn(at(-e))) / 2e for a scalar function; zero for leaves it does not use. Outside of transforms.

    Args:
        fn: the function of the leaves.
        at: where it is taken: leaves that nobody else holds.
        e: half the width of the difference.
        reset: puts random numbers back, before each of the two.
    """
    half = 0.5 / e
    reset()
    leaves = _accumulated(fn, at(e), lambda i, leaf: None)
    slopes: list[Tensor] = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    del leaves
    met = set()

    def take(i: int, leaf: Tensor) -> None:
        met.add(i)
        down, leaf.grad = leaf.grad, None
        assert down is not None
        if trees.wide(down.dtype) == down.dtype and down.layout == torch.strided:
            slopes[i].sub_(down).mul_(half.to(down.device, down.dtype))
        else:
            slopes[i] = trees.slope(slopes[i], down, half)

    reset()
    _accumulated(fn, at(-e), take)
    for i in set(range(len(slopes))) - met:
        slopes[i] = trees.mul(slopes[i : i + 1], half)[0]
    return tuple(slopes)


def _accumulated(fn: Callable[..., Tensor], at: Leaves, take: Callable[[int, Tensor], None]) -> Leaves:
    """Leaves whose `grad` is the gradient there, in memory of its own; `take` sees each as soon as it is there."""
    with torch.enable_grad():
        leaves = tuple([t.detach().requires_grad_() for t in at])
        for i, leaf in enumerate(leaves):
            leaf.register_post_accumulate_grad_hook(lambda leaf, i=i: take(i, leaf))
        value = fn(*leaves)
    if value.requires_grad:
        torch.autograd.backward(value, inputs=leaves)
    return leaves
