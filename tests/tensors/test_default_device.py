"""Does `torch.set_default_device` change anything? No: tensors that the library makes for itself name their device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from tests.helpers import normal

ROOT = Path(pzobo.__file__).parent
ROOMS = ("argmin.py", "solvers.py")
ROOMS += ("tensors", "distributed", "zeroth_order", "inner", "jacobians", "outer", "runs", "meta")
ROOMS += ("algorithms", "response")
MAKERS = {"rand", "randn", "randint", "randperm", "zeros", "ones", "empty", "full", "tensor", "arange", "eye"}


@pytest.fixture
def wrong() -> Iterator[None]:
    """A default device where nothing can be computed."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def inner_loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return (batch @ y - x[0]).square().mean() + (x.exp() * y.square()).mean()


def outer_loss(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return (batch @ y - 1).square().mean()


def seeded(kind: Any, *args: Any, **options: Any) -> Any:
    return kind(*args, sampler=pzobo.Gaussian(seed=0), **options)


METHODS: dict[str, Any] = {
    "PZOBO": pzobo.Method(pzobo.GD(0.1, 3), seeded(pzobo.PZOBO, 1e-2, 3)),
    "PZOBO-S": pzobo.Method(pzobo.GD(0.1, 3), pzobo.PZOBO(1e-2, 9, pzobo.Orthogonal(seed=0)), batch_size=4),
    "Adam": pzobo.Method(pzobo.Adam(0.1, 3), pzobo.Unrolled(), warm_start="state"),
    "CG": pzobo.Method(pzobo.GD(0.1, 3), pzobo.Implicit(pzobo.CG(3), "difference"), batch_size=4, jacobian_batches=2),
    "Nudged": pzobo.Method(pzobo.HeavyBall(0.1, 0.5, 3, tol=1e-9), pzobo.Nudged()),
    "HOZOG": seeded(pzobo.HOZOG, pzobo.GD(0.1, 3), 1e-2, 3),
    "SABA": pzobo.algorithms.SABA(0.1, batch_size=4),
    "SUSTAIN": pzobo.algorithms.SUSTAIN(0.1, batch_size=4),
    "DeltaSTN": pzobo.algorithms.DeltaSTN(0.1),
}


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """Without a default device."""
    return {name: fitted(problem(), method) for name, method in METHODS.items()}


def problem() -> pzobo.Problem:
    rows = normal(24, 3)
    x0 = torch.zeros(3, dtype=rows.dtype, device="cpu")
    return pzobo.Problem(inner_loss, outer_loss, x0, x0, rows[:12], rows[12:])


def fitted(problem: pzobo.Problem, method: Any, **options: Any) -> Tensor:
    found: Tensor = pzobo.fit(problem, method, 3, lr=0.1, evaluate_every=2, **options).x
    return found


@pytest.mark.filterwarnings("ignore::pzobo.errors.AuditWarning")
@pytest.mark.parametrize("name", METHODS)
def test_it_changes_nothing(name: str, expected: dict[str, Tensor], tmp_path: Path, request: Any) -> None:
    given = problem()
    request.getfixturevalue("wrong")
    for resume in (False, True):
        found = fitted(given, METHODS[name], out=tmp_path / "run", resume=resume)
        assert torch.equal(found, expected[name])


def test_what_is_made_names_its_device() -> None:
    """In the rooms that compute; what makes problems and data may put them where the user wants them by default."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) or [ROOT / room]]
    silent = [f"{path.relative_to(ROOT)}:{call.lineno}" for path in files for call in _silent(path)]
    assert not silent


def _silent(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        maker = ast.unparse(node.func.value) == "torch" and node.func.attr in MAKERS
        if maker and "device" not in {word.arg for word in node.keywords}:
            yield node
