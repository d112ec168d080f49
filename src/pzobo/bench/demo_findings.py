"""What do the runs of the demo show? Accuracies beside the ordinary models, weights beside the truth, and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pzobo.bench.demo_resume import Resumed
from pzobo.bench.experiments.source_mix import Sources
from pzobo.bench.report.runs import Run
from pzobo.bench.report.summary import Summary
from pzobo.problems import SourceWeights

SAME = 0.05
"""Final losses that differ by less than this part are called the same."""

MODELS = {
    "target-alone": "The target digits alone",
    "ordinary-all": "Logistic regression, all data",
    "alike": "All data alike",
    "direct": "Direct: weights without a Jacobian",
    "pzobo-all": "PZOBO: weights learned",
    "itd-r": "Exact Jacobian: weights learned",
}
"""The rows of the table, the ordinary models first."""


@dataclass(frozen=True)
class Row:
    """One model: the accuracy of each seed, the order of its weights (1 is the right one), the seconds of its steps."""

    method: str
    accuracy: tuple[float, ...]
    order: float | None
    seconds: float | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracy) if self.accuracy else math.nan

    def cells(self) -> tuple[str, ...]:
        low, high = (min(self.accuracy), max(self.accuracy)) if self.accuracy else (math.nan, math.nan)
        return (
            MODELS[self.method],
            f"{100 * self.mean:.1f}",
            f"{100 * low:.1f} - {100 * high:.1f}",
            "" if self.order is None else f"{self.order:.2f}",
            "" if self.seconds is None else f"{self.seconds:.1f}",
        )


@dataclass(frozen=True)
class Findings:
    """What the terminal and the page show.

    Args:
        rows: the models.
        problem: that of seed 0.
        weights: the weights of the sources that each method learned, at seed 0.
        paper: the runs of figure 2 (a).
        resumed: what came of the run that was killed.
        runs: of the first problem.
    """

    rows: tuple[Row, ...]
    problem: SourceWeights
    weights: dict[str, tuple[float, ...]]
    paper: Summary
    resumed: Resumed
    runs: tuple[Run, ...]

    def row(self, method: str) -> Row:
        return next(row for row in self.rows if row.method == method)

    def aloud(self) -> list[str]:
        """Three lines that a person can read aloud."""
        learned, alike, alone, linear = (
            self.row(name) for name in ("pzobo-all", "alike", "target-alone", "ordinary-all")
        )
        target, best = len(self.problem.val[1]), max(alike.mean, linear.mean)
        others = zip(alike.accuracy, linear.accuracy, alone.accuracy, strict=False)
        better = sum(mine > max(other) for mine, other in zip(learned.accuracy, others, strict=False))
        trust = "can be learned" if learned.mean > best else "could NOT be learned here"
        return [
            f"Which data to trust {trust}: {len(self.problem.wrong)} sources of digits, from all labels right to none, "
            f"and {target} digits that are right.",
            f"With the weights that PZOBO learned {100 * learned.mean:.1f} % of new digits are read right, with all "
            f"data alike {100 * best:.1f} % at best, with the {target} alone {100 * alone.mean:.1f} %; it was the best "
            f"of these for {better} of {len(learned.accuracy)} seeds.",
            self.resumed.sentence(),
        ]


def find(experiment: Sources, runs: Sequence[Run], paper: Sequence[Run], resumed: Resumed) -> Findings:
    """Read the runs."""
    from pzobo.bench.experiments.shallow import Linear

    problem = experiment.problem(0)
    rows = tuple(_row(name, [run for run in runs if run.method == name]) for name in MODELS)
    weights = {
        run.method: tuple(run.rows[-1][f"weight_{k}"] for k in range(len(problem.wrong)))
        for run in runs
        if run.config.get("seed") == 0 and run.rows and "weight_0" in run.rows[-1]
    }
    summary = Summary(Linear.about, tuple(paper)).where(experiment="hr-linear", d=128, N=20)
    return Findings(rows, problem, weights, summary, resumed, tuple(runs))


def _row(name: str, runs: Sequence[Run]) -> Row:
    """The last row of each run: a learned model is the one that is fitted again with the target digits, as alike is."""
    lasts: list[Any] = [run.rows[-1] for run in runs if run.rows]
    accuracy = tuple(last.get("refit_test_accuracy", last.get("test_accuracy", math.nan)) for last in lasts)
    orders = [last["rank"] for last in lasts if "rank" in last]
    seconds = statistics.fmean(last["seconds"] for last in lasts) if orders else None
    return Row(name, accuracy, statistics.fmean(orders) if orders else None, seconds)


def sentences(summary: Summary) -> list[str]:
    """What figure 2 (a) shows, in words made of its numbers."""
    ends = {m: value for m in summary.methods() if (value := summary.final(m)) is not None}
    direct = ends.pop("direct", None)
    if direct is None:
        return ["Direct, which the others are compared with, has no outer loss."]
    below = [m for m, end in ends.items() if end < direct * (1 - SAME)]
    same = [m for m, end in ends.items() if m not in below and end <= direct * (1 + SAME)]
    above = [m for m in ends if m not in below and m not in same]

    def names(methods: Sequence[str]) -> str:
        return ", ".join(str(summary.where(method=m).values("label")[0]) for m in methods) or "none"

    return [
        f"Direct, which has no Jacobian at all, ends at {direct:.2g}.",
        f"Lower: {names(below)}. The same within {SAME:.0%}: {names(same)}. Higher: {names(above)}.",
    ]
