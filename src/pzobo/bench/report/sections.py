"""What does the report say of one experiment? Its views, a table of results, settings, machine and commands."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pzobo.bench.report.about import About, Panel, View
from pzobo.bench.report.html_page import definitions, details, scrolling, table, text
from pzobo.bench.report.plots import figure, words
from pzobo.bench.report.runs import Run
from pzobo.bench.report.styles import MARKERS, Style
from pzobo.bench.report.summary import NOT_SETTINGS, Group, Summary
from pzobo.bench.report.tables import results
from pzobo.runs.rows import Row

NOT_METRICS = ("step", "seconds", "memory")


def _is_metric(key: str) -> bool:
    return key not in NOT_METRICS and not key.startswith(Row.AUDIT)


def generic(name: str, title: str, runs: Sequence[Run]) -> About:
    """What is shown of runs that no experiment describes: every metric against time, and the first against steps."""
    metrics = list(dict.fromkeys(key for run in runs for row in run.rows for key in row if _is_metric(key)))
    metrics.sort(key=lambda key: key != "outer_loss")
    panels = [Panel(key, log=_spans_decades(runs, key)) for key in metrics]
    panels[1:1] = [Panel(panel.y, "step", panel.log) for panel in panels[:1]]
    final = metrics[0] if metrics else "outer_loss"
    views = (View("All runs", {}, tuple(panels)),) if panels else ()
    return About(name, title, "", final, views, higher="accuracy" in final)


def _spans_decades(runs: Sequence[Run], key: str) -> bool:
    values = [row[key] for run in runs for row in run.rows if math.isfinite(row.get(key, math.nan))]
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def section(summary: Summary, place: str) -> str:
    """The experiment's part of the page; `place` is its id."""
    about = summary.about
    views = summary.shown()
    return "\n".join(
        [
            f'<section id="{text(place)}" aria-labelledby="{text(place)}-title">',
            f'<h2 id="{text(place)}-title">{text(about.title)}</h2>',
            *([f"<p>{text(about.text)}</p>"] if about.text else []),
            *(_view(summary, view, groups) for view, groups in views),
            *_results(summary, views),
            details("Settings", definitions(_distinct((run.config for run in summary.runs), NOT_SETTINGS))),
            details("Machine", definitions(_distinct((run.environment for run in summary.runs), ("command",)))),
            _commands(summary.runs),
            "</section>",
        ]
    )


def _view(summary: Summary, view: View, groups: Sequence[Group]) -> str:
    buttons = "".join(
        f'<button type="button" data-curve="{i}" aria-pressed="true">{_sample(group.style)}{text(group.label)}</button>'
        for i, group in enumerate(groups)
    )
    columns = min(len(view.panels), 2 if len(view.panels) == 4 else 3)
    panels = "\n".join(_panel(summary, view, panel, groups) for panel in view.panels)
    return (
        f'<figure class="view"><figcaption><h3>{text(view.title)}</h3><p>{_seeds(groups)} '
        '<span class="hint">Press a name to hide or show its curve, twice to see it alone.</span></p></figcaption>'
        f'<div class="legend" role="group" aria-label="Curves">{buttons}</div>\n'
        f'<div class="panels" style="--columns: {columns}">{panels}</div></figure>'
    )


def _panel(summary: Summary, view: View, panel: Panel, groups: Sequence[Group]) -> str:
    data = figure(summary, groups, panel).to_json()  # without any "<", which plotly writes as \u003c
    label = text(f"{view.title}: {words(panel.y)} against {words(panel.x)}{', logarithmic' if panel.log else ''}")
    return (
        f'<div class="panel"><div class="plot" role="img" aria-label="{label}"></div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _sample(look: Style) -> str:
    dash = " ".join(map(str, look.dash)) or "none"
    return (
        '<svg width="40" height="12" viewBox="-20 -6 40 12" aria-hidden="true">'
        f'<path d="M-20,0H20" stroke="{look.color}" stroke-width="{look.width}" stroke-dasharray="{dash}"/>'
        f'<path d="{MARKERS[look.marker][1]}" fill="{look.color}"/></svg>'
    )


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return "One seed."
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    shade = "least to largest" if counts[-1] < 5 else "quartiles" if counts[0] >= 5 else "quartiles from 5 seeds on"
    return f"Median over {number} seeds; the band shows {shade}."


def _results(summary: Summary, views: Sequence[tuple[View, list[Group]]]) -> list[str]:
    return [
        table(f"{title}: {words(summary.about.final)}, medians over seeds", head, rows, "results")
        for title, head, rows in results(summary, views)
    ]


def _distinct(records: Iterable[Mapping[str, Any]], leave_out: Collection[str]) -> dict[str, str]:
    """Each key with its distinct values; of many, how many there are and the first and last."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record.items():
            if value is not None and key not in leave_out:
                found.setdefault(key, {})[str(value)] = None
    return {key: _listed(list(values)) for key, values in found.items()}


def _listed(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{min(values)} to {max(values)} ({len(values)} values)"


def _commands(runs: Sequence[Run]) -> str:
    commands = list(dict.fromkeys(str(run.config["command"]) for run in runs if run.config.get("command")))
    if not commands:
        return ""
    lines = "\n".join(text(command) for command in commands)
    return details(f"Commands ({len(commands)})", scrolling("Commands", f"<pre><code>{lines}</code></pre>"))
