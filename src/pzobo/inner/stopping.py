"""When is a path long enough? When the gradient is small: looked at before each step but the first, compiled or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pzobo.inner.kernel import Feed, Kernel, each
from pzobo.inner.loops import number, runs
from pzobo.tensors import trees
from pzobo.tensors.replay import uncached
from pzobo.tensors.trees import Leaves


def until(kernel: Kernel, feed: Feed, y: Leaves, state: Leaves, tol: float) -> tuple[Leaves, Leaves, int]:
    """y, the solver's state, and how many steps were made until |dg/dy| <= tol, or to the end of the feed.

    At least one step is made, so that y depends on x.
    """
    with uncached():
        return (_compiled if kernel.compile else _eager)(kernel, feed, y, state, tol)


def _eager(kernel: Kernel, feed: Feed, y: Leaves, state: Leaves, tol: float) -> tuple[Leaves, Leaves, int]:
    made = 0
    for z, batch in each(feed):
        gradient = kernel.gradient(z, y, batch)
        if made and float(trees.norm(gradient)) <= tol:
            break
        y, state = kernel.solver_at(z).update(gradient, y, state)
        made += 1
    return y, state, made


def _compiled(kernel: Kernel, feed: Feed, y: Leaves, state: Leaves, tol: float) -> tuple[Leaves, Leaves, int]:
    made, ended = (torch.zeros((), dtype=dtype, device="cpu") for dtype in (torch.int64, torch.bool))
    carry: Any = y, state, made, ended
    for run in runs(((z, batch), times) for z, batch, times in feed):
        carry = kernel.loop("until", _turn, run, carry, number(float(tol)), going=_going)
        if bool(carry[3]):
            break
    y, state, made, _ = carry
    return y, state, int(made)


def _going(carry: Any, tol: Tensor) -> Tensor:
    going: Tensor = ~carry[3]
    return going


def _turn(kernel: Kernel, point: Any, carry: Any, tol: Tensor) -> Any:
    (z, batch), (y, state, made, _) = point, carry
    gradient = kernel.gradient(z, y, batch, functional=True)
    ended = (trees.norm(gradient).to(made.device) <= tol) & (made > 0)
    after = kernel.solver_at(z).update(gradient, y, state)
    y, state = (
        tuple([torch.where(ended.to(old.device), old, new) for old, new in zip(before, now, strict=True)])
        for before, now in zip((y, state), after, strict=True)
    )
    return y, state, made + (~ended).to(made.dtype), ended
