"""Do the commands of the page "More than one machine" work as they stand?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launch import ROOT, environment

PAGE = (ROOT / "docs" / "distributed.md").read_text()
BLOCK = re.search(r"```bash\n(.*?)```", PAGE, re.S)
assert BLOCK is not None
COMMANDS = BLOCK[1].splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder like that of a clone, in which the runs are written."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def said(command: str, place: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = subprocess.run(
        command.split(), capture_output=True, text=True, cwd=place, env=environment(PATH=path), timeout=300
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def test_three_commands_are_shown() -> None:
    assert len(COMMANDS) == 3
    assert ["--shard" in PAGE, "joblib.parallel_config" in PAGE] == [True, True]


def test_ranks_end_in_the_bits_of_one_process(place: Path) -> None:
    """Two ranks; the other command finds the run ended, on one rank; a process alone makes it anew."""
    first = said(COMMANDS[0], place)
    assert re.fullmatch(r"outer loss 56\.\d+ -> \d+\.\d+ in 20 steps\nchecksum of x: [0-9a-f]{8}\n", first)
    assert said(COMMANDS[1], place) == first
    (place / "runs" / "many-ranks").rename(place / "elsewhere")
    assert said("python examples/many_ranks.py", place) == first


def test_a_dask_cluster_has_the_bits_of_one_process(place: Path) -> None:
    printed = said(COMMANDS[2], place)
    before, after = map(float, re.findall(r"0\.\d{4}", printed))
    assert after < before
    assert printed.endswith("the same bits as one by one: True\n")
