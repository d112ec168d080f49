"""What does Ctrl-C do to the command line? One line says where the runs are, and they go on from there."""

import os
import signal
import subprocess
import sys
import time

import pytest

SMALL = ["--d", "8", "--n", "40", "--also-N", "--seeds", "2", "--no-compile", "--methods", "direct", "pzobo"]
LONG = ["run", "hr-linear", *SMALL, "--steps", "100000", "--checkpoint-every", "50", "--evaluate-every", "0"]
CASES = {
    "run": ([*LONG, "--workers", "2"], "--resume"),
    "run in this process": ([*LONG, "--workers", "0"], "--resume"),
    "demo": (["demo", "--steps", "100000"], "go on with the same command."),
    "reproduce": (["reproduce", "--quick"], "--resume"),
    "theory": (["theory", "--quick"], "Nothing was written"),
}


def ctrl_c(words, folder, ready):
    """Start a command as a terminal does, press Ctrl-C when it is at work, and wait; what it said last."""
    command = [sys.executable, "-m", "pzobo.cli", *words]
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(
            command,
            cwd=folder,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process,
    ):
        for _ in range(3000):
            assert process.poll() is None, (folder / "said").read_text()
            if ready(folder):
                break
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(120)
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return code, (folder / "said").read_text()
        time.sleep(0.1)
    raise AssertionError("a worker outlives the command")


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_where_the_runs_are(name, tmp_path):
    words, sentence = CASES[name]

    def ready(folder):
        if name == "theory":
            return "2/20" in (folder / "said").read_text()
        return any(path.read_bytes().count(b"\n") > 2 for path in folder.rglob("metrics.jsonl"))

    code, said = ctrl_c(words, tmp_path, ready)
    assert code == 130
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith("Stopped. ")
    assert sentence in last
    assert said.count("Stopped") == 1
    if name.startswith("run"):
        assert "in runs;" in last
        assert list((tmp_path / "runs").rglob("checkpoint.pt")), "what was in work is saved"
        assert not list((tmp_path / "runs").rglob("result.json"))


def test_a_stopped_experiment_goes_on(tmp_path):
    words = [*LONG[: LONG.index("--steps")], "--steps", "400", "--checkpoint-every", "0", "--workers", "2"]
    slow = [*words[: words.index("400")], "100000", *words[words.index("400") + 1 :]]
    ctrl_c(slow, tmp_path, lambda folder: any(p.stat().st_size > 3000 for p in folder.rglob("metrics.jsonl")))
    saved = list(tmp_path.rglob("checkpoint.pt"))
    assert saved
    steps = max(path.parent.joinpath("metrics.jsonl").read_bytes().count(b"\n") for path in saved)
    words[words.index("400")] = str(steps + 20)
    again = subprocess.run(
        [sys.executable, "-m", "pzobo.cli", *words, "--resume"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    lines = [path.read_bytes().count(b"\n") for path in tmp_path.rglob("metrics.jsonl")]
    assert lines == [steps + 21] * 4
