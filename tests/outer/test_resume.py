"""Does a run that is stopped at any moment, and resumed, end in the same bits as one that never was?"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pzobo
from tests.outer.resumed import (
    CONTEXT,
    OURS,
    RUNS,
    STEPS,
    assert_same,
    assert_same_run,
    inner,
    outer,
    problem,
    run,
    slowly,
    whole,
)

__all__ = ["whole"]
"""A fixture."""


# kill -9


def until(name: str, out: Path, line: int) -> None:
    """The run, killed when so many lines of the outer loop's own code were executed (0: count them)."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        if event == "line":
            count += 1
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    run(name, out, resume=True)
    sys.settrace(None)
    if not line:
        (out / "lines").write_text(str(count))


def in_process(target: Any, *arguments: Any) -> int | None:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize("name", RUNS)
def test_killed_again_and_again(name: str, whole: dict[str, Path], tmp_path: Path) -> None:
    """At random lines of the code that loops and writes, until the run is through."""
    assert in_process(until, name, tmp_path / "count", 0) == 0
    total = int((tmp_path / "count" / "lines").read_text())
    choose, codes = random.Random(name), []
    while not codes or codes[-1]:
        codes.append(in_process(until, name, tmp_path / "run", choose.randrange(1, total // 2)))
        assert codes[-1] in (0, -signal.SIGKILL)
    assert len(codes) > 3
    assert_same_run(tmp_path / "run", whole[name])


def test_killed_at_the_start_and_at_the_end(whole: dict[str, Path], tmp_path: Path) -> None:
    """Between the first files, and between the last: one line after the other."""
    assert in_process(until, "black box", tmp_path / "count", 0) == 0
    total = int((tmp_path / "count" / "lines").read_text())
    for line in (20, 34, 48, 66, 90, total - 60, total - 30, total - 9):
        out = tmp_path / str(line)
        assert in_process(until, "black box", out, line) == -signal.SIGKILL
        run("black box", out, resume=True)
        assert_same_run(out, whole["black box"])


def test_killed_from_outside_at_any_time(whole: dict[str, Path], tmp_path: Path) -> None:
    """By the clock, so that it happens inside of torch and of the system too; then the run goes its way alone."""
    choose = random.Random(0)
    for attempt in range(3):
        out = tmp_path / str(attempt)
        process = CONTEXT.Process(target=slowly, args=(out,))
        process.start()
        while len((out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else "") < 3:
            assert process.is_alive()
            time.sleep(0.005)
        time.sleep(choose.uniform(0, 0.05))
        process.kill()
        process.join()
        done = torch.load(out / "checkpoint.pt", weights_only=False)["step"] if (out / "checkpoint.pt").exists() else 0
        assert done < STEPS
        run("pzobo-s", out, resume=True)
        assert_same_run(out, whole["pzobo-s"])


def test_half_written_files(whole: dict[str, Path], tmp_path: Path) -> None:
    run("hozog", tmp_path, steps=12, checkpoint_every=6)
    half = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / ".checkpoint.pt.new").write_bytes(half[: len(half) // 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "outer_')
    (tmp_path / "environment.json").unlink()
    run("hozog", tmp_path, resume=True)
    assert_same_run(tmp_path, whole["hozog"])


# Stopping and going on by other means


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("how", ["more steps", "target", "seconds", "finished", "warm up", "other intervals"])
def test_resumed_in_the_same_process(name: str, how: str, whole: dict[str, Path], tmp_path: Path) -> None:
    out, options = tmp_path / "run", {"resume": True}
    if how == "more steps":
        run(name, out, steps=7)
        run(name, out, steps=8, resume=True)
    elif how == "target":
        stopped = run(name, out, target=lambda row: row["step"] == 8)
        again = run(name, out, target=lambda row: row["step"] == 8, resume=True)
        assert (stopped.stopped, stopped.steps, len(stopped.history)) == ("target", 8, 9)
        assert again.history == stopped.history
        assert torch.equal(again.x, stopped.x)
        assert torch.equal(again.y, stopped.y)
    elif how == "seconds":
        stopped = run(name, out, seconds=1e-9, evaluate_every=1)
        assert (stopped.stopped, stopped.steps) == ("seconds", 1)
        # The row that ended the run was evaluated, which the run that was never stopped did not do.
        options["evaluate_every"] = 1
        run(name, tmp_path / "all", evaluate_every=1)
        whole = {name: tmp_path / "all"}
    elif how == "finished":
        first = run(name, out)
        second = run(name, out, resume=True)
        assert second.history == first.history
        assert torch.equal(second.y, first.y)
    elif how == "warm up":
        run(name, out, steps=5, warm_up=True)
        options["warm_up"] = True
    else:
        run(name, out, steps=10, checkpoint_every=0)
    run(name, out, **options)
    assert_same_run(out, whole[name])


def test_fewer_steps_than_were_made(tmp_path: Path) -> None:
    run("hozog", tmp_path, steps=7)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(pzobo.errors.OptionError, match=r"steps=5.*has made 7"):
        run("hozog", tmp_path, steps=5, resume=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_method_can_be_run_twice(whole: dict[str, Path]) -> None:
    """A sampler with a seed begins its stream anew with each run, and the caller's generators stay where they are."""
    method = pzobo.Method(pzobo.GD(0.05, 4), pzobo.PZOBO(1e-3, 1, pzobo.Gaussian(seed=5)))
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    a, b = (pzobo.fit(problem(), method, 5, lr=0.1) for _ in range(2))
    assert torch.equal(a.x, b.x)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_buffers_of_modules_belong_to_the_run(tmp_path: Path) -> None:
    def go(steps: int, out: Path | None, **options: Any) -> tuple[pzobo.Fit, nn.Module]:
        norm = nn.BatchNorm1d(5, dtype=torch.float64)

        def smoothed(x: Tensor, y: Tensor, batch: Any) -> Tensor:
            norm(batch[0])
            return outer(x, y, ((batch[0] - norm.running_mean), batch[1]))

        method = pzobo.Method(pzobo.GD(0.05, 4), pzobo.Unrolled(), outer_batch_size=6)
        task = pzobo.Problem(inner, smoothed, *(problem().x0,) * 2, problem().train, problem().val)
        return pzobo.fit(task, method, steps, lr=0.05, out=out, save={"norm": norm}, **options), norm

    (expected, norm), _ = go(9, None), go(4, tmp_path)
    found, resumed = go(9, tmp_path, resume=True, evaluate_every=1)
    assert torch.equal(found.x, expected.x)
    assert torch.equal(norm.running_mean, resumed.running_mean)
    assert norm.num_batches_tracked == 9
    with pytest.raises(pzobo.errors.CheckpointError, match=r"save=.*\[\].*norm"):
        run_without_save(tmp_path, found)


def run_without_save(out: Path, found: pzobo.Fit) -> None:
    def smoothed(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return outer(x, y, batch)

    smoothed.__qualname__ = "test_buffers_of_modules_belong_to_the_run.<locals>.go.<locals>.smoothed"
    method = pzobo.Method(pzobo.GD(0.05, 4), pzobo.Unrolled(), outer_batch_size=6)
    task = pzobo.Problem(inner, smoothed, *(problem().x0,) * 2, problem().train, problem().val)
    pzobo.fit(task, method, 9, lr=0.05, out=out, resume=True)


def test_a_response_that_has_become_noise_does_not_end_a_resumed_run(tmp_path: Path) -> None:
    """The first step of a run refuses it; a run that has made steps is only warned, resumed or not."""
    scale = 1 + 0.01 * torch.arange(100.0)

    def fading(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return 0.5 * (y - 1e3 - scale * torch.where(x > 0.72, x, 0.72 + 1e-3 * (x - 0.72))).square().sum()

    def f(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return 10 * x.sum() + 1e-6 * y.sum()

    def go(x0: float, steps: int, **options: Any) -> pzobo.Fit:
        task = pzobo.Problem(fading, f, torch.full((1,), x0), torch.zeros(100))
        method = pzobo.Method(pzobo.GD(1.0, 1), pzobo.PZOBO(0.01, sampler=pzobo.Rademacher()))
        return pzobo.fit(task, method, steps, lr=0.05, **options)

    with pytest.raises(pzobo.errors.SmoothingError, match="roundings"):
        go(0.6, 9)
    with pytest.warns(pzobo.errors.NoResponseWarning, match="roundings"):
        expected = go(1.0, 9)
    go(1.0, 6, out=tmp_path)
    with pytest.warns(pzobo.errors.NoResponseWarning, match="roundings"):
        found = go(1.0, 9, out=tmp_path, resume=True)
    assert torch.equal(found.x, expected.x)


@pytest.mark.parametrize("warm_start", [False, True])
def test_compiled(warm_start: bool, tmp_path: Path) -> None:
    method = pzobo.Method(
        pzobo.GD(0.05, 4), pzobo.PZOBO(1e-3, 2), warm_start=warm_start, batch_size=6, outer_batch_size=7, compile=True
    )
    expected = pzobo.fit(problem(), method, 9, lr=0.05, warm_up=True)
    pzobo.fit(problem(), method, 5, lr=0.05, out=tmp_path)
    found = pzobo.fit(problem(), method, 9, lr=0.05, out=tmp_path, resume=True)
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.y, expected.y)
    assert_same(found.history, expected.history)
