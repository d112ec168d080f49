"""How are results kept in a repository? The report's claims and tables as Markdown, with commands and machine."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pzobo.bench.report.about import About
from pzobo.bench.report.html_report import summarize
from pzobo.bench.report.places import figure_names, places
from pzobo.bench.report.runs import Run
from pzobo.bench.report.summary import Summary
from pzobo.bench.report.tables import results

MACHINE = ("cpu", "cores", "threads", "torch", "pzobo", "commit")


def write(runs: Sequence[Run], abouts: Sequence[About], folder: Path, figures: Path | None = None) -> list[Path]:
    """A page for each experiment, and `claims.md` with a table of all claims.

    Args:
        runs: as from `pzobo.bench.report.runs.read`.
        abouts: the experiments.
        folder: where the pages go.
        figures: where their figures are, as PNG, to be shown in them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    summaries = summarize(runs, abouts)
    where = None if figures is None else Path(os.path.relpath(figures, folder)).as_posix()
    pages = {}
    for summary, place, shown in zip(summaries, places(summaries), figure_names(summaries), strict=True):
        paths = [] if where is None else [f"{where}/{name}.png" for name in shown]
        pages[folder / f"{place}.md"] = experiment_page(summary, paths)
    pages[folder / "claims.md"] = claims_table(summaries)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def experiment_page(summary: Summary, figures: Sequence[str] = ()) -> str:
    """One experiment: what it is, its claims, tables and figures (the paths of those of its views), how it was made."""
    about, shown = summary.about, summary.shown()
    parts = [f"# {about.title}", about.text]
    if about.claims:
        parts += ["## Claims", claims_table([summary])]
    for title, head, rows in results(summary, shown):
        remarks = [f"{cells[0]}: {remark}" for cells, remark in rows if remark]
        parts += [f"## {title}", table(head, (cells for cells, _ in rows)), *remarks]
    if figures:
        pictures = (f"![{view.title}]({path})" for (view, _), path in zip(shown, figures, strict=True))
        parts += ["## Figures", *pictures]
    commands = dict.fromkeys(str(run.config["command"]) for run in summary.runs if run.config.get("command"))
    parts += ["## How it was made", "```sh\n" + "\n".join(commands) + "\n```", _searched(summary), _machine(summary)]
    return "\n\n".join(part for part in parts if part) + "\n"


def claims_table(summaries: Iterable[Summary]) -> str:
    """A table of claims that were checked."""
    rows = [
        [claim.text, f"**{found[0]}**", found[1]]
        for summary in summaries
        for claim in summary.about.claims
        if (found := claim.check(summary)) is not None
    ]
    return table(["the paper says", "holds here?", "evidence"], rows)


def _searched(summary: Summary) -> str:
    """The learning rates that were tried."""
    searched = [run.config.get("lr_search") for run in summary.runs]
    grids = {lr for found in searched if isinstance(found, dict) for lr in found if _is_rate(lr)}
    usual = "that of the command, or else the experiment's for the method (the paper's where it has one)"
    if not grids:
        return f"Learning rate: {usual}."
    grid = ", ".join(sorted(grids, key=float))
    return f"Learning rate: with `--lr search` the best of {grid} for each method, on data of another seed; {usual}."


def _is_rate(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _machine(summary: Summary) -> str:
    found = {key: {str(run.environment[key]) for run in summary.runs if run.environment.get(key)} for key in MACHINE}
    words = [f"{key} {', '.join(sorted(values))}" for key, values in found.items() if values]
    return f"Made on: {'; '.join(words)}."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """A bar would end the cell, and a line break the table."""
    return re.sub(r"[\r\n]+", " ", text).replace("|", "\\|")
