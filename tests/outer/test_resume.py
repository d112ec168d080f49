"""Does a run that is stopped at any moment, and resumed, end in the same bits as one that never was?"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
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


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """A job that a script starts in the background has Ctrl-C ignored; these tests send it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def slowly(out: Path) -> None:
    run("pzobo-s", out, steps=10**6, checkpoint_every=1)


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


# Signals


def signalled(number: int, at: int, seen: list[int]) -> Any:
    """A black box that sends its own process a signal."""

    def box(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        seen.append(1)
        if len(seen) == at:
            os.kill(os.getpid(), number)
        return guess(x, y0, batch)

    return box


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("at", [1, 14, 10**9], ids=["first step", "later", "never"])
def test_a_signal_ends_the_step_and_saves(number: int, error: Any, at: int, tmp_path: Path) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def go(out: Path, at: int, **options: Any) -> pzobo.Fit:
        method = pzobo.Method(pzobo.BlackBox(signalled(number, at, [])), pzobo.PZOBO(0.1))
        return pzobo.fit(problem(), method, 10, lr=0.05, out=out, checkpoint_every=0, **options)

    expected = go(tmp_path / "whole", 0)
    if at == 10**9:
        go(tmp_path / "run", at)
    else:
        with pytest.raises(error) as caught:
            go(tmp_path / "run", at)
        if error is SystemExit:
            assert caught.value.code == 128 + signal.SIGTERM
        assert torch.load(tmp_path / "run" / "checkpoint.pt")["step"] == (at + 1) // 2  # two calls make a step
        assert not (tmp_path / "run" / "result.json").exists()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    found = go(tmp_path / "run", 0, resume=True)
    assert torch.equal(found.x, expected.x)
    assert_same(found.history, expected.history)


def test_a_signal_in_the_last_evaluation_is_not_lost(tmp_path: Path) -> None:
    def evaluate(objective: Objective) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(KeyboardInterrupt):
        run("hozog", tmp_path, evaluate=evaluate, evaluate_every=0)
    assert len(rows(tmp_path)) == STEPS + 1
    assert json.loads((tmp_path / "result.json").read_text())["stopped"] == "steps"


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    def box(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    with pytest.raises(KeyboardInterrupt):
        pzobo.fit(problem(), pzobo.Method(pzobo.BlackBox(box), pzobo.PZOBO()), 10, lr=0.1, out=tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


SCRIPT = """
import sys
from pathlib import Path
from tests.outer.test_resume import run

def evaluate(objective):
    print("at work", flush=True)
    return {}

folder = Path(sys.argv[1]) if sys.argv[1] else None
run("pzobo-s", folder, steps=10**6, checkpoint_every=5, evaluate=evaluate, evaluate_every=50)
print("still here")
"""


@pytest.mark.parametrize("folder", ["run", ""], ids=["with a folder", "without"])
def test_ctrl_c_in_a_script_says_where_the_run_is(folder: str, whole: dict[str, Path], tmp_path: Path) -> None:
    """What a user sees in a terminal: the last line is the sentence, and the script does not go on."""
    out = tmp_path / folder if folder else ""
    command = [sys.executable, "-c", SCRIPT, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "still here" not in printed
    last = said.splitlines()[-1]
    if not folder:
        assert re.fullmatch(r"KeyboardInterrupt: Stopped after \d+ outer steps\. .*no folder: give out=.*", last)
        return
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=False)["step"]
    assert last == (
        f"KeyboardInterrupt: Stopped after {step} outer steps. Saved in {out} after {step}: "
        "the same call with resume=True goes on from there."
    )


def test_what_ctrl_c_raises(tmp_path: Path) -> None:
    """A KeyboardInterrupt, which no `except Exception` takes, without another traceback in front of it."""

    def box(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    method = pzobo.Method(pzobo.BlackBox(box), pzobo.PZOBO())
    for out, words in ((tmp_path, "no checkpoint yet"), (None, "Nothing is saved")):
        with pytest.raises(KeyboardInterrupt, match=f"Stopped after 0 outer steps.*{words}") as caught:
            pzobo.fit(problem(), method, 10, lr=0.1, out=out)
        assert not isinstance(caught.value, Exception)
        assert caught.value.__suppress_context__

    class Never:
        def start(self, problem: Any, seed: int = 0) -> Objective:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="before the first outer step"):
        pzobo.fit(problem(), Never(), 10, lr=0.1, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As in a background job of a shell, which a Ctrl-C must not reach."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        method = pzobo.Method(pzobo.BlackBox(signalled(signal.SIGINT, 3, [])), pzobo.PZOBO(0.1))
        assert pzobo.fit(problem(), method, 5, lr=0.05).steps == 5
    finally:
        signal.signal(signal.SIGINT, before)


def test_terminated_from_outside(whole: dict[str, Path], tmp_path: Path) -> None:
    process = CONTEXT.Process(target=slowly, args=(tmp_path,))
    process.start()
    while not (tmp_path / "checkpoint.pt").exists():
        assert process.is_alive()
        time.sleep(0.005)
    with pytest.raises(pzobo.errors.RunFolderError, match="in use"):
        run("pzobo-s", tmp_path, resume=True)
    process.terminate()
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    run("pzobo-s", tmp_path, resume=True)
    assert_same_run(tmp_path, whole["pzobo-s"])


def test_in_another_thread(whole: dict[str, Path], tmp_path: Path) -> None:
    thread = threading.Thread(target=run, args=("pzobo-s", tmp_path))
    thread.start()
    thread.join()
    assert_same_run(tmp_path, whole["pzobo-s"])


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
