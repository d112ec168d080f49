"""What do the tables of an experiment say? For each set of runs that a view shows: a title, a head and rows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pzobo.bench.report.about import About, View
from pzobo.bench.report.plots import words
from pzobo.bench.report.runs import Run
from pzobo.bench.report.summary import Group, Summary
from pzobo.runs.rows import Row

Rows = list[tuple[list[str], str]]
"""Cells, and a remark on the runs behind them."""


def results(summary: Summary, views: Sequence[tuple[View, list[Group]]]) -> list[tuple[str, list[str], Rows]]:
    """One table for each set of runs that is shown."""
    titles: dict[tuple[str, ...], list[str]] = {}
    shown: dict[tuple[str, ...], tuple[View, list[Group]]] = {}
    for view, groups in views:
        key = tuple(sorted(str(run.folder) for group in groups for run in group.runs))
        titles.setdefault(key, []).append(view.title)
        shown.setdefault(key, (view, groups))
    return [_table(summary.about, "; ".join(titles[key]), view, groups) for key, (view, groups) in shown.items()]


def _table(about: About, title: str, view: View, groups: Sequence[Group]) -> tuple[str, list[str], Rows]:
    sign = "≥" if about.higher else "≤"
    thresholds = view.thresholds or about.thresholds
    head = [
        view.by,
        *map(words, about.settings),
        f"final {words(about.final)}",
        "least to largest",
        *map(words, about.beside),
        *(f"s to {sign}\N{NO-BREAK SPACE}{value:g}" for value in thresholds),
    ]
    head += ["ms a step", "peak MB", "lr", "seeds"]
    rows = [(_row(about, thresholds, group), _remarks(group.runs)) for group in groups]
    return title, head, rows


def _row(about: About, thresholds: Sequence[float], group: Group) -> list[str]:
    summary = Summary(about, group.runs)
    spread = summary.spread(None)
    low_high = [number(value) for value in spread or ()]
    lr = summary.lr(None)
    return [
        group.label,
        *(", ".join(map(str, summary.values(setting))) for setting in about.settings),
        number(summary.final(None)),
        " to ".join(dict.fromkeys(low_high)),
        *(number(summary.final(None, metric)) for metric in about.beside),
        *(number(summary.time_to(None, value), "not reached", 3) for value in thresholds),
        number(summary.milliseconds(None), digits=3),
        number(summary.memory(None), digits=3),
        "" if lr is None else f"{lr:g}" if isinstance(lr, int | float) else str(lr),
        str(summary.seeds(None)),
    ]


def _remarks(runs: Sequence[Run]) -> str:
    failed = [run.failed for run in runs if run.failed is not None]
    unfinished = sum(run.result is None for run in runs)
    parts = []
    if failed:
        parts.append(f"failed: {len(failed)} of {len(runs)}. {' '.join(dict.fromkeys(failed))}")
    if unfinished:
        parts.append(f"not finished: {unfinished} of {len(runs)}.")
    return " ".join([*parts, *_audits(runs), *_choices(runs)])


def _audits(runs: Sequence[Run]) -> list[str]:
    """What the audits of these runs measured, from least to largest."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for row in run.rows:
            for key, value in row.items():
                if key.startswith(Row.AUDIT) and math.isfinite(value):
                    found.setdefault(key.removeprefix(Row.AUDIT), []).append(value)
    ranges = [
        f"{name} {' to '.join(dict.fromkeys((number(min(values), digits=2), number(max(values), digits=2))))}"
        for name, values in sorted(found.items())
    ]
    return [f"audit: {', '.join(ranges)}."] if ranges else []


def _choices(runs: Sequence[Run]) -> list[str]:
    """What `Auto` chose in these runs."""
    chosen = [str(run.result["chosen"]).split(": ")[0] for run in runs if run.result and run.result.get("chosen")]
    return [f"chosen: {', '.join(dict.fromkeys(chosen))}."] if chosen else []


def number(value: float | None, missing: str = "", digits: int = 4) -> str:
    """A number with so many digits, or `missing` for None. Whole parts up to 99999 keep all their digits."""
    if value is None:
        return missing
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e5 else f"{value:.{digits}g}"
