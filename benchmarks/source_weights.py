"""With how many sources of data does which method win? `python -m benchmarks.source_weights runs/ docs/results`.

Makes the tables and the figure of `docs/results/source-weights.md` from the runs of `pzobo run source-weights`. The
text above the page's first `## ` stays, and so does what comes from `## What it shows` on.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.page import finished, renew
from pzobo.bench.experiments.source_mix import Sources
from pzobo.bench.report.markdown import table
from pzobo.bench.report.runs import Row, Run
from pzobo.bench.report.styles import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION
from pzobo.bench.report.summary import Summary

METHODS = {
    "pzobo-all": "PZOBO, a direction for each source",
    "gauss-newton": "Gauss-Newton on the measured response",
    "itd-r": "exact (unrolled)",
    "cma-es": "CMA-ES",
    "tpe": "TPE",
    "start": "the network, all sources alike",
    "alike": "the network, all data alike, target data added",
    "target-alone": "the network, target data alone",
    "ordinary-all": "logistic regression, all data",
    "ordinary-clean": "logistic regression, target data alone",
}
METRICS = {
    "test_accuracy": "Test accuracy",
    "val_loss": "Validation loss",
    "refit_test_accuracy": "Test accuracy after a last fit with the target data added",
    "rank": "Rank correlation of the weights with the share of right labels",
}
DRAWN = {
    "pzobo-all": VERMILION,
    "gauss-newton": BLUE,
    "itd-r": ORANGE,
    "cma-es": GREEN,
    "tpe": PURPLE,
    "alike": GREY,
    "ordinary-all": BLACK,
}
OURS = ("pzobo-all", "gauss-newton")
EARLY = 5
"""Steps of PZOBO, for the table of a fifth of the trainings."""
KEPT = "## What it shows"
C = TypeVar("C")


def tables(runs: Summary) -> str:
    """A table for each metric, what a fifth of the trainings gives, and who was better on how many seeds."""
    counts = runs.values("sources")
    head = ["", *(f"K = {k}" for k in counts)]
    parts = []
    for metric, title in METRICS.items():
        rows = rows_of(counts, functools.partial(last, runs, metric))
        parts += [f"## {title}", table(head, rows)]
    parts += [f"## Validation loss after {EARLY} (K + 1) trainings", table(head, rows_of(counts, early(runs)))]
    parts += ["## Trainings, and seconds of the processor, of a run", table(head, rows_of(counts, cost(runs)))]
    duels = [(a, b) for a in OURS for b in (*OURS, "cma-es", "tpe") if a != b and (b, a) != OURS]
    rows = [[f"{METHODS[a]} below {METHODS[b]}", *(duel(runs, a, b, k) for k in counts)] for a, b in duels]
    parts += ["## Seeds on which one has the lower validation loss, of how many", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def others(runs: Summary) -> str:
    """The three metrics of runs on other data in one table, by the number of sources and their size."""
    sizes = {run.config["size"] or 2000 for run in runs.runs}
    cases = {
        f"K = {k}, {size:,} images each": Summary(runs.about, of_size)
        for size in sorted(sizes)
        for k in runs.values("sources")
        if (of_size := tuple(r for r in runs.where(sources=k).runs if (r.config["size"] or 2000) == size))
    }
    shown = [metric for metric in METRICS if metric != "rank"]

    def cell(method: str, case: str) -> str:
        mine = cases[case]
        found = [finals(mine, method, mine.values("sources")[0], metric).values() for metric in shown]
        cells = [f"{statistics.median(values):.3f}" if values else "-" for values in found]
        return " / ".join(cells) if any(found) else ""

    title = f"## MNIST, seeds {runs.values('seed')}: test accuracy / validation loss / test accuracy, fitted again"
    return f"\n{title}\n\n{table(['', *cases], rows_of(list(cases), cell))}\n" if cases else ""


def rows_of(columns: Sequence[C], cell: Callable[[str, C], str]) -> list[list[str]]:
    """A row for each method that has a cell."""
    rows = [[name, *(cell(method, column) for column in columns)] for method, name in METHODS.items()]
    return [row for row in rows if any(row[1:])]


def finals(runs: Summary, method: str, k: int, metric: str) -> dict[int, float]:
    """The last value of each seed. All sources alike is where PZOBO starts."""
    first = method == "start"
    found = {
        run.config["seed"]: run.rows[0 if first else -1].get(metric)
        for run in runs.where(method="pzobo-all" if first else method, sources=k).runs
    }
    return {seed: value for seed, value in found.items() if value is not None}


def last(runs: Summary, metric: str, method: str, k: int) -> str:
    return middle(finals(runs, method, k, metric))


def middle(values: dict[int, float]) -> str:
    """The median, the range, and how many seeds if they are not 8."""
    if not values:
        return ""
    low, high = min(values.values()), max(values.values())
    seeds = "" if len(values) == 8 else f", {len(values)} seed{'s' if len(values) > 1 else ''}"
    return f"**{statistics.median(values.values()):.3f}** ({low:.3f} to {high:.3f}{seeds})"


def trainings(run: Run, row: Row, k: int) -> float:
    """How many were made before a row; PZOBO makes one for each direction and one more in a step."""
    return row.get("trainings", row["step"] * (k + 1 if run.method == "pzobo-all" else 1))


def early(runs: Summary) -> Callable[[str, int], str]:
    """The loss at the first row from so many trainings on; at the end of a run that needs fewer."""

    def cell(method: str, k: int) -> str:
        if method not in (*OURS, "cma-es", "tpe"):
            return ""
        found = {}
        for run in runs.where(method=method, sources=k).runs:
            rows = [row for row in run.rows if "val_loss" in row]
            late = [row for row in rows if trainings(run, row, k) >= EARLY * (k + 1)]
            found[run.config["seed"]] = (late or rows[-1:])[0]["val_loss"]
        return middle(found)

    return cell


def cost(runs: Summary) -> Callable[[str, int], str]:
    def cell(method: str, k: int) -> str:
        found = runs.where(method=method, sources=k).runs
        if not found:
            return ""
        counts = [trainings(run, run.rows[-1], k) for run in found]
        seconds = [run.rows[-1]["seconds"] for run in found]
        return f"{statistics.median(counts):.0f}, {statistics.median(seconds):.1f} s"

    return cell


def duel(runs: Summary, one: str, other: str, k: int) -> str:
    a, b = (finals(runs, method, k, "val_loss") for method in (one, other))
    both = sorted(a.keys() & b.keys())
    return f"{sum(a[seed] < b[seed] for seed in both)} of {len(both)}" if both else ""


def figure(runs: Summary, path: Path) -> None:
    """K against test accuracy and validation loss: medians, and quartiles as bands."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    for axis, metric in zip(axes, ("test_accuracy", "val_loss"), strict=True):
        for method, color in DRAWN.items():
            points = [(k, list(finals(runs, method, k, metric).values())) for k in runs.values("sources")]
            points = [(k, values) for k, values in points if len(values) > 1]
            if not points:
                continue
            quartiles = [statistics.quantiles(values, n=4, method="inclusive") for _, values in points]
            low, mid, high = zip(*quartiles, strict=True)
            at = [k for k, _ in points]
            axis.plot(at, mid, color=color, label=METHODS[method], marker="o", markersize=3)
            axis.fill_between(at, low, high, color=color, alpha=0.12, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(runs.values("sources"), [str(k) for k in runs.values("sources")])
        axis.set_xlabel("sources K")
        axis.set_title(METRICS[metric], fontsize=10)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    drawing.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("pages", type=Path, help="the folder of the page, which has one of figures")
    given = parser.parse_args()
    runs = finished(given.runs, Sources.about)
    digits, mnist = (runs.where(data=data) for data in ("digits", "mnist"))
    renew(given.pages / "source-weights.md", "Source weights", tables(digits) + others(mnist), KEPT)
    figure(digits, given.pages / "figures" / "source-weights.png")


if __name__ == "__main__":
    main()
