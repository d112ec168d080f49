"""Does peak memory grow with N or, for PZOBO with batching="loop", with Q? `python -m benchmarks.memory`.

Each case runs in a process of its own. What is reported is how far the resident memory rose, at its highest, over
where it stood before the outer step (Linux). x and y take 8 MB each, so one more copy of either can be seen. malloc
is told to hand blocks of that size back at once; otherwise it keeps freed ones and they count as used.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.environment import OUT, write

SIZE = 2_000_000
CASES: dict[str, tuple[str, int, int, bool]] = {
    "PZOBO N=10 Q=1": ("PZOBO", 10, 1, False),
    "PZOBO N=1000 Q=1": ("PZOBO", 1000, 1, False),
    "PZOBO N=10 Q=64": ("PZOBO", 10, 64, False),
    "PZOBO N=10, compiled": ("PZOBO", 10, 1, True),
    "PZOBO N=1000, compiled": ("PZOBO", 1000, 1, True),
    "CG N=10": ("CG", 10, 1, False),
    "CG N=1000": ("CG", 1000, 1, False),
    "CG N=10, compiled": ("CG", 10, 1, True),
    "CG N=1000, compiled": ("CG", 1000, 1, True),
    # What growth looks like. Compiled, it is one y for each step.
    "Unrolled N=10": ("Unrolled", 10, 1, False),
    "Unrolled N=100": ("Unrolled", 100, 1, False),
    "Unrolled N=10, compiled": ("Unrolled", 10, 1, True),
    "Unrolled N=100, compiled": ("Unrolled", 100, 1, True),
}


def measure(kind: str, steps: int, directions: int, compile: bool) -> float:
    """Peak growth in MB over one outer step, after one small step that loads what is loaded once."""
    import torch

    import pzobo

    jacobians: dict[str, Any] = {
        "PZOBO": pzobo.PZOBO(directions=directions, batching="loop", sampler=pzobo.Gaussian(seed=0)),
        "CG": pzobo.Implicit(pzobo.CG(10, tol=0.0)),
        "Unrolled": pzobo.Unrolled(),
    }

    def outer_step(size: int) -> float:
        x = torch.ones(size, requires_grad=True)
        y0, target = torch.zeros(size), torch.ones(size)
        argmin = pzobo.Argmin(
            lambda z, y, batch: 0.5 * (y - z * batch).square().sum(),
            solver=pzobo.GD(lr=0.1, steps=steps),
            jacobian=jacobians[kind],
            compile=compile,
            audit=False,
        )
        if compile:  # what is compiled, and read from files, is not what is measured
            torch.autograd.backward(argmin(x, y0, target).square().sum())
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM, the highest VmRSS, back to the present
        torch.autograd.backward(argmin(x, y0, target).square().sum())
        return (_status("VmHWM") - before) / 1024

    outer_step(1000)
    return outer_step(SIZE)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise SystemExit(f"/proc/self/status has no {name}: this benchmark needs Linux")
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "memory.json")
    parser.add_argument("--case", choices=CASES, help="measure only this case, in this process")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*CASES[arguments.case])))
        return
    peaks = {}
    print(f"peak growth of resident memory in one outer step, x and y of {4 * SIZE / 2**20:.1f} MB each")
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--case", case]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        peaks[case] = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        print(f"  {case:<26} {peaks[case]:8.1f} MB")
    write(arguments.out, {"peak MB": peaks, "targets": targets.judge(targets.MEMORY, peaks)})


if __name__ == "__main__":
    main()
