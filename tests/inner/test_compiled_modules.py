"""Does compiled code see what happens to the modules of a loss: their modes, their hooks, their buffers?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import CompileWarning
from pzobo.inner import compiled
from tests.helpers import bowl, normal, relative_error
from tests.inner.test_compiled import SOLVER, _quickly, assert_alike, both, each, step

__all__ = ["_quickly"]
"""A fixture of all tests here."""


@each
def test_batch_norm_that_is_switched_to_training(jacobian: Any) -> None:
    """Then it writes, and what was compiled cannot be used; back in evaluation it can."""
    data, found = normal(8, 3, seed=5), []
    for compile in (False, True):
        norm = nn.BatchNorm1d(3).double().eval()

        def loss(x: Tensor, y: Tensor, batch: Any, norm: nn.Module = norm) -> Tensor:
            return (norm(data * x) @ y - 1).square().mean() + 0.1 * y.pow(4).sum()

        argmin = pzobo.Argmin(loss, solver=SOLVER, jacobian=jacobian.at_start(), compile=compile)
        steps = [step(argmin)]
        norm.train()
        with pytest.warns(CompileWarning, match="buffers of BatchNorm1d") if compile else nullcontext():
            steps.append(step(argmin))
        steps.append(step(argmin))
        assert norm.num_batches_tracked == 2 * SOLVER.steps
        norm.eval()
        steps.append(step(argmin))
        found.append((steps, norm.running_mean, norm.running_var))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("where", ["prepare", "closed form"])
@pytest.mark.parametrize("at", ["x", "z"])
def test_a_module_that_is_swapped_in_beside_compiled_code(where: str, at: Any) -> None:
    """A first look has not seen it. Its buffers are those of the base path, whatever other paths do to them."""
    data, found = normal(8, 3, seed=5), []
    norm: nn.Module = nn.Identity()

    class Counting(nn.BatchNorm1d):
        """Its answer depends on its buffers, and one of them is replaced."""

        def __init__(self) -> None:
            super().__init__(3)
            self.double().register_buffer("calls", torch.zeros((), dtype=torch.float64))

        def forward(self, rows: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(rows) + self.running_mean + self.calls

    def normed(x: Tensor, batch: Any) -> Tensor:
        return norm(data * x)

    def fitted(z: Tensor, batch: Any) -> Tensor:
        rows = normed(z, batch)
        return torch.linalg.solve(rows.T @ rows + torch.eye(3).double(), rows.T @ torch.ones(8).double())

    for compile in (False, True):
        norm = nn.Identity()
        solver = pzobo.ClosedForm(fitted) if where == "closed form" else SOLVER
        argmin = pzobo.Argmin(
            lambda z, y, batch: (z.sum(-1) * y.sum() - 1).square().mean() + 0.1 * y.pow(4).sum(),
            solver=solver,
            jacobian=pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=0), at=at),
            prepare=normed if where == "prepare" else None,
            compile=compile,
        )
        step(argmin)
        norm = Counting()
        found.append((*step(argmin), *norm.buffers()))
        assert norm.num_batches_tracked == norm.calls == 1
    torch.testing.assert_close(*found)


# How modules are called


@contextmanager
def doubled(layer: nn.Module, kind: str) -> Iterator[None]:
    """What a layer does is doubled, in a way that torch.compile does not look for."""
    everywhere, forward = nn.modules.module, nn.Linear.forward
    if kind == "class":
        nn.Linear.forward = lambda self, rows: 2 * forward(self, rows)  # type: ignore[method-assign]
        undo: Any = lambda: setattr(nn.Linear, "forward", forward)  # noqa: E731
    elif kind == "forward":
        undo = layer.register_forward_hook(lambda module, args, answer: 2 * answer).remove
    elif kind == "before":
        undo = layer.register_forward_pre_hook(lambda module, args: (2 * args[0],)).remove
    elif kind == "everywhere":
        undo = everywhere.register_module_forward_hook(lambda module, args, answer: 2 * answer).remove
    else:
        undo = everywhere.register_module_forward_pre_hook(lambda module, args: (2 * args[0],)).remove
    try:
        yield
    finally:
        undo()


@pytest.mark.parametrize("kind", ["forward", "before", "everywhere", "before everywhere", "class"])
def test_hooks_that_are_registered_after_the_first_call(kind: str) -> None:
    layer = nn.Linear(3, 3, bias=False).double()
    argmins, values = both(lambda x, y, batch: bowl(layer(x), y)), []
    values.append(assert_alike(argmins))
    with doubled(layer, kind):
        values.append(assert_alike(argmins))
    values.append(assert_alike(argmins))
    assert relative_error(values[1], values[0]) > 1e-2
    assert torch.equal(values[2], values[0])


@pytest.mark.parametrize("public", [False, True], ids=["by the option itself", "by its public way alone"])
@pytest.mark.parametrize("kind", ["forward", "before"])
def test_hooks_of_a_module_that_the_first_call_did_not_call(
    kind: str, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it calls later is compiled by guards of torch.compile, which skip hooks unless they are told not to."""
    if public:
        monkeypatch.setattr(compiled, "_override", lambda: None)
    layer, mode = nn.Linear(3, 3, bias=False).double(), {"on": False}
    argmins = both(lambda x, y, batch: bowl(layer(x) if mode["on"] else x, y))
    assert_alike(argmins)
    mode["on"] = True
    values = [assert_alike(argmins)]
    with doubled(layer, kind):
        values.append(assert_alike(argmins))
    values.append(assert_alike(argmins))
    assert relative_error(values[1], values[0]) > 1e-2
    assert torch.equal(values[2], values[0])
    assert torch._dynamo.config.skip_nnmodule_hook_guards  # the user's own setting stays


def test_hooks_that_change_again_and_again() -> None:
    """They are compiled as often as torch.compile would, and then not any more."""
    layer = nn.Linear(3, 3, bias=False).double()
    argmins = both(lambda x, y, batch: bowl(layer(x), y))
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", CompileWarning)
        for factor in (1.0, 2.0, 3.0):
            handle = layer.register_forward_hook(lambda module, args, answer, factor=factor: factor * answer)
            assert_alike(argmins)
            assert_alike(argmins)
            handle.remove()
    assert ["hooks or modes" in str(w.message) for w in seen if w.category is CompileWarning] == [True]
