"""How does a view look on a page? One plotly figure for each panel: a median and a band for each curve."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from pzobo.bench.report.about import Panel
from pzobo.bench.report.summary import Group, Summary, band

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
INK, GRID = "#1c2026", "#e6e8eb"


def words(key: str) -> str:
    """A key of the rows as a person would write it."""
    written = {
        "step": "outer step",
        "memory": "memory (MB)",
        "outer": "outer optimizer",
        "cosine": "cosine to exact gradient",
        "auc": "AUC",
        "error": "1 - accuracy",
        "test_interval": "its ± (95 %)",
    }
    return written.get(key, key.replace("_", " "))


def figure(summary: Summary, groups: Sequence[Group], panel: Panel) -> Any:
    """The panel as a plotly figure; a curve and its band have the same legendgroup, the index of the curve."""
    import plotly.graph_objects as go

    result = go.Figure(layout={"template": "none"})
    for i, group in enumerate(groups):
        curve = band(group.runs, panel.x, panel.y, higher=summary.higher(panel.y), log=panel.log)
        # Plotly reads markup in names; ours come from files and have none.
        common = {"name": html.escape(group.label), "legendgroup": str(i)}
        if curve.low is not None and curve.high is not None:
            edges = [
                (x, low, high)
                for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
                if low is not None and high is not None and (low > 0 or not panel.log)
            ]
            x, low, high = ([_short(edge[k]) for edge in edges] for k in range(3))
            result.add_trace(
                go.Scatter(
                    x=x + x[::-1],
                    y=high + low[::-1],
                    fill="toself",
                    fillcolor=group.style.faint(),
                    line={"width": 0},
                    mode="lines",
                    hoverinfo="skip",
                    showlegend=False,
                    **common,
                )
            )
        result.add_trace(
            go.Scatter(
                x=[_short(x) for x in curve.x],
                y=[None if y is None or (panel.log and y <= 0) else _short(y) for y in curve.median],
                mode="lines+markers",
                line={
                    "color": group.style.color,
                    "width": group.style.width,
                    "dash": ",".join(f"{length}px" for length in group.style.dash) or "solid",
                },
                marker={"symbol": group.style.marker, "size": 8, "maxdisplayed": 7},
                hovertemplate="%{y:.4g} at %{x:.4g}" + (" s" if panel.x == "seconds" else ""),
                **common,
            )
        )
    result.update_layout(
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 74, "r": 12, "t": 12, "b": 46},
        hovermode="closest",
        hoverlabel={"namelength": -1},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
    )
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": "#9aa0a6", "ticks": "outside", "tickcolor": "#9aa0a6"}
    result.update_xaxes(title={"text": words(panel.x), "standoff": 8}, rangemode="tozero", **axis)
    result.update_yaxes(title={"text": html.escape(words(panel.y)), "standoff": 6}, **axis)
    if panel.log:
        # Powers of ten only, with 2 and 5 between them where the range is short.
        result.update_yaxes(type="log", dtick="D2" if _decades(result) < 2 else 1, exponentformat="power")
    return result


def _decades(result: Any) -> float:
    values = [math.log10(y) for trace in result.data for y in trace.y if y is not None and y > 0]
    return max(values) - min(values) if values else 0.0


def _short(value: float) -> float:
    """Five digits are more than a screen shows, and a third of the bytes."""
    return float(f"{value:.5g}")
