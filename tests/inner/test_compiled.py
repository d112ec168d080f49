"""Does compiled code see everything that changes, and keep apart what is not the same?"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import CompileError, CompileWarning
from pzobo.inner import compiled
from tests.helpers import bowl, leaf, normal, relative_error

SOLVER = pzobo.GD(0.1, 2)
V = normal(3, seed=2)
JACOBIANS = {
    "PZOBO at x": pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0), at="x"),
    "PZOBO at z": pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0), at="z"),
    "Unrolled": pzobo.Unrolled(checkpoint=True),
}
PATHS = {name: JACOBIANS[name] for name in ("PZOBO at x", "PZOBO at z")}
each = pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)


@pytest.fixture(autouse=True)
def _quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile looks at before a call does not depend on the machine code, which takes long to make."""
    if "machine_code" not in request.keywords:
        monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graph.forward)


def both(loss: Any, jacobian: Any = JACOBIANS["PZOBO at x"], **options: Any) -> list[pzobo.Argmin]:
    """An Argmin that runs eagerly, and one that is compiled."""
    return [
        pzobo.Argmin(loss, solver=SOLVER, jacobian=jacobian.at_start(), compile=c, **options) for c in (False, True)
    ]


def step(
    argmin: pzobo.Argmin, *data: Any, between: Callable[[], None] = lambda: None, **options: Any
) -> tuple[Tensor, Tensor]:
    x = leaf(3)
    y = argmin(x, normal(3, seed=1), *data, **options)
    between()
    return y.detach(), torch.autograd.grad(y, x, V)[0]


def assert_alike(argmins: list[pzobo.Argmin], *data: Any, **options: Any) -> Tensor:
    expected, found = (step(argmin, *data, **options) for argmin in argmins)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    return found[0]


# Arithmetic


class Sums:
    """The ways of torch to add a multiple of a product of matrices."""

    def forms(self, a: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        v, w, batch = a[:, 0], d[:, 0], torch.stack([c, 2 * c])
        return [
            torch.add(a, c @ d, alpha=-0.3),
            torch.add(c @ d, a, alpha=-0.3),
            torch.add(c @ d, c @ d.cos(), alpha=-0.3),
            a.clone().add_(c @ d, alpha=-0.3),
            torch.sub(a, c @ d, alpha=0.3),
            torch.sub(c @ d, a, alpha=0.3),
            torch.add(v, c @ w, alpha=-0.3),
            torch.add(a, 2, alpha=-0.3),
            torch.add(torch.addmm(a, c, d), a, alpha=-0.3),
            torch.addmm(a, c, d, alpha=-0.3, beta=0.7),
            torch.addmv(v, c, w, alpha=-0.3, beta=0.7),
            torch.addbmm(a, batch, torch.stack([d, d]), alpha=-0.3, beta=0.7),
            torch.baddbmm(torch.stack([a, a]), batch, torch.stack([d, d]), alpha=-0.3, beta=0.7),
            torch.addr(c, v, w, alpha=-0.3, beta=0.7),
            torch.addcmul(a, c @ d, a, value=-0.3),
            torch.lerp(a, c @ d, 0.1),
            torch.lerp(c @ d, a, 0.1),
        ]


@pytest.mark.machine_code
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_multiple_of_a_product_of_matrices(dtype: torch.dtype) -> None:
    """torch 2.13 compiles the first four without alpha (docs/dependencies.md)."""
    args = normal(4, 3, dtype=dtype), normal(4, 5, seed=1, dtype=dtype), normal(5, 3, seed=2, dtype=dtype)
    found = compiled.Compiled(Sums.forms)(Sums(), *args)
    for a, b in zip(found, Sums().forms(*args), strict=True):
        torch.testing.assert_close(a, b)


# What changes between two calls, and between a call and its backward pass

SCALE = 1.0


def global_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    return SCALE * bowl(x, y)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = 1.0, nn.Buffer(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


class Changing:
    """A loss that depends on something of each kind, and how to change it."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        inside, layer, box = 1.0, Layer(), SimpleNamespace(scale=1.0, weights=[1.0, torch.tensor(1.0)])

        def closure(x: Tensor, y: Tensor, batch: Any) -> Tensor:
            return inside * bowl(x, y)

        def change_closure(value: float) -> None:
            nonlocal inside
            inside = value

        self.loss, self.change = {
            "closure": (closure, change_closure),
            "global": (global_loss, lambda value: monkeypatch.setitem(globals(), "SCALE", value)),
            "attribute": (lambda x, y, batch: box.scale * bowl(x, y), lambda value: setattr(box, "scale", value)),
            "list": (lambda x, y, batch: box.weights[0] * bowl(x, y), lambda value: box.weights.__setitem__(0, value)),
            "tensor": (
                lambda x, y, batch: box.weights[1] * bowl(x, y),
                lambda value: box.weights.__setitem__(1, torch.tensor(value)),
            ),
            "module": (lambda x, y, batch: bowl(layer(x), y), lambda value: setattr(layer, "scale", value)),
            "buffer": (lambda x, y, batch: bowl(layer(x), y), lambda value: layer.shift.fill_(value)),
        }[kind]


KINDS = ("closure", "global", "attribute", "list", "tensor", "module", "buffer")


@pytest.mark.parametrize("jacobian", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_is_seen(kind: str, jacobian: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = Changing(kind, monkeypatch)
    argmins = both(changing.loss, jacobian)
    values = []
    for value in (1.0, 1.5):
        changing.change(value)
        values.append(assert_alike(argmins))
    assert relative_error(*values) > 1e-2
    # What comes of a change before the backward pass means nothing, but eager code gives the same.
    found = []
    for argmin in argmins:
        changing.change(1.0)
        found.append(step(argmin, between=lambda: changing.change(1.5))[1])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["torch_models", "torch_dot_models", "pzobo_losses", "torch", "losses"])
def test_globals_of_any_module_of_the_user(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "mine" if name == "torch" else ""
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"{name}.py").write_text("scale = 1.0\n\ndef scaled(value):\n    return scale * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(f"{folder}.{name}".strip("."))
    argmins = both(lambda x, y, batch: module.scaled(bowl(x, y)))
    for module.scale in (1.0, 1.5):
        assert_alike(argmins)


def test_a_function_of_torch_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loss itself calls is looked at, although torch's own modules are not."""
    argmins = both(lambda x, y, batch: bowl(x, torch.nn.functional.softplus(y)))
    values = [assert_alike(argmins)]
    monkeypatch.setattr(torch.nn.functional, "softplus", torch.nn.functional.silu)
    values.append(assert_alike(argmins))
    assert relative_error(*values) > 1e-2


# Numbers of Python


@each
def test_a_number_that_prepare_computes(jacobian: Any) -> None:
    """Every path has its own number, and there are more of them than torch.compile would compile for."""
    argmins = both(
        lambda z, y, batch: z[1] * bowl(z[0], y),
        jacobian,
        prepare=lambda x, batch: (2 * x, 1 + x.sum().item() ** 2),
    )
    assert_alike(argmins)


@pytest.mark.parametrize("where", ["batch", "prepare", "closure"])
def test_a_number_that_changes_with_every_call(where: str) -> None:
    """After some compilations it goes on without, and says so once."""
    number = 0.0
    loss, prepare = {
        "batch": (lambda x, y, batch: batch[1] * bowl(x, y) + batch[0] @ y, None),
        "prepare": (lambda z, y, batch: z[1] * bowl(z[0], y), lambda x, batch: (x, batch[1])),
        "closure": (lambda x, y, batch: number * bowl(x, y), None),
    }[where]
    argmins = both(loss, prepare=prepare)
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", CompileWarning)
        for i in range(5):
            number = 1 + i / 10
            assert_alike(argmins, (V, number))
    assert ["make it a tensor" in str(w.message) for w in seen if w.category is CompileWarning] == [True]


def test_a_number_that_changes_beside_random_numbers() -> None:
    """Compiled and eager code would draw different masks on paths that must have the same."""

    box = SimpleNamespace()
    argmin = both(lambda x, y, batch: box.number * bowl(nn.functional.dropout(x), y))[1]
    with torch._dynamo.config.patch(recompile_limit=2):
        for box.number in (1.0, 1.1):
            step(argmin)
        box.number = 1.2
        with pytest.raises(CompileError, match="Make it a tensor"):
            step(argmin)


def test_a_whole_number_and_a_choice() -> None:
    argmins = both(lambda x, y, batch: (bowl if batch["as it is"] else lambda x, y: 2 * bowl(x, y))(x, y) * batch["n"])
    for n, as_it_is in ((1, True), (2, True), (3, False), (2, False)):
        assert_alike(argmins, {"n": n, "as it is": as_it_is})


@pytest.mark.parametrize("at", ["x", "z"])
def test_forward_mode_with_constants_from_prepare(at: Any) -> None:
    def prepare(x: Tensor, batch: Any) -> Any:
        return {"a": "name", "number": 1.5, "whole": torch.arange(3), "x": x.sin(), "zero": 0}

    argmins = both(
        lambda z, y, batch: z["number"] * bowl(z["x"], y + z["zero"] * z["whole"]),
        pzobo.ForwardMode(2, pzobo.Gaussian(seed=0), at=at),
        prepare=prepare,
    )
    assert_alike(argmins)


@pytest.mark.parametrize("prepared", [False, True])
def test_forward_mode_on_unequal_batches(prepared: bool) -> None:
    def loss(z: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return ((z if prepared else batch * z) @ y - 1).square().mean() + 0.1 * y.pow(4).sum()

    jacobian = pzobo.ForwardMode(2, pzobo.Gaussian(seed=0), at="z")
    argmins = both(loss, jacobian, prepare=(lambda x, batch: batch * x) if prepared else None)
    for sizes in ((5, 5), (5, 4), (6, 5)):
        assert_alike(argmins, batches=[normal(n, 3, seed=n) for n in sizes])


# What is shared, and what is not


@dataclass(frozen=True)
class Weighted:
    """Losses that are == whatever their weights are."""

    power: int
    weight: Tensor = field(compare=False)

    def __call__(self, x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (self.weight * bowl(x, y)).sum()


def test_losses_that_are_equal_are_not_the_same() -> None:
    first, second = (Weighted(2, torch.tensor(weight, dtype=torch.float64)) for weight in (1.0, 2.0))
    assert first == second
    kept = both(first)
    assert_alike(kept)
    assert_alike(both(second))


@dataclass(frozen=True)
class Preconditioned(pzobo.GD):
    """A solver of a user, == to others with another preconditioner."""

    scale: Tensor = field(default_factory=lambda: torch.ones(3, dtype=torch.float64), compare=False)

    def update(self, gradient: Any, y: Any, state: Any) -> Any:
        return tuple(t - self.lr * self.scale * g for t, g in zip(y, gradient, strict=True)), state


def test_solvers_that_are_equal_are_not_the_same() -> None:
    argmins, found = both(bowl), []
    for scale in (1.0, 2.0):
        for argmin in argmins:
            argmin.solver = Preconditioned(0.1, 2, scale * torch.ones(3, dtype=torch.float64))
        found.append(assert_alike(argmins))
    assert relative_error(*found) > 1e-2


def test_another_loss_for_the_same_argmin() -> None:
    argmins = both(bowl)
    assert_alike(argmins)
    for argmin in argmins:
        argmin.inner_loss = lambda x, y, batch: 2 * bowl(x, y)
    expected = step(both(lambda x, y, batch: 2 * bowl(x, y))[0])[0]
    torch.testing.assert_close(assert_alike(argmins), expected)


def test_another_prepare_and_compile_for_the_same_argmin() -> None:
    argmins = both(lambda z, y, batch: bowl(z["x"], y), prepare=lambda x, batch: {"x": x})
    assert_alike(argmins)
    for argmin in argmins:
        argmin.inner_loss, argmin.prepare = bowl, lambda x, batch: x.sin()
        argmin.compile = not argmin.compile
    assert_alike(argmins)


def test_the_same_loss_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graphs.append(graph) or graph.forward)

    class Owner:
        def loss(self, x: Tensor, y: Tensor, batch: Any) -> Tensor:
            return bowl(x, y)

    owner = Owner()
    first = both(owner.loss)[1]
    step(first)
    assert len(graphs) == 1
    second = both(owner.loss, JACOBIANS["PZOBO at z"])[1]
    second.solver = pzobo.GD(0.1, 3)
    step(second)
    assert len(graphs) == 1
    step(both(Owner().loss)[1])
    assert len(graphs) == 2


# Buffers


@each
def test_batch_norm_of_two_argmins_with_one_loss(jacobian: Any) -> None:
    """Each path of a call sees the buffers as the first did, and one call counts once: in the second Argmin too."""
    data = normal(8, 3, seed=5)

    def loss(z: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (z @ y - 1).square().mean() + 0.1 * y.pow(4).sum()

    found, kept = [], []
    for compile in (False, True):
        norms = [nn.BatchNorm1d(3).double() for _ in "12"]
        for norm in norms:
            argmin = pzobo.Argmin(
                loss,
                solver=SOLVER,
                jacobian=jacobian.at_start(),
                prepare=lambda x, batch, norm=norm: norm(data * x),
                compile=compile,
            )
            kept.append(argmin)
            found.append((*step(argmin), norm.running_mean, norm.num_batches_tracked))
            assert norm.num_batches_tracked == 1
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@each
def test_batch_norm_inside_of_the_loss(jacobian: Any) -> None:
    """Its buffers are written at every step, which compiled derivatives cannot do: this one is not compiled."""
    data, found = normal(8, 3, seed=5), []
    for compile in (False, True):
        norm = nn.BatchNorm1d(3).double()

        def loss(x: Tensor, y: Tensor, batch: Any, norm: nn.Module = norm) -> Tensor:
            return (norm(data * x) @ y - 1).square().mean() + 0.1 * y.pow(4).sum()

        argmin = pzobo.Argmin(loss, solver=SOLVER, jacobian=jacobian.at_start(), compile=compile)
        if compile:
            with pytest.warns(CompileWarning, match=r"buffers of BatchNorm1d"):
                step(argmin)
        else:
            step(argmin)
        found.append((*step(argmin), norm.running_mean, norm.running_var, norm.num_batches_tracked))
        assert norm.num_batches_tracked == 2 * SOLVER.steps
    torch.testing.assert_close(*found)


def test_batch_norm_in_evaluation_is_compiled(recwarn: pytest.WarningsRecorder) -> None:
    data, norm = normal(8, 3, seed=5), nn.BatchNorm1d(3).double().eval()
    norm.running_mean += 0.5
    argmins = both(lambda x, y, batch: (norm(data * x) @ y - 1).square().mean())
    assert_alike(argmins)
    assert not [w for w in recwarn if issubclass(w.category, CompileWarning)]
    norm.running_mean += 0.5
    assert_alike(argmins)
