"""Do perturbed paths run under the conditions of the base path, and leave no trace of themselves?"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pzobo
from pzobo.errors import RequirementError
from tests.helpers import LR, STEPS, attempt, leaf, normal, relative_error

ZERO = torch.zeros(4, dtype=torch.float64)
DATA = normal(6, 4, seed=7)


def seeded(kind: Any, *args: Any, sampler: Any = pzobo.Gaussian, **options: Any) -> Any:
    return lambda: kind(*args, sampler=sampler(seed=5), **options)


DIRECTIONAL = {
    "loop": seeded(pzobo.PZOBO, 1e-4, 3, batching="loop"),
    "auto": seeded(pzobo.PZOBO, 1e-4, 9),
    "vmap": seeded(pzobo.PZOBO, 1e-4, 9, batching="vmap"),
    "chunks": seeded(pzobo.PZOBO, 1e-4, 9, batching=4),
    "antithetic": seeded(pzobo.PZOBO, 1e-4, 3, antithetic=True),
    "forward": seeded(pzobo.ForwardMode, 2),
    "forward, vmap": seeded(pzobo.ForwardMode, 9, batching="vmap"),
}


def make(jacobian: Any, loss: Any, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=pzobo.GD(LR, STEPS), jacobian=jacobian, **options)


def energy(features: Tensor, y: Tensor) -> Tensor:
    return (features @ y - 1).square().mean() + 0.1 * y.square().sum() + 0.05 * y.pow(4).sum()


def answer(argmin: pzobo.Argmin, x: Any, *batch: Any, **batches: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """y and the hypergradient, from the same global random state whenever it is called."""
    torch.manual_seed(11)
    y = argmin(x, ZERO, *batch, **batches)
    variables = [x] if isinstance(x, Tensor) else [t for t in x.values() if t.requires_grad]
    return y.detach(), torch.autograd.grad(y.square().sum(), variables)


def masks(count: int) -> list[Tensor]:
    torch.manual_seed(11)
    return [F.dropout(torch.ones_like(DATA)) for _ in range(count)]


# Dropout


@pytest.mark.parametrize("jacobian", [*DIRECTIONAL.values(), pzobo.Unrolled], ids=[*DIRECTIONAL, "unrolled"])
def test_dropout_in_the_loss_has_the_masks_of_the_base_path(jacobian: Any) -> None:
    """The same numbers as from a loss that is given each step's mask."""
    x = leaf(4)
    by_hand = make(jacobian(), lambda x, y, mask: energy(DATA * x * mask, y))
    drawn = make(jacobian(), lambda x, y, batch: energy(F.dropout(DATA * x), y))
    expected = answer(by_hand, x, batches=masks(STEPS))
    torch.testing.assert_close(answer(drawn, x), expected, rtol=1e-7, atol=1e-9)


ALL = {
    **DIRECTIONAL,
    "unrolled": pzobo.Unrolled,
    "unrolled, checkpoint": lambda: pzobo.Unrolled(checkpoint=True),
    "unrolled, difference": lambda: pzobo.Unrolled(products="difference"),
    "implicit": lambda: pzobo.Implicit(pzobo.CG()),
    "implicit, difference": lambda: pzobo.Implicit(pzobo.CG(), products="difference"),
    "nudged": lambda: pzobo.Nudged(1e-3),
}


LEVELS = [(name, at) for name in ALL for at in (("x", "z") if name in DIRECTIONAL else ("z",))]


@pytest.mark.parametrize(("name", "at"), LEVELS)
def test_dropout_in_prepare_has_the_mask_of_the_base_path(name: str, at: Any) -> None:
    x, jacobian = leaf(4), ALL[name]()
    if name in DIRECTIONAL:
        jacobian = copy.copy(jacobian)
        object.__setattr__(jacobian, "at", at)
    [mask] = masks(1)
    by_hand = make(copy.deepcopy(jacobian), lambda z, y, batch: energy(z, y), prepare=lambda x, mask: DATA * x * mask)
    drawn = make(jacobian, lambda z, y, batch: energy(z, y), prepare=lambda x, batch: F.dropout(DATA * x))
    expected = answer(by_hand, x, mask)
    torch.testing.assert_close(answer(drawn, x), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["loop", "vmap", "forward", "unrolled"])
def test_dropout_in_prepare_with_a_batch_for_each_step(name: str) -> None:
    x, jacobian = leaf(4), ALL[name]()
    if name in DIRECTIONAL:
        object.__setattr__(jacobian, "at", "x")
    batches = [1.0 + t for t in range(STEPS)]
    steps = [mask * batch for mask, batch in zip(masks(STEPS), batches, strict=True)]
    by_hand = make(copy.deepcopy(jacobian), lambda z, y, b: energy(z, y), prepare=lambda x, mask: DATA * x * mask)
    drawn = make(jacobian, lambda z, y, b: energy(z, y), prepare=lambda x, b: F.dropout(DATA * x) * b)
    expected = answer(by_hand, x, batches=steps)
    torch.testing.assert_close(answer(drawn, x, batches=batches), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "jacobian",
    [pzobo.Unrolled(checkpoint=True), pzobo.Unrolled(products="difference"), pzobo.Unrolled(products="forward")],
    ids=repr,
)
def test_unrolled_forms_that_evaluate_again_draw_the_same_masks(jacobian: Any) -> None:
    x = leaf(4)
    loss = lambda x, y, batch: energy(F.dropout(DATA * x), y)  # noqa: E731
    plain, again = answer(make(pzobo.Unrolled(), loss), x), answer(make(jacobian, loss), x)
    torch.testing.assert_close(again[0], plain[0])
    torch.testing.assert_close(again[1], plain[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("fine", "coarse"),
    [
        (pzobo.Implicit(pzobo.CG(4), products="difference"), pzobo.Implicit(pzobo.CG(4))),
        (pzobo.Implicit(pzobo.Exact(), products="difference"), pzobo.Implicit(pzobo.Exact())),
        (
            pzobo.Implicit(pzobo.FixedPoint(3, lr=0.1), products="difference"),
            pzobo.Implicit(pzobo.FixedPoint(3, lr=0.1)),
        ),
        (
            pzobo.Implicit(pzobo.Neumann(0.1, 3), products="difference"),
            pzobo.Implicit(pzobo.Neumann(0.1, 3)),
        ),
        (pzobo.Nudged(1e-6, 3, symmetric=False), pzobo.Nudged(1e-4, 3, symmetric=False)),
        (pzobo.Nudged(1e-6, 3, symmetric=True), pzobo.Nudged(1e-4, 3, symmetric=True)),
    ],
    ids=lambda j: type(j).__name__ + type(getattr(j, "inverse", None)).__name__,
)
def test_differences_of_gradients_see_one_mask_or_refuse(fine: Any, coarse: Any) -> None:
    """Two gradients that are subtracted must have the same dropout mask, or the answer is noise over eps."""
    x, sizes = leaf(4), []
    for jacobian in (fine, coarse):
        argmin = make(jacobian, lambda x, y, batch: energy(F.dropout(DATA * x), y))
        found, message = attempt(lambda argmin=argmin: answer(argmin, x)[1][0], RequirementError)
        if found is None:
            assert "random" in message
            return
        sizes.append(float(found.norm()))
    assert sizes[0] < 5 * sizes[1]


def test_compiled_paths_see_one_mask() -> None:
    """With p orthogonal directions two estimates agree; with masks of their own the paths would differ by 1/mu."""
    x = leaf(4)
    argmin = make(
        pzobo.PZOBO(1e-4, 4, pzobo.Orthogonal(seed=0), antithetic=True),
        lambda x, y, batch: energy(F.dropout(DATA * x), y),
        compile=True,
    )
    first, second = (answer(argmin, x)[1][0] for _ in range(2))
    assert relative_error(first, second) < 1e-4


# The global random state


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("where", ["prepare", "loss", "nowhere"])
def test_the_global_random_state_is_that_of_the_base_path_alone(name: str, where: str) -> None:
    if where == "loss" and name in ("unrolled, checkpoint", "unrolled, difference", "implicit, difference", "nudged"):
        where = "nowhere"  # there these refuse
    x = leaf(4)
    prepare = (lambda x, batch: F.dropout(DATA * x)) if where == "prepare" else (lambda x, batch: DATA * x)
    loss = (lambda z, y, b: energy(F.dropout(z), y)) if where == "loss" else (lambda z, y, b: energy(z, y))
    argmin = make(ALL[name](), loss, prepare=prepare)
    torch.manual_seed(3)
    with torch.no_grad():
        argmin(x, ZERO)
    alone = torch.get_rng_state()
    torch.manual_seed(3)
    y = argmin(x, ZERO)
    assert torch.equal(torch.get_rng_state(), alone)
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), alone)


# BatchNorm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        with torch.no_grad():
            self.linear.weight.copy_(normal(4, 4, seed=3))
            self.linear.bias.copy_(normal(4, seed=4))

    def forward(self, data: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(data)))


def network() -> Net:
    return Net().double().train()


def buffers(net: nn.Module) -> list[Tensor]:
    return [b.clone() for b in net.buffers()]


@pytest.mark.parametrize(("name", "at"), LEVELS)
def test_batch_norm_in_prepare(name: str, at: Any) -> None:
    """Running statistics after everything are those after one plain forward pass; the estimate is as without them."""
    net, jacobian = network(), ALL[name]()
    if name in DIRECTIONAL:
        object.__setattr__(jacobian, "at", at)
    if name in ("vmap", "chunks", "forward, vmap") and at == "x":
        object.__setattr__(jacobian, "batching", "auto")  # vmap itself cannot take running statistics
    plain = copy.deepcopy(net)
    plain(DATA)
    still = copy.deepcopy(net)
    still.norm.running_mean = still.norm.running_var = still.norm.num_batches_tracked = None

    def gradient(net: Net, jacobian: Any) -> tuple[Tensor, ...]:
        def prepare(x: dict[str, Tensor], batch: Tensor) -> Tensor:
            return torch.func.functional_call(net, x, (batch,))

        argmin = make(jacobian, lambda z, y, batch: energy(z, y), prepare=prepare)
        y = argmin(dict(net.named_parameters()), ZERO, DATA)
        y.sum().backward()
        assert argmin.last.inner_loss > 0
        return tuple(p.grad for p in net.parameters())

    expected = gradient(still, copy.deepcopy(jacobian))
    found, message = attempt(lambda: gradient(net, jacobian), RequirementError)
    if name.startswith("forward") and at == "x" and found is None:  # torch.func.jvp takes no change of a buffer
        assert 'at="z"' in message
        return
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(buffers(net), buffers(plain))


@pytest.mark.parametrize(
    "name", ["loop", "auto", "antithetic", "unrolled", "implicit", "implicit, difference", "nudged"]
)
def test_batch_norm_in_the_loss(name: str) -> None:
    """Running statistics after everything are those after the N forward passes of the base path."""
    net, x = network(), leaf(4)
    plain = copy.deepcopy(net)
    for _ in range(STEPS):
        plain(DATA * x.detach())
    argmin = make(ALL[name](), lambda x, y, batch: energy(net(DATA * x), y))
    y = argmin(x, ZERO)
    torch.testing.assert_close(buffers(net), buffers(plain))
    y.sum().backward()
    assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(buffers(net), buffers(plain))


@pytest.mark.parametrize("name", ["loop", "auto", "unrolled", "implicit", "nudged"])
def test_batch_norm_in_both_levels(name: str) -> None:
    """The outer loss runs the same network: its graph must survive the perturbed paths."""
    net = network()
    plain = copy.deepcopy(net)
    plain(DATA)
    plain(2 * DATA)

    def prepare(x: dict[str, Tensor], batch: Tensor) -> Tensor:
        return torch.func.functional_call(net, x, (batch,))

    argmin = make(ALL[name](), lambda z, y, batch: energy(z, y), prepare=prepare)
    y = argmin(dict(net.named_parameters()), ZERO, DATA)
    (net(2 * DATA) @ y).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    torch.testing.assert_close(buffers(net), buffers(plain))


@pytest.mark.parametrize("name", ["loop", "unrolled"])
def test_batch_norm_whose_buffers_come_with_x(name: str) -> None:
    net = network()
    own = {key: b.clone() for key, b in net.named_buffers()}
    plain = copy.deepcopy(net)
    plain(DATA)
    x = {**dict(net.named_parameters()), **own}
    jacobian = ALL[name]()
    if name in DIRECTIONAL:
        object.__setattr__(jacobian, "at", "x")
    argmin = make(
        jacobian,
        lambda z, y, batch: energy(z, y),
        prepare=lambda x, batch: torch.func.functional_call(net, x, (batch,)),
    )
    argmin(x, ZERO, DATA).sum().backward()
    torch.testing.assert_close(list(own.values()), buffers(plain))


def test_batch_norm_in_a_black_box() -> None:
    net, x = network(), leaf(4)
    plain = copy.deepcopy(net)
    plain(DATA * x.detach())
    solver = pzobo.BlackBox(lambda x, y0, batch: net(DATA * x).mean(0))
    argmin = pzobo.Argmin(None, solver=solver, jacobian=pzobo.PZOBO(1e-4, 3))
    argmin(x, ZERO).sum().backward()
    torch.testing.assert_close(buffers(net), buffers(plain))


def test_batch_norm_of_another_network_of_the_same_shape() -> None:
    """A second call of the same argmin, on a network that the first call did not see."""
    nets = [network(), network()]
    current = [nets[0]]
    x = leaf(4)
    argmin = make(pzobo.PZOBO(1e-4, 3), lambda x, y, batch: energy(current[0](DATA * x), y))
    for net in nets:
        current[0] = net
        y = argmin(x, ZERO)
        after_forward = buffers(net)
        y.sum().backward()
        torch.testing.assert_close(buffers(net), after_forward)


def test_statistics_change_no_buffer() -> None:
    net, x = network(), leaf(4)
    argmin = make(pzobo.Direct(), lambda x, y, batch: energy(net(DATA * x), y))
    argmin(x, ZERO)
    before = buffers(net)
    assert argmin.last.inner_loss > 0
    assert argmin.last.gradient_norm > 0
    torch.testing.assert_close(buffers(net), before)


# Autocast


def test_autocast_keeps_no_steps() -> None:
    """Inside of autocast PyTorch keeps the casts of leaves, and so the leaves: every y of the path, if it is let."""
    seen: list[weakref.ref[Tensor]] = []

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        seen.append(weakref.ref(y))
        return ((DATA.float() * x) @ y).float().square().mean()

    argmin = pzobo.Argmin(loss, solver=pzobo.GD(LR, 50), jacobian=pzobo.PZOBO(0.5))
    with torch.autocast("cpu", torch.bfloat16):
        argmin(leaf(4, dtype=torch.float32), torch.zeros(4, 1))
        assert sum(ref() is not None for ref in seen) < 5


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", ["loop", "auto", "implicit, difference", "unrolled, difference", "nudged"])
def test_autocast_is_that_of_the_forward_pass(name: str, forward: bool) -> None:
    """Also if only the backward pass is inside of autocast."""
    kinds: list[torch.dtype] = []

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        product = (DATA.float() * x) @ y.unsqueeze(1)
        kinds.append(product.dtype)
        return (product.float() - 1).square().mean() + 0.1 * y.square().sum()

    x, jacobian = leaf(4, dtype=torch.float32), ALL[name]()
    if name in DIRECTIONAL:
        object.__setattr__(jacobian, "mu", 0.5)
    argmin = make(jacobian, loss)
    with torch.autocast("cpu", torch.bfloat16, enabled=forward):
        y = argmin(x, torch.zeros(4))
    made = len(kinds)
    with torch.autocast("cpu", torch.bfloat16, enabled=not forward):
        y.sum().backward()
    assert len(kinds) > made
    assert set(kinds) == {torch.bfloat16 if forward else torch.float32}
