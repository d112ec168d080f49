"""How does a benchmark of one step end? Its contenders race, and their times go beside the targets and into a file."""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.environment import OUT, write
from benchmarks.timing import Racer, Timing, race


def with_jax(found: list[Any], make: Callable[[], Any]) -> list[Any]:
    """The contenders and JAX's, if it is installed."""
    try:
        return [*found, make()]
    except ModuleNotFoundError as missing:
        print(f"no JAX: {missing.name} is not installed")
        return found


def run(
    name: str,
    about: str | None,
    contenders: Callable[[], Sequence[Any]],
    goals: Iterable[targets.Target],
    *,
    rounds: int,
    measure: tuple[str, Callable[[Timing], float]] = ("ms", lambda timing: timing.ms),
    wrong: Callable[[Sequence[Any]], list[str]] = lambda chosen: [],
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """The command `python -m benchmarks.NAME [--rounds N] [--out FILE]`.

    Args:
        rounds: by default.
        measure: the unit of the targets, and how it follows from a timing.
        wrong: the contenders whose values are wrong; with any the command fails.
        clock: what is measured: the time on the wall, or the processor's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / f"{name}.json")
    arguments = parser.parse_args()
    chosen: Sequence[Racer] = contenders()
    disagreeing = wrong(chosen)
    timings = race(chosen, arguments.rounds, clock)
    unit, number = measure
    measured = {timing.name: number(timing) for timing in timings}
    for timing in timings:
        low, high = timing.ms_quartiles
        print(f"{timing.name:<26} {measured[timing.name]:10.3f} {unit:<12} {low:9.3f}-{high:9.3f} ms a turn")
    verdicts = targets.judge(goals, measured)
    shown = {"timings": [asdict(timing) for timing in timings], unit: measured}
    write(arguments.out, {**shown, "targets": verdicts, "disagreeing": disagreeing})
    return 1 if disagreeing else 0
