"""Does a signal end a run at a step, save it, and say how to go on?"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.outer.objective import Objective
from tests.outer.resumed import (
    CONTEXT,
    ROOT,
    STEPS,
    assert_same,
    assert_same_run,
    guess,
    problem,
    rows,
    run,
    slowly,
    whole,
)

__all__ = ["whole"]
"""A fixture."""


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """A job that a script starts in the background has Ctrl-C ignored; these tests send it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def signalled(number: int, at: int, seen: list[int]) -> Any:
    """A black box that sends its own process a signal."""

    def box(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        seen.append(1)
        if len(seen) == at:
            os.kill(os.getpid(), number)
        return guess(x, y0, batch)

    return box


def step_of(call: int) -> int:
    """In which step a call is made: there are two in each, and the audit of steps 1, 2, 4, 8, ... makes one more."""
    step = calls = 0
    while calls < call:
        step += 1
        calls += 2 + (step & (step - 1) == 0)
    return step


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
        assert torch.load(tmp_path / "run" / "checkpoint.pt")["step"] == step_of(at)
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
from tests.outer.resumed import run

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
