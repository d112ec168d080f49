"""With how many sources of data does which method win? `python -m benchmarks.source_weights runs/ docs/results`.

Makes the tables and the figure of `docs/results/source-weights.md` from the runs of `pzobo run source-weights`. The
text above the page's first `## ` stays, and so does what comes from `## What it shows` on.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from pzobo.bench.experiments.source_mix import Sources
from pzobo.bench.report.markdown import table
from pzobo.bench.report.runs import Run, read
from pzobo.bench.report.styles import style
from pzobo.bench.report.summary import Summary

METHODS = {
    "pzobo-all": "PZOBO, a direction for each source",
    "gauss-newton": "Gauss-Newton on the measured response",
    "itd-r": "exact (unrolled)",
    "cma-es": "CMA-ES",
    "tpe": "TPE",
    "start": "the network, all sources alike",
    "alike": "the same with the target data added",
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
DRAWN = ("pzobo-all", "gauss-newton", "itd-r", "cma-es", "tpe", "alike")
KEPT = "## What it shows"


def tables(runs: Summary) -> str:
    """A table for each metric, and who was better on how many seeds."""
    counts = runs.values("sources")
    head = ["", *(f"K = {k}" for k in counts)]
    parts = []
    for metric, title in METRICS.items():
        rows = rows_of(counts, lambda method, k, metric=metric: middle(finals(runs, method, k, metric)))  # type: ignore[misc]
        parts += [f"## {title}", table(head, rows)]
    parts += [
        "## Trainings, and seconds of the processor, of a run",
        table(head, rows_of(counts, lambda m, k: cost(runs, m, k))),
    ]
    ours = ("pzobo-all", "gauss-newton")
    duels = [(a, b) for a in ours for b in (*ours, "cma-es", "tpe") if a != b and (b, a) != ours]
    rows = [[f"{METHODS[a]} below {METHODS[b]}", *(duel(runs, a, b, k) for k in counts)] for a, b in duels]
    parts += ["## Seeds on which one has the lower validation loss, of how many", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def rows_of(counts: Sequence[int], cell: Callable[[str, int], str]) -> list[list[str]]:
    """A row for each method that has a cell."""
    rows = [[name, *(cell(method, k) for k in counts)] for method, name in METHODS.items()]
    return [row for row in rows if any(row[1:])]


def finals(runs: Summary, method: str, k: int, metric: str) -> dict[int, float]:
    """The last value of each seed. All sources alike is where PZOBO starts."""
    which, row = ("pzobo-all", 0) if method == "start" else (method, -1)
    found = {run.config["seed"]: run.column("step", metric) for run in ended(runs, which, k)}
    return {seed: column[row][1] for seed, column in found.items() if column}


def ended(runs: Summary, method: str, k: int) -> list[Run]:
    return [run for run in runs.where(method=method, sources=k).runs if run.result is not None]


def middle(values: dict[int, float]) -> str:
    """The median, the range, and how many seeds if they are not 8."""
    if not values:
        return ""
    low, high = min(values.values()), max(values.values())
    seeds = "" if len(values) == 8 else f", {len(values)} seed{'s' if len(values) > 1 else ''}"
    return f"**{statistics.median(values.values()):.3f}** ({low:.3f} to {high:.3f}{seeds})"


def cost(runs: Summary, method: str, k: int) -> str:
    found = ended(runs, method, k)
    if not found:
        return ""
    last = [run.rows[-1] for run in found]
    trainings = [row.get("trainings", row["step"] * (k + 1 if method == "pzobo-all" else 1)) for row in last]
    return f"{statistics.median(trainings):.0f}, {statistics.median(row['seconds'] for row in last):.1f} s"


def duel(runs: Summary, one: str, other: str, k: int) -> str:
    a, b = (finals(runs, method, k, "val_loss") for method in (one, other))
    both = sorted(a.keys() & b.keys())
    return f"{sum(a[seed] < b[seed] for seed in both)} of {len(both)}" if both else ""


def figure(runs: Summary, path: Path) -> None:
    """K against test accuracy and validation loss: medians, and quartiles as bands."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, metric in zip(axes, ("test_accuracy", "val_loss"), strict=True):
        for method in DRAWN:
            points = [(k, list(finals(runs, method, k, metric).values())) for k in runs.values("sources")]
            points = [(k, values) for k, values in points if len(values) > 1]
            if not points:
                continue
            look = style(method)
            quartiles = [statistics.quantiles(values, n=4, method="inclusive") for _, values in points]
            low, mid, high = zip(*quartiles, strict=True)
            at = [k for k, _ in points]
            axis.plot(at, mid, color=look.color, label=METHODS[method], marker="o", markersize=3)
            axis.fill_between(at, low, high, color=look.color, alpha=0.12, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_xticks(runs.values("sources"), [str(k) for k in runs.values("sources")])
        axis.set_xlabel("sources K")
        axis.set_title(METRICS[metric], fontsize=10)
    axes[0].legend(fontsize=7)
    drawing.savefig(path, dpi=130)


def page(runs: Summary, before: str) -> str:
    """The text of `before` up to its first part, the tables, and what it has from `KEPT` on."""
    _, heading, rest = before.partition(KEPT)
    return before.partition("## ")[0] + tables(runs) + (f"\n{heading}{rest}" if heading else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("pages", type=Path, help="the folder of the page, which has one of figures")
    given = parser.parse_args()
    found = tuple(run for run in read(given.runs) if run.experiment == Sources.about.name)
    digits = Summary(Sources.about, found).where(data="digits")
    place = given.pages / "source-weights.md"
    place.write_text(page(digits, place.read_text() if place.exists() else "# Source weights\n\n"))
    figure(digits, given.pages / "figures" / "source-weights.png")


if __name__ == "__main__":
    main()
