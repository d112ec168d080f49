"""Is what changes between the forward and the backward pass noticed, told or without effect?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import (
    AuditWarning,
    StaleError,
    StructureError,
)
from tests.helpers import ZERO, bowl, each, leaf, make, normal

GD = pzobo.GD(0.1, 20)


def fitted(x: Tensor, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (batch["a"] * y - x).square().sum() + 0.1 * y.square().sum()


@each
@pytest.mark.parametrize("kind", ["refilled", "grown", "list"])
def test_a_batch_that_is_filled_anew_is_the_one_it_was(jacobian: Any, kind: str) -> None:
    def run(change: bool) -> Tensor:
        x = leaf(3)
        batch: Any = {"a": normal(3, seed=1)} if kind != "list" else {"a": normal(3, seed=1), "more": [normal(1)]}
        loss = fitted if kind != "list" else (lambda x, y, b: fitted(x, y, b) + b["more"][0].sum() * y.sum())
        y = pzobo.Argmin(loss, solver=GD, jacobian=jacobian.at_start())(x, ZERO, batch)
        if change and kind == "refilled":
            batch["a"] = normal(3, seed=5)
        elif change and kind == "grown":
            batch["b"] = batch.pop("a")
        elif change:
            batch["more"][0] = normal(1, seed=9)
        y.sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(run(change=True), run(change=False))


def test_the_same_dictionary_with_other_content_is_another_batch() -> None:
    x, batch = leaf(3), {"a": normal(3, seed=1)}
    argmin = pzobo.Argmin(fitted, solver=GD, jacobian=pzobo.Unrolled())
    argmin(x, ZERO, batch)
    batch["a"] = normal(3, seed=5)
    y = argmin(x, ZERO, batch)
    batch["a"].mul_(2)
    with pytest.raises(StaleError, match="changed in place"):
        y.sum().backward()


@pytest.mark.parametrize("jacobian", [pzobo.Implicit(pzobo.CG(5)), pzobo.Nudged()], ids=["implicit", "nudged"])
def test_batches_of_the_jacobian_are_watched_too(jacobian: Any) -> None:
    x = leaf(3)
    batches, own = ([{"a": normal(3, seed=s + i)} for i in range(20)] for s in (0, 50))
    y = pzobo.Argmin(fitted, solver=GD, jacobian=jacobian)(x, ZERO, batches=batches, jacobian_batches=own)
    own[3]["a"].add_(1)
    with pytest.raises(StaleError, match="changed in place"):
        y.sum().backward()


@each
@pytest.mark.parametrize("kind", ["array", "replaced", "written", "inside"])
def test_arrays_and_objects_that_are_changed_are_noticed(jacobian: Any, kind: str) -> None:
    """Torch counts writes into tensors alone, and sees no tensors in an object that is no tree."""
    holder = SimpleNamespace(a=normal(3, seed=1), parts={"a": normal(3, seed=1)}, epoch=0)
    batch: Any = np.array([1.0, 2.0, 0.5]) if kind == "array" else holder

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        a = torch.as_tensor(batch) if kind == "array" else batch.parts["a"] if kind == "inside" else batch.a
        holder.seen = a  # what is computed on the way is nobody's business
        return fitted(x, y, {"a": a})

    argmin = pzobo.Argmin(loss, solver=GD, jacobian=jacobian)
    holder.epoch += 1
    argmin(leaf(3), ZERO, batch).sum().backward()
    y = argmin(leaf(3), ZERO, batch)
    if kind == "array":
        batch *= 3
    elif kind == "replaced":
        holder.a = normal(3, seed=5)
    elif kind == "written":
        holder.a.mul_(2)
    else:
        holder.parts["a"] = normal(3, seed=5)
    with pytest.raises(StaleError, match=r"(NumPy array of shape \(3,\)|SimpleNamespace).* was changed in place"):
        y.sum().backward()


class Holder:
    """What a loss may depend on besides its arguments."""

    def __init__(self) -> None:
        self.array = np.array([1.0, 2.0, 0.5])
        self.tensor = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
        self.net = nn.Linear(3, 3, bias=False).double().requires_grad_(False)
        nn.init.eye_(self.net.weight)
        self.random = np.random.default_rng(0)
        self.batch = torch.from_numpy(self.array)


CHANGES: dict[str, tuple[Callable[[Holder, Tensor, Tensor], Tensor], Callable[[Holder], Any]]] = {
    "a closure, replaced": (lambda h, x, b: x * h.tensor, lambda h: setattr(h, "tensor", 2 * h.tensor)),
    "a closure, written": (lambda h, x, b: x * h.tensor, lambda h: h.tensor.mul_(2)),
    "weights": (lambda h, x, b: h.net(x), lambda h: h.net.weight.mul_(2)),
    "the memory of a batch": (lambda h, x, b: x * b, lambda h: h.array.__imul__(2)),
    "the data of a batch": (lambda h, x, b: x * b, lambda h: h.batch.data.mul_(2)),
    "random numbers of NumPy": (lambda h, x, b: x + 0.1 * h.random.normal(), lambda h: None),
}


@each
@pytest.mark.parametrize("kind", CHANGES)
def test_what_torch_does_not_watch_is_told(jacobian: Any, kind: str) -> None:
    """The path is run again in the backward pass, and must end where it did."""
    seen, change = CHANGES[kind]
    for changed in (False, True):
        holder, x = Holder(), leaf(3)
        if not changed and kind.startswith("random"):
            continue
        argmin = pzobo.Argmin(
            lambda x, y, b, holder=holder: bowl(seen(holder, x, b), y),
            solver=pzobo.GD(0.02, 8),
            jacobian=jacobian.at_start(),
            check=False,
        )
        y = argmin(x, ZERO, holder.batch)
        if changed:
            change(holder)
        with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as said:
            kept = isinstance(jacobian, pzobo.Unrolled) and jacobian.products == "autodiff"
            if kept and changed and kind in ("a closure, written", "weights"):
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    y.sum().backward()
                continue  # torch itself watches what it has saved for a graph that is kept
            y.sum().backward()
        told = [str(w.message) for w in said if "not that of the forward pass" in str(w.message)]
        assert bool(told) == changed
        assert argmin.last.audit is not None
        assert (argmin.last.audit.numbers["repeat"] > 1e-3) == changed


def test_a_batch_that_asks_for_a_gradient_is_refused() -> None:
    """It would get none: it is a constant of the inner problem."""
    x, batch = leaf(3), {"a": leaf(3, seed=1)}
    argmin = pzobo.Argmin(fitted, solver=GD, jacobian=pzobo.Implicit(pzobo.CG(5)))
    data = {"a": batch["a"].detach()}
    for arguments in (
        {"batch": batch},
        {"batches": [batch] * 20},
        {"batch": data, "jacobian_batches": [batch] * 5},
        {"batch": data, "mixed_batch": batch},
    ):
        with pytest.raises(StructureError, match=r"in the batch requires a gradient.*part of x.*detach"):
            argmin(x, ZERO, **arguments)
    with torch.no_grad():
        argmin(x, ZERO, batch)
    argmin(x.detach(), ZERO, batch)


@each
def test_a_start_that_is_expanded(jacobian: Any) -> None:
    """Its elements share their memory."""
    found = []
    for y0 in (torch.full((3,), 0.3, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64).expand(3)):
        x = leaf(3)
        make(jacobian.at_start())(x, y0).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
