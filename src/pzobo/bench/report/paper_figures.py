"""How does a view look on paper? PNG and PDF by matplotlib, one file a view, with its panels side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pzobo.bench.report.about import Panel, View
from pzobo.bench.report.plots import words
from pzobo.bench.report.styles import MARKERS
from pzobo.bench.report.summary import Group, Summary, band

LARGEST = 1e100


def save(summary: Summary, view: View, groups: Sequence[Group], folder: Path, name: str) -> list[Path]:
    """Write the view as NAME.png and NAME.pdf."""
    # Figure itself, not pyplot: it draws without a screen and leaves no figure open.
    from matplotlib.figure import Figure

    columns = 2 if len(view.panels) == 4 else min(len(view.panels), 3)
    rows = -(-len(view.panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax, panel in zip(axes, view.panels, strict=False):
        draw(ax, summary, groups, panel)
    for ax in axes[len(view.panels) :]:
        ax.set_visible(False)
    figure.suptitle(_plain(view.title), fontsize=11)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(3, 2 * columns - 1), fontsize=8, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def draw(ax: Any, summary: Summary, groups: Sequence[Group], panel: Panel) -> None:
    """A panel on one of matplotlib's axes: a median and a band for each curve."""
    for group in groups:
        curve = band(group.runs, panel.x, panel.y, higher=summary.higher(panel.y), log=panel.log)
        look = group.style
        x = [_drawn(at) for at in curve.x]
        if curve.low is not None and curve.high is not None:
            low, high = (
                [_drawn(v, panel.log) if w is not None else float("nan") for v, w in zip(a, b, strict=True)]
                for a, b in ((curve.low, curve.high), (curve.high, curve.low))
            )
            ax.fill_between(x, low, high, color=look.color, alpha=0.16, linewidth=0)
        width = look.width * 0.75
        ax.plot(
            x,
            [_drawn(y, panel.log) for y in curve.median],
            color=look.color,
            # matplotlib counts strokes and gaps in widths of the line.
            linestyle=(0, tuple(length / look.width for length in look.dash)) if look.dash else "solid",
            linewidth=width,
            marker=MARKERS[look.marker][0],
            markersize=4.5,
            markevery=max(1, len(curve.x) // 7),
            label=_plain(group.label),
        )
    ax.set(xlabel=words(panel.x), ylabel=_plain(words(panel.y)), yscale="log" if panel.log else "linear")
    ax.grid(color="#e6e8eb", linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)


def _drawn(value: float | None, log: bool = False) -> float:
    """NaN, which leaves a gap, where there is nothing to draw; matplotlib's ticks fail near the end of the numbers."""
    return value if value is not None and abs(value) < LARGEST and not (log and value <= 1 / LARGEST) else math.nan


def _plain(text: str) -> str:
    """A dollar would begin a formula, and some control characters have no width."""
    return "".join(c if c.isprintable() else " " for c in text).replace("$", r"\$")
