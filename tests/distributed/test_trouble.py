"""What does the user see when ranks fail, drift or are stopped? One sentence; and the run goes on in the same bits."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import psutil
import pytest
import torch

from tests.distributed.launch import launch, started
from tests.distributed.trouble import run
from tests.outer.resumed import assert_same_run

STEPS = 60
SCRIPT = ("-m", "tests.distributed.trouble")


def test_a_rank_that_fails_is_heard_once_and_ends_all() -> None:
    said = launch(2, *SCRIPT, "fails", code=None).stderr
    assert re.search(
        r"\[rank0\]: pzobo\.errors\.RankError: Rank 1 on \S+ failed\. ValueError: the licence has run", said
    )
    assert said.count("ValueError: the licence has run out") == 1
    assert 'raise ValueError("the licence has run out")' in said, "where it was raised"
    assert "[rank1]" not in said


def test_what_all_ranks_refuse_is_said_once() -> None:
    said = launch(2, *SCRIPT, "refused", code=None).stderr
    assert said.count("pzobo.errors.OptionError: steps=0") == 1


def test_ranks_that_drift_are_told_what_differs(tmp_path: Path) -> None:
    launch(2, *SCRIPT, "drifts", tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    refused = {"sum", "weighted", "noisy", "few", "unlike"}
    assert first.keys() == second.keys() == {"key", "x", "y", "v", "later", "run"} | refused
    for name in ("sum", "weighted", "noisy"):
        assert "the inner loss is no mean over the rows of its batch" in first[name]
    assert "a batch of 1 rows is too small for 2 ranks" in first["few"]
    assert "found [3, 4]" in first["unlike"]
    assert "key differs. The directions of the ranks differ: seed all ranks alike" in first["key"]
    assert "x differs in tensor 0 of shape (5,): 5 numbers, by at most 1e-07" in first["x"]
    assert "y differs in tensor 0" in first["y"]
    assert "v differs in tensor 0" in first["v"]
    assert "by at most 0.001" in first["v"]
    assert first["later"].startswith("31: "), "at call 32"
    assert "the problem is Problem" in first["run"]


# Stopped and resumed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, STEPS, evaluate=lambda objective: {}, evaluate_every=10)
    return folder


def same_run(found: Path, whole: Path) -> None:
    import tests.outer.resumed as resumed

    before, resumed.STEPS = resumed.STEPS, STEPS
    try:
        assert_same_run(found, whole)
    finally:
        resumed.STEPS = before


def test_ctrl_c_and_another_number_of_ranks(whole: Path, tmp_path: Path) -> None:
    """Two ranks, Ctrl-C; three ranks, of which rank 0 is on another disk; one process: the bits of a run that was never
    stopped."""
    out = tmp_path / "run"
    with started(2, *SCRIPT, "go_on", out, 10**6) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert (
        len(re.findall(r"KeyboardInterrupt: Stopped after \d+ outer steps\. Saved in .*resume=True goes on", said)) == 1
    )
    assert "[rank1]" not in said
    reached = torch.load(out / "checkpoint.pt", weights_only=False)["step"]
    assert 0 < reached < STEPS - 10, "too fast a machine for this test: give it more steps"
    moved = tmp_path / "other disk"
    launch(3, *SCRIPT, "go_on", moved, STEPS - 10, out)
    run(moved, STEPS, evaluate=lambda objective: {}, evaluate_every=10)
    same_run(moved, whole)


def test_ranks_that_are_killed_start_again(whole: Path, tmp_path: Path) -> None:
    """kill -9 at random moments, of any rank: torchrun starts all again, and the end has the same bits."""
    out, kills = tmp_path / "run", 2
    options = ("--standalone", f"--max-restarts={kills + 1}", "--monitor-interval=0.1")
    draw = random.Random(0)
    with started(2, *SCRIPT, "go_on", out, STEPS, options=options) as process:
        assert process.stdout is not None
        for _ in range(kills):
            for _ in range(draw.randint(1, 2)):
                assert process.stdout.readline() == "at work\n"
            victims = [child for child in psutil.Process(process.pid).children() if "go_on" in child.cmdline()]
            assert len(victims) == 2
            draw.choice(victims).kill()
        said, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints[-20000:]
    assert said.endswith("done\n")
    same_run(out, whole)
