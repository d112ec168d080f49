"""What does each method do on one problem? `hr-linear` with all of them and three seeds, as a table and a report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from pzobo.bench.report.summary import Summary

SAME = 0.05
"""Final losses that differ by less than this part are called the same."""


@dataclass(frozen=True)
class Demo:
    """Compare all methods on linear hyper-representation: a table here, and a page with plots."""

    seeds: int = 3
    """How many seeds are run, which are 0, 1, ... The data follows from the seed."""
    steps: int = 100
    """The number of outer steps of each run."""
    out: Path = Path("runs/demo")
    """The folder that the runs are written to. Runs that are there already are not made again."""
    output: Path = Path("demo.html")
    """The HTML file that the report is written to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """pzobo demo."""
    import tyro

    return show(tyro.cli(Demo, prog="pzobo demo", args=arguments))


def show(options: Demo) -> int:
    """Make the runs, print the table and what it shows, write the report."""
    from pzobo.bench.commands import carry_out, console, make_report
    from pzobo.bench.experiments.shallow import Linear
    from pzobo.bench.report.runs import read
    from pzobo.bench.report.summary import Summary

    experiment = Linear(
        seeds=options.seeds, steps=options.steps, d=(128,), also_N=(), out=options.out, resume=True, evaluate_every=20
    )
    console.print(f"hr-linear, {options.seeds} seeds, {len(experiment.chosen())} methods; a minute or two.")
    carry_out(experiment, "go on with the same command")
    summary = Summary(experiment.about, tuple(read(options.out))).where(experiment="hr-linear", d=128, N=20)
    console.print(table(summary, f"Linear hyper-representation, 64 × 128, N = 20, {options.steps} outer steps"))
    for sentence in sentences(summary):
        console.print(sentence)
    page = make_report(options.out, options.output)
    console.print(f"Report with all curves: {page.resolve()}", soft_wrap=True)
    console.print(f"Runs: {options.out} (remove it to measure again)", soft_wrap=True)
    return 0


def table(summary: Summary, title: str) -> Table:
    """A row for each method, over its seeds."""
    from rich.table import Table

    made = Table(title=title)
    made.add_column("method")
    for name in ("outer loss", "min - max", "ms a step", "cosine to\ndf(x, yᴺ(x))/dx"):
        made.add_column(name, justify="right")
    for method in sorted(summary.methods(), key=lambda m: summary.final(m) or 0.0):
        low, high = summary.spread(method) or (float("nan"), float("nan"))
        made.add_row(
            str((summary.where(method=method).values("label") or [method])[0]),
            f"{summary.final(method) or float('nan'):.2g}",
            f"{low:.2g} - {high:.2g}",
            f"{summary.milliseconds(method) or float('nan'):.2f}",
            f"{cosine(summary, method):.3f}",
        )
    return made


def cosine(summary: Summary, method: str) -> float:
    """The mean cosine to the exact gradient of f(x, y^N(x)), over the evaluated steps of all seeds."""
    found = [row["cosine"] for run in summary.where(method=method).runs for row in run.rows if row.get("cosine")]
    return statistics.fmean(found) if found else float("nan")


def sentences(summary: Summary) -> list[str]:
    """What the table shows, in words made of its numbers."""
    ends = {m: value for m in summary.methods() if (value := summary.final(m)) is not None}
    direct = ends.pop("direct", None)
    if direct is None:
        return ["Direct, which the others are compared with, has no outer loss."]
    below = [m for m, end in ends.items() if end < direct * (1 - SAME)]
    same = [m for m, end in ends.items() if m not in below and end <= direct * (1 + SAME)]
    above = [m for m in ends if m not in below and m not in same]
    best = f"{len(above)} others, of which {min(above, key=lambda m: ends[m])} is best" if above else "none"
    close = [m for m in summary.methods() if cosine(summary, m) > 0.9]
    return [
        f"Direct, which has no Jacobian at all, ends at {direct:.2g}. Lower: {', '.join(below) or 'none'}. The same "
        f"within {SAME:.0%}: {', '.join(same) or 'none'}. Higher: {best}.",
        f"Cosine above 0.9 to the exact gradient of f(x, yᴺ(x)): {', '.join(close) or 'none'}. Direct has "
        f"{cosine(summary, 'direct'):.2f}.",
    ]
