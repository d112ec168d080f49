"""How long does compiling take, and what makes it happen again? `python -m benchmarks.compile_time`."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is imported: what an earlier run compiled must not count. Precompiled headers are beside other files.
_CACHE = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TMPDIR"] = tempfile.tempdir = _CACHE.name

import torch  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

import pzobo  # noqa: E402
from benchmarks import ours, targets  # noqa: E402
from benchmarks.environment import OUT, write  # noqa: E402
from benchmarks.problems import PROBLEMS  # noqa: E402
from benchmarks.timing import seconds  # noqa: E402


def measure() -> dict[str, float]:
    """Each event in turn, in one process: its seconds and the number of graphs compiled for it."""
    torch.set_num_threads(1)  # with more, a busy machine makes warm calls take a hundred times as long
    problem = PROBLEMS["linear small"]()
    jacobian = pzobo.PZOBO(mu=problem.mu, sampler=pzobo.Gaussian(seed=0))
    x = tuple(t.clone().requires_grad_() for t in problem.x0)

    def argmin(steps: int, lr: float = problem.lr) -> Any:
        solver = pzobo.GD(lr, steps)
        return pzobo.Argmin(problem.inner_loss, solver=solver, jacobian=jacobian, prepare=problem.prepare, compile=True)

    inner = argmin(problem.steps)

    def outer_step(solve: Any = inner, rows: int | None = None) -> Callable[[], None]:
        def step() -> None:
            batch = tuple(t[:rows] for t in problem.train)
            torch.autograd.backward(problem.outer_loss(x, solve(x, problem.y0, batch), problem.val))
            with torch.no_grad():
                for t in x:
                    t -= 1e-3 * torch.randn_like(t)

        return step

    events = {
        "first call": outer_step(),
        "x changes": outer_step(),
        "N changes": outer_step(argmin(35)),
        "another learning rate": outer_step(argmin(problem.steps, lr=problem.lr / 2)),
        "smaller last batch": outer_step(rows=313),
        "smaller last batch again": outer_step(rows=313),
        "full batch again": outer_step(),
        "another batch size": outer_step(rows=77),
    }
    found: dict[str, float] = {}
    for name, event in events.items():
        before = counters["stats"]["unique_graphs"]
        found[f"{name}: seconds"] = seconds(event)
        found[f"{name}: compilations"] = counters["stats"]["unique_graphs"] - before
        print(f"  {name:<26} {found[f'{name}: seconds']:8.3f} s {found[f'{name}: compilations']:4.0f} compilations")
    return found


def first_calls() -> dict[str, float]:
    """The first outer step of each compiled contender on each problem, in a process and with a cache of its own."""
    found = {}
    for name in PROBLEMS:
        for contender in ours.contenders(PROBLEMS[name]()):
            if contender.name.endswith(", compiled"):
                call = [sys.executable, "-m", "benchmarks.compile_time", "--first", name, contender.name]
                answer = subprocess.run(call, capture_output=True, text=True, check=True).stdout
                found[f"{name}: {contender.name}"] = float(answer)
                print(f"  {name:<14} {contender.name:<40} {float(answer):6.2f} s")
    return found


def first_call(name: str, contender: str) -> float:
    torch.set_num_threads(1)
    (step,) = [one.step for one in ours.contenders(PROBLEMS[name]()) if one.name == contender]
    return seconds(step)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "compile_time.json")
    parser.add_argument("--first", nargs=2, metavar=("PROBLEM", "CONTENDER"), help="only this one's first outer step")
    arguments = parser.parse_args()
    if arguments.first:
        print(first_call(*arguments.first))
        return
    found = measure()
    firsts = first_calls()
    found["slowest first call"] = max(firsts.values())
    write(arguments.out, {"events": found, "first": firsts, "targets": targets.judge(targets.COMPILE, found)})


if __name__ == "__main__":
    main()
