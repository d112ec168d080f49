"""What came of an experiment's runs? Medians over seeds of final values, times and memory, and curves with bands."""

from __future__ import annotations

import bisect
import json
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pzobo.bench.report.about import About, View
from pzobo.bench.report.runs import Run
from pzobo.bench.report.styles import ORDER, Style, ordinal, style
from pzobo.runs.json_text import shown

POINTS = 300
ALWAYS = ("direct", "exact")
"""Methods that every view shows beside its own: what the others are measured by."""
NOT_SETTINGS = frozenset({"seed", "command", "label", "experiment", "folder", "output", "lr_search"})


@dataclass(frozen=True)
class Summary:
    """The runs of one experiment, asked by method and setting.

    A value that is not finite counts as the worst that there is: infinity, or minus infinity where higher is better.
    `method` None means all the runs; `where` is as in `Summary.where`.
    """

    about: About
    runs: tuple[Run, ...]

    def where(self, **settings: Any) -> Summary:
        """Those of the runs that have these settings, each a value or a tuple of values; "method" is one of them."""
        return Summary(self.about, tuple(run for run in self.runs if _has(run, settings)))

    def values(self, key: str) -> list[Any]:
        """The distinct values of a setting, in their order."""
        found = {_key(run.config[key]): run.config[key] for run in self.runs if key in run.config}
        return sorted(found.values(), key=_order)

    def methods(self) -> list[str]:
        """The distinct methods, families together."""
        return sorted({run.method for run in self.runs}, key=lambda name: (ORDER.get(name, len(ORDER)), name))

    def higher(self, metric: str) -> bool:
        """Whether a higher value of a metric is better."""
        return self.about.higher if metric == self.about.final else "accuracy" in metric

    def final(self, method: str | None, metric: str | None = None, **where: Any) -> float | None:
        """The median over seeds of the last value of a metric (`about.final`), None without such runs."""
        return _median(self._lasts(method, metric, where))

    def spread(self, method: str | None, metric: str | None = None, **where: Any) -> tuple[float, float] | None:
        """The least and the largest over seeds of the last value."""
        lasts = self._lasts(method, metric, where)
        return (min(lasts), max(lasts)) if lasts else None

    def at(self, method: str | None, seconds: float, metric: str | None = None, **where: Any) -> float | None:
        """The median over seeds of the value at a time: that of the last row until then, also if the run had ended."""
        curves = self._curves(method, "seconds", metric or self.about.final, where)
        return _median(value for curve in curves if (value := _held(curve, seconds)) is not None)

    def time_to(self, method: str | None, value: float, metric: str | None = None, **where: Any) -> float | None:
        """The median over seeds of the seconds until a metric first reaches a value, None if less than half do."""
        metric = metric or self.about.final
        reached = operator.ge if self.higher(metric) else operator.le
        times = [
            next((x for x, y in curve if reached(y, value)), math.inf)
            for curve in self._curves(method, "seconds", metric, where)
        ]
        if not times:
            return None
        # With half of the seeds there, the upper of the two middle times is infinite and the lower one is the answer.
        middle = statistics.median(times)
        middle = middle if math.isfinite(middle) else statistics.median_low(times)
        return middle if math.isfinite(middle) else None

    def milliseconds(self, method: str | None, **where: Any) -> float | None:
        """The median over seeds of the time of a step: all the seconds of a run, by all its steps."""
        curves = self._curves(method, "step", "seconds", where)
        return _median(1000 * (c[-1][1] - c[0][1]) / (c[-1][0] - c[0][0]) for c in curves if c[-1][0] > c[0][0])

    def memory(self, method: str | None, **where: Any) -> float | None:
        """The median over seeds of the peak memory, in MB."""
        return _median(max(y for _, y in curve) for curve in self._curves(method, "step", "memory", where))

    def seeds(self, method: str | None, **where: Any) -> int:
        """How many seeds were run, failed ones too."""
        return len({_key(run.config.get("seed", str(run.folder))) for run in self._of(method, where)})

    def lr(self, method: str | None, **where: Any) -> Any:
        """The learning rate; None if there is none, or more than one."""
        found = Summary(self.about, self._of(method, where)).values("lr")
        return found[0] if len(found) == 1 else None

    def failed(self, method: str | None, **where: Any) -> list[str]:
        """Why runs failed, one sentence for each."""
        return [run.failed for run in self._of(method, where) if run.failed is not None]

    def groups(self, view: View | None = None) -> list[Group]:
        """The curves of a view (None: all the runs, by method): runs that differ in nothing but their seed."""
        if view is None:
            return _groups(self.runs, "method")
        runs = self.where(**view.where).runs
        if view.by == "method" and "method" in view.where:
            rest = {key: value for key, value in view.where.items() if key != "method"}
            shown = {run.folder for run in runs}
            runs += tuple(run for run in self.where(**rest, method=ALWAYS).runs if run.folder not in shown)
        return _groups(runs, view.by)

    def shown(self) -> list[tuple[View, list[Group]]]:
        """The views that have runs, and one more for runs that none of them shows: other settings than the paper's."""
        views = [(view, groups) for view in self.about.views if (groups := self.groups(view))]
        seen = {run.folder for _, groups in views for group in groups for run in group.runs}
        rest = Summary(self.about, tuple(run for run in self.runs if run.folder not in seen))
        if rest.runs and self.about.views:
            views.append((View("Other settings", {}, self.about.views[0].panels), rest.groups()))
        return views

    def _of(self, method: str | None, where: dict[str, Any]) -> tuple[Run, ...]:
        return self.where(**where, **({} if method is None else {"method": method})).runs

    def _curves(self, method: str | None, x: str, y: str, where: dict[str, Any]) -> list[list[tuple[float, float]]]:
        return [curve for run in self._of(method, where) if (curve := _curve(run, x, y, self.higher(y)))]

    def _lasts(self, method: str | None, metric: str | None, where: dict[str, Any]) -> list[float]:
        return [curve[-1][1] for curve in self._curves(method, "step", metric or self.about.final, where)]


@dataclass(frozen=True)
class Group:
    """One curve: a name, a style, and runs that differ in their seed only."""

    label: str
    style: Style
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Band:
    """A curve over seeds; a value that is not finite is None. `low` and `high` are None for one seed."""

    x: list[float]
    median: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None


def band(runs: Iterable[Run], x: str, y: str, *, higher: bool = False, log: bool = False) -> Band:
    """The median over seeds, with the least and the largest value, or from five seeds on the quartiles.

    The grid is every x at which some run was measured, thinned to POINTS. Between its rows a run goes straight (with
    `log`, in its logarithm), and after its end it keeps its last value: one that stopped at its target stays there. The
    curve ends where more than half of the runs have; one that failed early does not cut it short.
    """
    curves = [curve for run in runs if (curve := _curve(run, x, y, higher))]
    if not curves:
        return Band([], [], None, None)
    start, end = max(c[0][0] for c in curves), statistics.median_high([c[-1][0] for c in curves])
    grid = thin(sorted({at for curve in curves for at, _ in curve if start <= at <= end} or {start}))
    columns = [[_between(curve, at, log) for curve in curves] for at in grid]
    median = [_finite(statistics.median(values)) for values in columns]
    if len(curves) == 1:
        return Band(grid, median, None, None)
    lows, highs = zip(*map(_range, columns), strict=True)
    return Band(grid, median, [_finite(v) for v in lows], [_finite(v) for v in highs])


def thin(values: list[float], points: int = POINTS) -> list[float]:
    """At most so many of the values, evenly, with the first and the last."""
    if len(values) <= points:
        return values
    return [values[round(i * (len(values) - 1) / (points - 1))] for i in range(points)]


def _range(values: list[float]) -> tuple[float, float]:
    if len(values) < 5:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _curve(run: Run, x: str, y: str, higher: bool) -> list[tuple[float, float]]:
    worst = -math.inf if higher else math.inf
    return [(at, value if math.isfinite(value) else worst) for at, value in run.column(x, y)]


def _held(curve: Sequence[tuple[float, float]], at: float) -> float | None:
    index = bisect.bisect_right(curve, at, key=lambda point: point[0])
    return curve[index - 1][1] if index else None


def _between(curve: Sequence[tuple[float, float]], at: float, log: bool) -> float:
    index = bisect.bisect_right(curve, at, key=lambda point: point[0])
    (x, y), (after, later) = curve[index - 1], curve[min(index, len(curve) - 1)]
    if after <= x or not (math.isfinite(y) and math.isfinite(later)):
        return y
    weight = (at - x) / (after - x)
    if log and y > 0 and later > 0:
        return y * float((later / y) ** weight)
    return y + weight * (later - y)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _has(run: Run, settings: dict[str, Any]) -> bool:
    return all(
        run.config.get(key) in wanted if isinstance(wanted, tuple) else run.config.get(key) == wanted
        for key, wanted in settings.items()
    )


def _groups(runs: Sequence[Run], by: str) -> list[Group]:
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_identity(run), []).append(run)
    groups = sorted(alike.values(), key=lambda group: _place(group[0], by))
    names = [_name(group, by) for group in groups]
    for name in {name for name in names if names.count(name) > 1}:
        same = [i for i, other in enumerate(names) if other == name]
        keys = varying([groups[i][0] for i in same])
        for i in same:
            config = groups[i][0].config
            names[i] += " (" + ", ".join(f"{key} = {config[key]}" for key in keys if key in config) + ")"
    styles = _styles([group[0] for group in groups], names, by)
    return [Group(name, look, tuple(group)) for name, look, group in zip(names, styles, groups, strict=True)]


def _identity(run: Run) -> str:
    settings: dict[str, Any] = {key: value for key, value in run.config.items() if key not in NOT_SETTINGS}
    return _key(settings if "seed" in run.config else settings | {"folder": str(run.folder)})


def _name(group: Sequence[Run], by: str) -> str:
    run = group[0]
    if by != "method":
        return f"{by} = {run.config.get(by)}"
    folder: Path = run.folder if len(group) == 1 else run.folder.parent
    return str(run.config.get("label") or run.method or shown(folder.name))


def _place(run: Run, by: str) -> tuple[Any, ...]:
    value = ORDER.get(run.method, len(ORDER)) if by == "method" else run.config.get(by)
    return (_order(value), run.method, _identity(run))


def _styles(runs: Sequence[Run], names: Sequence[str], by: str) -> list[Style]:
    if by == "method":
        looks = [style(run.method or name) for run, name in zip(runs, names, strict=True)]
    else:
        values = [_order(run.config.get(by)) for run in runs]
        distinct = sorted(set(values))
        looks = [ordinal(distinct.index(value), len(distinct)) for value in values]
    return [look.variant(looks[:i].count(look)) for i, look in enumerate(looks)]


def varying(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, seeds aside."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in NOT_SETTINGS)
    return [key for key in keys if len({_key(run.config.get(key)) for run in runs}) > 1]


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _order(value: Any) -> tuple[int, float, str]:
    """A key to sort by: numbers first, by size; then everything else, by its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))
