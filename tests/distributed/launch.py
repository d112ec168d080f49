"""How does a test start ranks? As a user does, by torchrun; or one process without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def command(ranks: int, *arguments: Any, options: tuple[str, ...] = ("--standalone",)) -> list[str]:
    """The command line of so many ranks; 0 is a process without torchrun."""
    if ranks == 0:
        return [sys.executable, *map(str, arguments)]
    run = [sys.executable, "-m", "torch.distributed.run", *options, f"--nproc-per-node={ranks}"]
    return [*run, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **more}


def launch(ranks: int, *arguments: Any, code: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a module or script with so many ranks, until it ends."""
    found = subprocess.run(
        command(ranks, *arguments), capture_output=True, text=True, env=environment(**more), cwd=ROOT, timeout=240
    )
    assert code is None or found.returncode == code, found.stderr[-20000:]
    return found


def started(ranks: int, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """The same, to be disturbed while it runs."""
    return subprocess.Popen(
        command(ranks, *arguments, **options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
