"""Which runs are stopped and resumed, and what must be the same in the end?"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.outer.objective import Objective
from pzobo.runs.randomness import scalar_types
from tests.helpers import normal

STEPS = 23
ROOT = Path(__file__).parent.parent.parent
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pzobo", "pytest", "torch._dynamo"])
OURS = tuple(
    os.path.join("pzobo", *path.split("/"))
    for path in (
        "outer/fitting.py",
        "outer/loop.py",
        "outer/state.py",
        "runs/folder.py",
        "runs/metrics.py",
        "runs/rows.py",
        "files.py",
    )
)


# The runs


def inner(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    rows, labels = batch
    return (rows @ y - labels).square().mean() + (x.exp() * y.square()).mean()


def noisy(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    """The same under dropout."""
    return inner(x, nn.functional.dropout(y, 0.3), batch)


def outer(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    rows, labels = batch
    return (rows @ y - labels).square().mean() + 0.01 * x.square().sum()


def guess(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    """A black box that draws from all three generators."""
    noise = torch.rand(5, dtype=x.dtype) * random.random() + torch.from_numpy(np.random.normal(size=5))
    return x.detach().sigmoid() + 0.1 * noise


def problem(loss: Any = inner) -> pzobo.Problem:
    rows = normal(40, 5)
    labels = rows @ torch.ones(5, dtype=torch.float64) + normal(40, seed=1)
    x0 = torch.zeros(5, dtype=torch.float64)
    return pzobo.Problem(loss, outer, x0, x0, (rows[:20], labels[:20]), (rows[20:], labels[20:]))


def draws(objective: Objective) -> dict[str, Any]:
    """An evaluation that draws random numbers, moves the streams, and leaves gradients behind."""
    with torch.enable_grad():
        objective.outer_loss().backward()
    return {"noise": torch.rand(()) + np.random.rand() + random.random()}


def run(name: str, out: Path | None, steps: int = STEPS, **options: Any) -> pzobo.Fit:
    torch.set_num_threads(1)
    options = {"lr": 0.05, "evaluate": draws, "evaluate_every": 4, "checkpoint_every": 3, **options}
    sampled = pzobo.PZOBO(1e-3, 2, pzobo.Gaussian(seed=5))
    gd = pzobo.GD(0.05, 4)
    if name == "pzobo-s":
        method = pzobo.Method(gd, sampled, warm_start=True, batch_size=6, outer_batch_size=7)
        options["scheduler"] = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: np.cos(k / 20))
        return pzobo.fit(problem(noisy), method, steps, out=out, **options)
    if name == "black box":
        method = pzobo.Method(pzobo.BlackBox(guess), pzobo.PZOBO(0.1))
        return pzobo.fit(problem(), method, steps, out=out, optimizer=momentum, **options)
    assert name == "hozog"
    method = pzobo.HOZOG(gd, 1e-3, 2, pzobo.Gaussian(seed=5), batch_size=6)
    return pzobo.fit(problem(noisy), method, steps, out=out, **options)


def slowly(out: Path) -> None:
    run("pzobo-s", out, steps=10**6, checkpoint_every=1)


def momentum(tensors: list[Tensor], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr, momentum=0.9)


RUNS = ["pzobo-s", "black box", "hozog"]


# What must be the same


def assert_same(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys(), where
        for key in a:
            if key not in ("seconds", "taken", "memory", "metrics"):
                assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (s, t) in enumerate(zip(a, b, strict=True)):
            assert_same(s, t, f"{where}[{i}]")
    else:
        assert a == b, where


def assert_same_run(a: Path, b: Path) -> None:
    """Everything on the disk but times and memory: x, optimizer, schedule, streams, random numbers, rows."""
    assert_same(rows(a), rows(b), "metrics")
    with torch.serialization.safe_globals(scalar_types()):
        assert_same(*(torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (a, b)), "checkpoint")
    ended = [json.loads((folder / "result.json").read_text()) for folder in (a, b)]
    assert [e["stopped"] for e in ended] == ["steps"] * 2
    assert sorted(p.name for p in a.iterdir()) == sorted(p.name for p in b.iterdir())


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == list(range(STEPS + 1))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    for name in RUNS:
        run(name, folder / name)
    return {name: folder / name for name in RUNS}
