"""Who solves quadratics, with SGD and with Adam? `python -m benchmarks.quadratics runs/ docs/results/quadratics.md`.

Makes the table of the page from the runs of `pzobo run quadratics`. The text above the page's first `## ` stays, and so
does what comes from `## What it shows` on.
"""

import argparse
from pathlib import Path

from benchmarks.page import finished, renew
from pzobo.bench.experiments.memory import OPTIMIZERS, Quadratics
from pzobo.bench.report.markdown import table
from pzobo.bench.report.summary import Summary

TITLE = "## Squared gradient of the value function after 1.5 s"
HEAD = ("method", *(f"{name}, rate: median | least to largest" for name in ("SGD", "Adam")))
BEST = ("gap", "inner distance", "ms a step")
KEPT = "## What it shows"


def cells(runs: Summary) -> tuple[float, list[str]]:
    """What a method with one optimizer comes to: the median to sort by, then rate and median, and the spread."""
    median, spread, lr = runs.final(None), runs.spread(None), runs.lr(None)
    if median is None or spread is None:
        return float("inf"), ["-", "-"]
    ends = f"{spread[0]:.2g} to {spread[1]:.2g}"
    if failed := runs.failed(None):
        ends += f" ({len(failed)} of {runs.seeds(None)} did not get to the end)"
    return median, [f"{lr:g}: {median:.2g}", ends]


def rows(runs: Summary) -> list[list[str]]:
    """A row for each method, in the order of its better optimizer, whose gap, distance and time it has."""
    found = []
    for method in runs.methods():
        mine = [runs.where(method=method, outer=outer) for outer in OPTIMIZERS]
        values = [cells(one) for one in mine]
        median, better = min((value, i) for i, (value, _) in enumerate(values))
        best = mine[better]
        numbers = (best.final(None, "gap"), best.final(None, "inner_distance"), best.milliseconds(None))
        last = [
            "-" if number is None else f"{number:.{digits}g}" for number, digits in zip(numbers, (2, 2, 3), strict=True)
        ]
        found.append((median, [Quadratics.menu[method].label, *(cell for _, pair in values for cell in pair), *last]))
    return [line for _, line in sorted(found)]


def tables(runs: Summary) -> str:
    """The heading and the table."""
    head = " | ".join((*HEAD, *BEST)).split(" | ")
    seeds = max((runs.seeds(method) for method in runs.methods()), default=0)
    said = f"Medians over {seeds} seeds. Gap, distance and time are those of the better optimizer."
    return "\n\n".join([TITLE, said, table(head, rows(runs))]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("page", type=Path, help="the page; only its table changes")
    given = parser.parse_args()
    renew(given.page, "Simulated quadratics", tables(finished(given.runs, Quadratics.about)), KEPT)


if __name__ == "__main__":
    main()
