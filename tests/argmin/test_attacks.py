"""Does what attacks found stay mended? Silent wrong values, each with the answer that it must have, or refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pzobo
from pzobo.errors import OptionError, RequirementError, SmoothingError, StaleError
from pzobo.tensors import saved, transforms
from tests.helpers import JACOBIANS, ZERO, bowl, each, leaf, make, normal, truth

GD = pzobo.GD(0.1, 20)


def whole(p: int) -> pzobo.PZOBO:
    """PZOBO with all directions: as exact as differences are."""
    return pzobo.PZOBO(1e-5, p, pzobo.Orthogonal(seed=0), antithetic=True, at="x")


def quadratic(a: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - a.square()).square().sum() + 0.05 * y.pow(4).sum()


# 1. Outer variables that a first look does not see


@torch.jit.script
def scripted(a: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - a * a).square().sum() + 0.05 * y.pow(4).sum()


def hidden(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    with torch._C.DisableTorchFunction():
        return quadratic(x["a"], y)


def inside(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    return torch.func.vjp(lambda a: quadratic(a, y), x["a"])[0]


def of_a_gradient(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    slope = torch.func.grad(lambda a: (a.pow(3) * y).sum())(x["a"])
    return 0.5 * (y - 1 - slope.sum() / 10).square().sum() + 0.5 * y.square().sum()


def behind_a_branch_on_y(x: dict[str, Tensor], y: Tensor, batch: Any) -> Tensor:
    """At y0 = 0 the branch is not taken."""
    far = bool(y.detach().abs().sum() > 1e-3)
    return (y - 1).square().sum() + ((x["a"] * y).square().sum() if far else 0.0)


LOOKS: dict[str, Callable[..., Tensor]] = {
    "jit.script": lambda x, y, batch: scripted(x["a"], y),
    "DisableTorchFunction": hidden,
    "func.vjp": inside,
    "func.grad": of_a_gradient,
    "a branch on y": behind_a_branch_on_y,
}


@pytest.mark.parametrize("loss", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("jacobian", [whole(3), pzobo.Unrolled(products="difference")], ids=["pzobo", "difference"])
def test_variables_that_a_first_look_does_not_see(loss: Any, jacobian: Any) -> None:
    def gradient(jacobian: Any) -> Tensor:
        x = {"a": leaf(3)}
        pzobo.Argmin(loss, solver=GD, jacobian=jacobian)(x, ZERO).sum().backward()
        found = x["a"].grad
        assert found is not None
        return found

    x = {"a": leaf(3)}
    y = ZERO.clone().requires_grad_()
    for _ in range(GD.steps):
        y = y - GD.lr * torch.autograd.grad(loss(x, y, None), y, create_graph=True)[0]
    expected = torch.autograd.grad(y.sum(), x["a"])[0]
    assert expected.abs().min() > 1e-4
    torch.testing.assert_close(gradient(jacobian), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jacobian", [whole(4), pzobo.Unrolled()], ids=["pzobo", "unrolled"])
def test_an_index_and_a_flag_that_differ_from_batch_to_batch(jacobian: Any) -> None:
    def loss(x: list[Tensor], y: Tensor, batch: Any) -> Tensor:
        chosen = x[batch["i"]] if batch["use"] else torch.zeros((), dtype=torch.float64)
        return 0.5 * (y - chosen.exp()).square().sum()

    x = [leaf(seed=i) for i in range(4)]
    batches = [{"i": i % 4, "use": i != 0} for i in range(8)]
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.3, 8), jacobian=jacobian)
    argmin(x, ZERO, batches=batches).sum().backward()
    other = [t.detach().clone().requires_grad_() for t in x]
    y = ZERO
    for batch in batches:
        chosen = other[batch["i"]] if batch["use"] else torch.zeros((), dtype=torch.float64)
        y = y - 0.3 * (y - chosen.exp())
    for found, expected in zip(x, torch.autograd.grad(y.sum(), other), strict=True):
        torch.testing.assert_close(found.grad, expected, rtol=1e-6, atol=1e-8)


# 4. Batches that change between the passes


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


# 5. Nudged follows the size of y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 2.0, 1e4, 1e6])
def test_nudged_at_solutions_of_any_size(size: float, dtype: torch.dtype) -> None:
    """y* = size x^2, so that d sum(y*)/dx = 2 size x; the inner problem is not quadratic in y."""

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        r = y / size - x.square()
        return size * (0.5 * r.square() + 0.1 * r.pow(4)).sum() * size

    x = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=dtype, requires_grad=True)
    y0 = size * x.detach().square() * 1.1
    (pzobo.Argmin(loss, solver=pzobo.GD(0.5, 60), jacobian=pzobo.Nudged())(x, y0).float().sum() / size).backward()
    assert x.grad is not None
    tolerance = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=tolerance, atol=0)


def test_a_nudge_that_is_rounding_is_refused() -> None:
    x = torch.ones(9, requires_grad=True)
    argmin = pzobo.Argmin(
        lambda x, y, b: 0.5 * (y - 1e4 * x).square().sum(), solver=pzobo.GD(0.5, 40), jacobian=pzobo.Nudged(eps=1e-7)
    )
    with pytest.raises(SmoothingError, match="eps is too small for this precision"):
        argmin(x, torch.zeros(9)).sum().backward()


# 6. Code that writes into what it is given


def in_place(x: Tensor) -> Tensor:
    y = 2 * x
    x.detach().mul_(100)
    return y


def in_numpy(x: Tensor) -> Tensor:
    y = 2 * x.detach()
    x.detach().numpy()[:] *= 100
    return y


@pytest.mark.parametrize("write", [in_place, in_numpy])
def test_a_function_may_write_into_its_x(write: Callable[[Tensor], Tensor]) -> None:
    for run in (
        lambda x: pzobo.Argmin(None, solver=pzobo.BlackBox(lambda x, y0, b: write(x)), jacobian=whole(3))(x, ZERO),
        lambda x: pzobo.smooth(write, x, mu=1e-4, directions=3, sampler=pzobo.Orthogonal(seed=0)),
    ):
        x = leaf(3)
        before = x.detach().clone()
        run(x).sum().backward()
        assert torch.equal(x.detach(), before)
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("by_numpy", [False, True])
def test_a_black_box_that_writes_into_its_batch_is_refused(by_numpy: bool) -> None:
    def fit(x: Tensor, y0: Tensor, batch: Tensor) -> Tensor:
        answer = x.detach() * batch.sum()
        if by_numpy:
            np.random.default_rng(0).shuffle(batch.numpy())
        else:
            batch.sub_(batch.mean())
        return answer

    argmin = pzobo.Argmin(None, solver=pzobo.BlackBox(fit), jacobian=pzobo.PZOBO())
    with pytest.raises(StaleError, match=r"wrote into its batch.*clone"):
        argmin(leaf(3), ZERO, torch.arange(20.0))


# 7. Buffers of modules


class Later(nn.Module):
    """Two layers, of which the second is used from a moment on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
        self.late = False

    def forward(self, rows: Tensor) -> Tensor:
        return self.second(self.first(rows)) if self.late else rows


def test_a_module_that_appears_later_is_left_alone_in_the_backward_pass() -> None:
    net, data = Later(), normal(8, 3)

    def loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (net(batch) @ y - x.sum()).square().mean()

    x = leaf(3)
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.1, 4), jacobian=pzobo.PZOBO(1e-3, 3))
    argmin(x, ZERO, data).sum().backward()
    net.late = True
    y = argmin(x, ZERO, data)
    assert int(net.first.num_batches_tracked) == 4
    before = [b.clone() for b in net.buffers()]
    y.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


def test_buffers_of_another_thread_are_its_own() -> None:
    net, rows, stop = nn.BatchNorm1d(3).double(), normal(8, 3), threading.Event()
    calls = 0

    def train() -> None:
        nonlocal calls
        while not stop.is_set():
            net(rows)
            calls += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        x = leaf(3)
        argmin = make(pzobo.PZOBO(1e-3, 5, batching="loop"))
        for _ in range(20):
            argmin(x, ZERO).sum().backward()
    finally:
        stop.set()
        thread.join()
    assert int(net.num_batches_tracked) == calls


# 8. A sampler's directions are its own


@dataclass(frozen=True)
class Kept(pzobo.Sampler):
    """One direction for all, kept."""

    direction: Tensor | None = None

    def draw(self, key: int, j: int, count: int, space: Any) -> Tensor:
        assert self.direction is not None
        return self.direction


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_a_sampler_that_keeps_its_directions(batching: str) -> None:
    u = normal(3, seed=4)
    kept = u.clone()
    argmin = make(pzobo.PZOBO(1e-4, 2, Kept(direction=kept), shrink=False, batching=batching, antithetic=True))
    found = []
    for _ in range(2):
        x = leaf(3)
        argmin(x, ZERO).sum().backward()
        found.append(x.grad)
    assert torch.equal(kept, u)
    assert torch.equal(*found)


# 9. Transforms


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


# 10. Numbers of a solver


@pytest.mark.parametrize("make_solver", [lambda t: pzobo.GD(t, 3), lambda t: pzobo.HeavyBall(t, 0.9, 3)])
def test_a_rate_that_wants_a_gradient_is_refused(make_solver: Any) -> None:
    with pytest.raises(OptionError, match="lr is a tensor that requires a gradient"):
        make_solver(torch.tensor(0.1, requires_grad=True))
    with pytest.raises(OptionError, match="momentum"):
        pzobo.HeavyBall(0.1, torch.tensor(0.9, requires_grad=True), 3)


# 11. Autograd around an argmin, and things that are empty


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


EMPTY = {**JACOBIANS, "exact": pzobo.Implicit(pzobo.Exact()), "orthogonal": pzobo.PZOBO(1e-3, 2, pzobo.Orthogonal())}


@pytest.mark.parametrize("jacobian", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize(("p", "d"), [(0, 3), (3, 0), (0, 0)])
def test_empty_tensors(jacobian: Any, p: int, d: int) -> None:
    x = torch.zeros(p, dtype=torch.float64, requires_grad=True)
    y = make(jacobian, lambda x, y, b: y.square().sum() + x.sum() * y.sum())(x, torch.zeros(d, dtype=torch.float64))
    (y.sum() + x.sum()).backward()
    assert torch.equal(x.grad, torch.ones(p, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sparse_matrix_under_autocast(dtype: torch.dtype) -> None:
    dense = normal(4, 3, dtype=torch.float32)
    A = pzobo.SparseMatrix.from_torch(dense)

    def gradient(matrix: Any) -> Tensor:
        x = torch.ones(2, requires_grad=True)

        def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
            return (matrix @ y - x).square().mean() + 0.1 * y.float().square().sum()

        with torch.autocast("cpu", dtype=dtype):
            y = pzobo.Argmin(loss, solver=pzobo.GD(0.1, 5), jacobian=pzobo.Unrolled())(x, torch.zeros(3, 2))
            y.sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(A), gradient(dense), rtol=0.02, atol=0.01)


@each
def test_bowl_is_still_exact(jacobian: Any) -> None:
    """The control of this page: without any attack each Jacobian has its answer."""
    x = leaf(3)
    make(jacobian, bowl)(x, ZERO).sum().backward()
    assert torch.isfinite(x.grad).all()
    if isinstance(jacobian, pzobo.Unrolled):
        torch.testing.assert_close(x.grad, truth(x, ZERO), rtol=1e-5, atol=1e-7)
