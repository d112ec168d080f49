"""How long does a whole outer step take, contender by contender? `python -m benchmarks [--quick] [--only PATTERN]`."""

from benchmarks.environment import OUT, describe, use_one_thread, write

use_one_thread()

import argparse  # noqa: E402
import importlib  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from dataclasses import asdict  # noqa: E402
from fnmatch import fnmatchcase  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from benchmarks import targets  # noqa: E402
from benchmarks.contender import Contender, relative_error  # noqa: E402
from benchmarks.problems import PROBLEMS, Problem  # noqa: E402
from benchmarks.timing import race, seconds  # noqa: E402

SOURCES = {
    "plain": ("linear small", "linear large", "two-layer", "sparse HO"),
    "peers": ("linear small", "linear large"),
    "jax_peers": ("linear small", "linear large", "two-layer"),
    "ours": ("linear small", "linear large", "two-layer", "sparse HO"),
}
ROUNDS = {"linear small": 60, "linear large": 30, "two-layer": 15, "sparse HO": 12}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="such as 'linear small/*' or '*/*PZOBO*'")
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "speed.json")
    arguments = parser.parse_args()
    # The peers use deprecated names of torch; thousands of warnings in a timed loop would be timed too.
    warnings.filterwarnings("ignore")

    environment = describe()
    print(", ".join(f"{name} {version}" for name, version in environment["versions"].items() if version))
    print(f"{environment['cpu']}, {environment['threads']} thread")
    rows: dict[str, list[dict[str, Any]]] = {}
    wrong = []
    for name, make in PROBLEMS.items():
        problem = make()
        chosen = [c for c in _contenders(problem) if fnmatchcase(f"{name}/{c.name}", arguments.only)]
        if chosen:
            rounds = max(3, ROUNDS[name] // (5 if arguments.quick else 1))
            rows[name] = _measure(problem, chosen, rounds)
            _show(name, rows[name])
            wrong += [f"{name}/{row['name']}" for row in rows[name] if not row["agrees"] or not row["finite"]]
    medians = {f"{problem}/{row['name']}": row["ms"] for problem, table in rows.items() for row in table}
    verdicts = targets.judge(targets.SPEED, medians)
    print("\nvalues: " + ("all agree" if not wrong else "NOT in agreement: " + ", ".join(wrong)))
    write(arguments.out, {"problems": rows, "targets": verdicts, "disagreeing": wrong})
    return 1 if wrong else 0


def _contenders(problem: Problem) -> list[Contender]:
    found: list[Contender] = []
    for source, names in SOURCES.items():
        if problem.name in names:
            try:
                found += importlib.import_module(f"benchmarks.{source}").contenders(problem)
            except ModuleNotFoundError as error:
                print(f"{problem.name}: no contenders of {source}, {error.name} is not installed")
    return found


def _measure(problem: Problem, contenders: list[Contender], rounds: int) -> list[dict[str, Any]]:
    """The first steps (which compile), then the values, then the race."""
    first = [seconds(contender.step) for contender in contenders]
    references: dict[str, tuple[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for contender, once in zip(contenders, first, strict=True):
        value = contender.hypergradient()
        against, expected = references.setdefault(contender.estimates, (contender.name, value))
        error = relative_error(value, expected)
        rows.append(
            {
                "estimates": contender.estimates,
                "first step s": once,
                "against": None if against == contender.name else against,
                "relative error": error,
                "agrees": error <= contender.tolerance,
            }
        )
    for row, contender, timing in zip(rows, contenders, race(contenders, rounds), strict=True):
        row |= asdict(timing) | {"finite": all(bool(np.isfinite(np.asarray(t)).all()) for t in contender.x())}
    return rows


def _show(problem: str, rows: list[dict[str, Any]]) -> None:
    medians = {row["name"]: row["ms"] for row in rows}
    print(f"\n{problem:<34} {'ms':>8} {'quartiles':>17} {'/ eager':>8} {'/ hand':>7} {'first s':>8}  agreement")
    for row in rows:
        low, high = row["ms_quartiles"]
        ratios = (f"{row['ms'] / medians[other]:.2f}" if other in medians else "-" for other in ("eager", "hand"))
        agreement = f"{row['relative error']:.0e} to {row['against']}" if row["against"] else "the reference"
        failed = ("" if row["agrees"] else "  DISAGREES") + ("" if row["finite"] else "  NOT FINITE")
        print(
            f"{row['name']:<34} {row['ms']:8.3f} {low:8.3f}-{high:8.3f} {next(ratios):>8} {next(ratios):>7}"
            f" {row['first step s']:8.2f}  {agreement}{failed}"
        )


if __name__ == "__main__":
    sys.exit(main())
