"""How is a check of the theory shown? As a table in a terminal, and as fragments of a page with plots."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from pzobo.theory.measurements import Sweep, Verification

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("statement", "problem", "against", "slope", "theory", "bound / measured", "sharp / measured", "verdict")

STYLES = {"ok": None, "not decided": "yellow"}


def table_rows(found: Verification) -> list[tuple[str, ...]]:
    """One line for each sweep, in the order of COLUMNS."""
    return [_row(s) for s in found.sweeps]


def _row(s: Sweep) -> tuple[str, ...]:
    theory = "" if s.predicted is None else f"{'≤ ' if s.at_most else ''}{s.predicted:.2f}"
    slope = "" if s.predicted is None or math.isnan(s.slope) else f"{s.slope:.2f}"
    slope += f" ± {s.slope_error:.2f}" if slope and s.slope_error >= 0.005 else ""
    against = s.against + (" (per step)" if s.law == "exponential" else "")
    return (s.statement, s.problem, against, slope, theory, _range(s.looseness()), _range(s.looseness(True)), s.verdict)


def _range(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return ""
    low, high = (f"{v:.1e}" if v >= 1000 else f"{v:.3g}" for v in pair)
    return low if low == high else f"{low} to {high}"


def table(found: Verification) -> Table:
    """The verdicts and the looseness of each bound, for a terminal.

    Args:
        found: what `verify` measured.

    Returns:
        A table of rich, to be printed.

    Raises:
        MissingExtraError: rich is not installed.

    Examples:
        >>> points = tuple(pzobo.theory.Point(q, 1 / q, 0.0, 3 / q) for q in (1, 4, 16))
        >>> sweep = pzobo.theory.Sweep("Proposition 2", "error", "quadratic", "Q", points, predicted=-1.0)
        >>> pzobo.theory.table(pzobo.theory.Verification((sweep,), seconds=0.0)).row_count
        1
    """
    from rich.table import Table

    result = Table(title=f"The theory, measured ({found.seconds:.0f} s)")
    for column in COLUMNS:
        result.add_column(column, justify="right" if column in ("slope", "theory") else "left")
    for row in table_rows(found):
        result.add_row(*row, style=STYLES.get(row[-1], "bold red"))
    return result


def fragments(found: Verification, *, plotlyjs: bool = True) -> list[str]:
    """Pieces of HTML: the table, then one plot for each sweep.

    Args:
        found: what `verify` measured.
        plotlyjs: put plotly's own code into the first plot, so that the page needs no network; False where the page
            already has it.

    Returns:
        Pieces of HTML, to be put into a page.

    Raises:
        MissingExtraError: plotly is not installed.

    Examples:
        >>> points = tuple(pzobo.theory.Point(q, 1 / q, 0.0, 3 / q) for q in (1, 4, 16))
        >>> sweep = pzobo.theory.Sweep("Proposition 2", "error", "quadratic", "Q", points, predicted=-1.0)
        >>> found = pzobo.theory.Verification((sweep,), seconds=0.0)
        >>> len(pzobo.theory.fragments(found, plotlyjs=False))
        2
    """
    head = "".join(f"<th>{html.escape(c)}</th>" for c in COLUMNS)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table_rows(found))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    pieces = [f'<table class="theory"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>']
    for i, s in enumerate(found.sweeps):
        figure = plot(s)
        text = figure.to_html(
            full_html=False,
            include_plotlyjs=plotlyjs and i == 0,
            default_height="340px",
            config={"displayModeBar": False, "responsive": True},
        )
        pieces.append(f"<figure>{text}</figure>")
    return pieces


def page(found: Verification) -> str:
    """A page of its own, without anything from the network.

    Args:
        found: what `verify` measured.

    Returns:
        The whole page, as HTML.

    Raises:
        MissingExtraError: plotly is not installed.

    Examples:
        >>> points = tuple(pzobo.theory.Point(q, 1 / q, 0.0, 3 / q) for q in (1, 4, 16))
        >>> sweep = pzobo.theory.Sweep("Proposition 2", "error", "quadratic", "Q", points, predicted=-1.0)
        >>> html = pzobo.theory.page(pzobo.theory.Verification((sweep,), seconds=0.0))
        >>> html.startswith("<!doctype html>")
        True
    """
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;"
        "text-align:left}.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(30rem,100%),1fr))}"
        "figure{margin:0}"
    )
    first, *plots = fragments(found)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The theory of PZOBO, measured</title>'
        f"<style>{style}</style></head><body><h1>The theory of PZOBO, measured</h1>"
        "<p>Each bound beside what it bounds, on problems whose constants are known. A slope is that of a line through "
        "the logarithms; bound / measured is how loose a bound is over its grid. The sharp bounds are this library's, "
        "from the same assumptions. A slope is not decided where two of its standard errors are more than its "
        "tolerance, and it is that near to where the verdict changes.</p>"
        f'{first}<div class="plots">{"".join(plots)}</div></body></html>'
    )


def plot(s: Sweep) -> Any:
    """The measurement and its bounds against the grid, as a plotly figure."""
    import plotly.graph_objects as go

    x = [p.value for p in s.points]
    figure = go.Figure()

    def line(name: str, y: list[float | None], **style: Any) -> None:
        figure.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines+markers", **style))

    bars = {"type": "data", "array": [p.stderr for p in s.points], "visible": any(p.stderr for p in s.points)}
    line("bound", [p.bound for p in s.points], line={"color": "#9aa0a6", "dash": "dash"})
    if any(p.sharp is not None for p in s.points):
        line("sharp bound", [p.sharp for p in s.points], line={"color": "#1f77b4", "dash": "dot"})
    line("measured", [p.measured for p in s.points], line={"color": "#d62728"}, error_y=bars)
    slope = "" if s.predicted is None else f", slope {s.slope:.2f} (theory {s.predicted:.2f})"
    figure.update_layout(
        title={"text": f"{s.statement}, {s.problem}{slope}", "font": {"size": 14}},
        margin={"l": 60, "r": 10, "t": 40, "b": 80},
        template="plotly_white",
        legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "xanchor": "left"},
    )
    figure.update_xaxes(title=s.against, type="linear" if s.law == "exponential" else "log")
    figure.update_yaxes(title=s.quantity, type="log", exponentformat="power")
    return figure
