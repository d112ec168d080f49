"""Does what attacks found stay mended? Silent wrong values, each with the answer that it must have, or refused."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm

import pzobo
from pzobo.errors import (
    AuditWarning,
    DivergenceError,
    OptionError,
    PzoboError,
    RequirementError,
    SmoothingError,
    StaleError,
    StructureError,
)
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


LEAVES = {
    "small": lambda y: y["small"].sum() / 1e-3,
    "big": lambda y: y["big"].sum() / 1e4,
    "both": lambda y: y["big"].sum() + y["small"].sum(),
    "both, scaled": lambda y: y["big"].sum() / 1e4 + y["small"].sum() / 1e-3,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("outer", LEAVES)
def test_nudged_with_leaves_of_very_different_sizes_is_right_or_told(outer: str, dtype: torch.dtype) -> None:
    """y* = (1e4 x^2, 1e-3 sin x), of a g that is not quadratic. One length serves the leaves that v is in."""

    def loss(x: Tensor, y: dict[str, Tensor], batch: Any) -> Tensor:
        r, s = y["big"] / 1e4 - x.square(), y["small"] / 1e-3 - x.sin()
        return 1e8 * (0.5 * r.square() + 0.1 * r.pow(4)).sum() + 1e-6 * (0.5 * s.square() + 0.1 * s.pow(4)).sum()

    x = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=dtype, requires_grad=True)
    solution = {"big": 1e4 * x.square(), "small": 1e-3 * x.sin()}
    expected = torch.autograd.grad(LEAVES[outer](solution), x)[0]
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.5, 60), jacobian=pzobo.Nudged())
    with warnings.catch_warnings(record=True, action="always", category=AuditWarning) as said:
        try:
            LEAVES[outer](argmin(x, {name: 1.1 * y.detach() for name, y in solution.items()})).backward()
        except (SmoothingError, DivergenceError):
            assert outer != "big"
            assert (outer, dtype) != ("small", torch.float64)
            return
    if not any(w.category is AuditWarning for w in said):
        torch.testing.assert_close(x.grad, expected, rtol=1e-3 if dtype == torch.float32 else 1e-6, atol=0)
    else:
        assert outer.startswith("both")


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


@pytest.mark.parametrize("kind", ["black box", "closed form", "smooth"])
def test_a_function_may_give_the_same_memory_each_time(kind: str) -> None:
    memory = torch.empty(3, dtype=torch.float64)

    def fill(x: Tensor, *_: Any) -> Tensor:
        return memory.copy_(x.detach().sin())

    x = leaf(3)
    if kind == "smooth":
        y = pzobo.smooth(fill, x, mu=1e-6, directions=3, sampler=pzobo.Orthogonal(seed=0))
    else:
        solver = pzobo.BlackBox(fill) if kind == "black box" else pzobo.ClosedForm(fill)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=pzobo.PZOBO(1e-6, 3, pzobo.Orthogonal(seed=0)))(x, ZERO)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos(), rtol=1e-5, atol=1e-5)


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


class Remembering(nn.Module):
    """It goes on with a running mean that it writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, y: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(y.detach(), alpha=0.5)
        return y * (1 + self.mean.clone().square())


AGAIN = {
    "checkpoint": pzobo.Unrolled(checkpoint=True),
    "forward": pzobo.Unrolled(products="forward"),
    "difference": pzobo.Unrolled(products="difference"),
    "implicit": pzobo.Implicit(pzobo.CG(5, damping=3.0)),
    "nudged": pzobo.Nudged(),
}


@pytest.mark.parametrize("jacobian", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("kind", ["mean", "spectral norm"])
def test_a_loss_that_reads_the_buffers_it_writes_is_refused_outside_of_its_path(jacobian: Any, kind: str) -> None:
    torch.manual_seed(0)
    net = Remembering() if kind == "mean" else spectral_norm(nn.Linear(3, 3, bias=False).double())
    weight = next(iter(dict(net.named_parameters())), "")

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        made = net(y) if kind == "mean" else functional_call(net, {weight: y.diag() + 0.1}, (ZERO + 1,))
        return (made - x).square().sum() + 0.1 * y.square().sum()

    x, y0 = leaf(3), ZERO + 0.5
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.05, 8), jacobian=jacobian)
    net.eval()
    with warnings.catch_warnings(action="ignore", category=AuditWarning):
        argmin(x, y0).sum().backward()
    net.train()
    before = [b.clone() for b in net.buffers()]
    y = argmin(x, y0)
    assert any(not torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))
    before = [b.clone() for b in net.buffers()]
    with pytest.raises(RequirementError, match=r"depends on buffers that it writes itself.*eval\(\)"):
        y.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


@pytest.mark.parametrize("jacobian", AGAIN.values(), ids=AGAIN)
def test_batch_norm_and_dropout_are_not_refused(jacobian: Any) -> None:
    """They write, or draw, but what they wrote does not change what they answer."""
    net, rows = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.2)).double(), normal(8, 3)
    x = leaf(3)

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (net(rows * (1 + x)) @ y - 1).square().mean() + 0.1 * y.square().sum()

    with warnings.catch_warnings(action="ignore", category=AuditWarning):
        pzobo.Argmin(loss, solver=pzobo.GD(0.05, 8), jacobian=jacobian)(x, ZERO).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


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


@dataclass(frozen=True)
class Refilled(Kept):
    """The directions of another sampler, always in the same memory."""

    def draw(self, key: int, j: int, count: int, space: Any) -> Tensor:
        assert self.direction is not None
        return self.direction.copy_(pzobo.Gaussian(seed=3).draw(key, j, count, space))


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_a_sampler_that_gives_the_same_memory_each_time(batching: str) -> None:
    found = []
    for sampler in (pzobo.Gaussian(seed=3), Refilled(direction=torch.empty(3, dtype=torch.float64))):
        x = leaf(3)
        key = pzobo.Gaussian(seed=3).key() if isinstance(sampler, Refilled) else None
        if key is not None:
            object.__setattr__(sampler, "key", lambda key=key: key)
        make(pzobo.PZOBO(1e-4, 4, sampler, shrink=False, batching=batching))(x, ZERO).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


# 10. Numbers of a solver


@pytest.mark.parametrize("make_solver", [lambda t: pzobo.GD(t, 3), lambda t: pzobo.HeavyBall(t, 0.9, 3)])
def test_a_rate_that_wants_a_gradient_is_refused(make_solver: Any) -> None:
    with pytest.raises(OptionError, match="lr is a tensor that requires a gradient"):
        make_solver(torch.tensor(0.1, requires_grad=True))
    with pytest.raises(OptionError, match="momentum"):
        pzobo.HeavyBall(0.1, torch.tensor(0.9, requires_grad=True), 3)


NUMBERS: dict[str, Callable[[Tensor], tuple[Any, Any]]] = {
    "GD": lambda t: (pzobo.GD(t, 8), pzobo.Unrolled()),
    "HeavyBall": lambda t: (pzobo.HeavyBall(t, t, 8), pzobo.Unrolled()),
    "Adam": lambda t: (pzobo.Adam(t, 8, betas=(t, 0.9), eps=t), pzobo.Unrolled()),
    "mu": lambda t: (pzobo.GD(0.1, 8), pzobo.PZOBO(t, 3, pzobo.Orthogonal(seed=0), shrink=t)),
    "eps": lambda t: (pzobo.GD(0.1, 8), pzobo.Nudged(t)),
    "damping": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.CG(5, damping=t))),
    "FixedPoint": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.FixedPoint(5, lr=t))),
    "Neumann": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.Neumann(t, 5))),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("kind", ["tensor", "array"])
@pytest.mark.filterwarnings("ignore::pzobo.errors.AuditWarning")
def test_an_option_is_the_number_that_it_was(make: Any, kind: str) -> None:
    """A tensor, or an array, that is written into afterwards changes nothing: neither the path nor its derivative."""
    found = []
    for change in (False, True):
        number = torch.tensor(0.1, dtype=torch.float64) if kind == "tensor" else np.array(0.1)
        solver, jacobian = make(number)
        x = leaf(3)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=jacobian)(x, ZERO)
        if change:
            number.mul_(3) if isinstance(number, Tensor) else number.__imul__(3)
        y.sum().backward()
        found.append(x.grad)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=jacobian)(x, ZERO)
        found.append(y.detach())
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_numbers_of_an_algorithm_are_those_they_were() -> None:
    lr = torch.tensor(0.1)
    algorithm, decay = pzobo.algorithms.SOBA(lr=lr), pzobo.algorithms.Decay(lr, 0.5)
    lr.mul_(3)
    assert algorithm.lr == pytest.approx(0.1)
    assert decay(0) == pytest.approx(0.1)


# 11. Things that are empty, and half precision


@each
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("where", ["x", "prepare", "y0"])
def test_sparse_variables_are_refused(jacobian: Any, layout: torch.layout, where: str) -> None:
    dense = torch.eye(3, dtype=torch.float64)
    x = dense.to_sparse(layout=layout).requires_grad_() if where == "x" else dense.clone().requires_grad_()
    prepare = (lambda x, batch: x.to_sparse(layout=layout)) if where == "prepare" else None
    argmin = make(jacobian, lambda z, y, batch: ((z @ y).square() - y).sum(), prepare=prepare)
    y0 = dense.to_sparse(layout=layout) if where == "y0" else ZERO
    if where == "prepare" and isinstance(jacobian, pzobo.PZOBO):
        argmin(x, y0).sum().backward()
        return  # a path that is a function of x takes any z
    with pytest.raises(PzoboError, match=r"sparse.*(dense|forward-mode derivatives)"):
        argmin(x, y0).sum().backward()


def test_sparse_variables_of_smooth_are_refused() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    with pytest.raises(StructureError, match=r"t.values\(\)"):
        pzobo.smooth(lambda x: x.to_dense().sum(), x, mu=0.1)


@each
@pytest.mark.parametrize("where", ["x", "prepare"])
def test_complex_variables_are_refused(jacobian: Any, where: str) -> None:
    """A gradient with respect to them would have been left out."""
    x = torch.ones(3, dtype=torch.complex128 if where == "x" else torch.float64, requires_grad=True)
    argmin = make(jacobian, lambda z, y, b: bowl(z.real, y), prepare=lambda x, b: torch.complex(x.real, 2 * x.real))
    if where == "prepare" and getattr(jacobian, "at", "") in ("x", "auto") and isinstance(jacobian, pzobo.PZOBO):
        argmin(x, ZERO).sum().backward()
        assert x.grad is not None
        return  # a path that is a function of x takes any z
    with pytest.raises(StructureError, match=r"complex tensor of shape \(3,\).*view_as_real"):
        argmin(x, ZERO).sum().backward()


def test_complex_variables_of_smooth_are_refused() -> None:
    x = torch.ones(3, dtype=torch.complex128, requires_grad=True)
    with pytest.raises(StructureError, match="view_as_real"):
        pzobo.smooth(lambda x: x.real, x, mu=0.1)


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
