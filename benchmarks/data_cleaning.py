"""Who cleans data best? `python -m benchmarks.data_cleaning runs/ docs/results/data-cleaning.md`.

Makes the tables of the page from the runs of `pzobo run data-cleaning --data mnist`, one for each share of random
labels. The text above the page's first `## ` stays, and so does what comes from `## Beside JAX` on.
"""

import argparse
from pathlib import Path

from benchmarks.page import finished, renew
from pzobo.bench.experiments.memory import DataCleaning
from pzobo.bench.report.markdown import table
from pzobo.bench.report.summary import Summary

MARKS = (5, 10, 20, 40, 60)
HEAD = ("method", "outer optimizer, rate", "seeds", "steps/s", *(f"{mark} s" for mark in MARKS))
WORTH = ("inner problem solved", "least to largest", "error, fitted again", "AUC")
KEPT = "## Beside JAX"


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * (1 - value):.1f}"


def pair(loss: float | None, accuracy: float | None) -> str:
    """A validation loss and a test error in %."""
    return "-" if loss is None else f"{loss:.4f} / {share(accuracy)}"


def row(runs: Summary, method: str, outer: str) -> tuple[float, list[str]]:
    """What to sort by, the loss with the inner problem solved, and the cells of a method with an optimizer."""
    mine = runs.where(method=method, outer=outer)
    named, steps = DataCleaning.menu[method], mine.milliseconds(None)
    solved, spread = mine.final(None, "solved_val_loss"), mine.spread(None, "solved_val_loss")
    area = mine.final(None, "auc")
    cells = [
        named.label,
        f"{outer.upper() if outer == 'sgd' else outer.title()} {mine.lr(None):g}" if named.tuned else "-",
        str(mine.seeds(None)),
        f"{1000 / steps:.3g}" if steps else "-",
        *(pair(mine.at(None, mark + 0.5, "val_loss"), mine.at(None, mark + 0.5, "test_accuracy")) for mark in MARKS),
        pair(solved, mine.final(None, "solved_test_accuracy")),
        "-" if spread is None else f"{spread[0]:.4f} to {spread[1]:.4f}",
        share(mine.final(None, "refit_test_accuracy")),
        "-" if area is None else f"{area:.3f}",
    ]
    if failed := mine.failed(None):
        cells[0] += f" ({len(failed)} did not get to the end)"
    return (float("inf") if solved is None else solved), cells


def outers(runs: Summary, method: str) -> list[str]:
    """The outer optimizers that a method ran with; what has no rate is the same with all of them."""
    found: list[str] = runs.where(method=method).values("outer")
    return found if DataCleaning.menu[method].tuned else found[:1]


def tables(runs: Summary) -> str:
    """A table for each share of random labels, the best x first."""
    parts = []
    for corruption in runs.values("corruption"):
        mine = runs.where(corruption=corruption)
        rows = [row(mine, method, outer) for method in mine.methods() for outer in outers(mine, method)]
        parts += [
            f"## Random labels: a share of {corruption:g}. Validation loss / test error in %, after so many seconds",
            table([*HEAD, *WORTH], [cells for _, cells in sorted(rows)]),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("page", type=Path, help="the page; only its tables change")
    given = parser.parse_args()
    mnist = finished(given.runs, DataCleaning.about).where(data="mnist")
    renew(given.page, "Data cleaning", tables(mnist), KEPT)


if __name__ == "__main__":
    main()
