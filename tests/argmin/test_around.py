"""What may be put around an argmin? Checkpoints and hooks give the same answer; transforms are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pzobo
from pzobo.errors import RequirementError
from pzobo.tensors import saved, transforms
from tests.helpers import ZERO, bowl, each, leaf, make, truth

# Transforms


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(3).double()),
    "func.vjp": lambda f: torch.func.vjp(f, torch.ones(3).double()),
    "func.jvp": lambda f: torch.func.jvp(f, (torch.ones(3).double(),), (torch.ones(3).double(),)),
    "jacrev": lambda f: torch.func.jacrev(f)(torch.ones(3).double()),
    "vmap": lambda f: torch.vmap(f)(torch.ones(2, 3).double()),
    "vmap around it": lambda f: torch.vmap(lambda a: a * f(torch.ones(3).double()).sum())(torch.ones(2)),
}


@each
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_are_refused(jacobian: Any, transform: Any) -> None:
    with pytest.raises(RequirementError, match=r"inside of torch\.func transforms or vmap.*task dimension"):
        transform(lambda x: make(jacobian)(x, ZERO))


@each
def test_dual_tensors_are_refused(jacobian: Any) -> None:
    with forward_ad.dual_level(), pytest.raises(RequirementError, match="dual tensor"):
        make(jacobian)(forward_ad.make_dual(torch.ones(3).double(), torch.ones(3).double()), ZERO)


@each
@pytest.mark.parametrize("grad", [False, True])
def test_dual_tensors_in_a_closure_are_refused(jacobian: Any, grad: bool) -> None:
    """No argument is one. Some tangents came out of the path, and they were wrong."""
    x = leaf(3) if grad else leaf(3).detach()
    with forward_ad.dual_level():
        w = forward_ad.make_dual(torch.ones(3).double(), torch.ones(3).double())
        argmin = make(jacobian, lambda x, y, b: bowl(x * w, y))
        with pytest.raises(RequirementError):
            argmin(x, ZERO)


@each
def test_many_cotangents_at_once_are_refused(jacobian: Any) -> None:
    x = leaf(3)
    y = make(jacobian)(x, ZERO)
    with pytest.raises(RequirementError, match="one cotangent at a time"):
        torch.autograd.grad(y, x, torch.eye(3).double(), is_grads_batched=True)


def test_without_torchs_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a torch that has renamed them, what torch itself says must do; ordinary calls go on."""
    monkeypatch.setattr(transforms, "_functorch", lambda: None)
    x = leaf(3)
    make(pzobo.Unrolled())(x, ZERO).sum().backward()
    torch.testing.assert_close(x.grad, truth(x, ZERO))
    with pytest.raises(RuntimeError):
        torch.vmap(lambda x: make(pzobo.Unrolled())(x, ZERO))(torch.ones(2, 3).double())
    monkeypatch.setattr(saved, "_hooks", lambda: None)
    make(pzobo.Unrolled())(leaf(3), ZERO)


# Checkpoints and hooks


@each
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_an_argmin(jacobian: Any, reentrant: bool) -> None:
    def run(around: bool) -> Tensor:
        torch.manual_seed(0)
        argmin = make(jacobian.at_start(), prepare=lambda x, b: x.sin())
        x = leaf(3)

        def loss(x: Tensor) -> Tensor:
            return argmin(x.exp(), ZERO).square().sum()

        (checkpoint(loss, x, use_reentrant=reentrant) if around else loss(x)).backward()
        assert x.grad is not None
        return x.grad

    if isinstance(jacobian, pzobo.PZOBO | pzobo.ForwardMode) and reentrant:
        return  # it draws twice: once for a forward pass whose graph is thrown away
    assert torch.equal(run(around=True), run(around=False))


@each
def test_saved_tensors_of_the_caller_alone_go_to_the_callers_hooks(jacobian: Any) -> None:
    heard: list[tuple[int, ...]] = []
    argmin, x = make(jacobian), leaf(3)
    argmin(x, ZERO)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: heard.append(tuple(t.shape)) or t, lambda t: t):
        y = argmin(x, ZERO)
    assert heard == [(3,)], "x itself, and nothing of the steps"
    y.sum().backward()


def test_gradients_of_unused_variables_are_memory_of_their_own() -> None:
    x = {"used": leaf(3), "unused": leaf(4, seed=1)}
    y = make(pzobo.Unrolled(), prepare=lambda x, batch: x["used"])(x, ZERO)
    (found,) = torch.autograd.grad(y.sum(), x["unused"])
    assert found.stride() == (1,)
    found.add_(torch.arange(4.0))
    assert found.tolist() == [0, 1, 2, 3]
