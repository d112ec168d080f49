"""How are results kept in a repository? The report's claims and tables as Markdown, with commands and machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pzobo.bench.report.about import About
from pzobo.bench.report.html_report import summarize
from pzobo.bench.report.paper_figures import file_name
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
    pages = {folder / f"{summary.about.name}.md": experiment_page(summary, where) for summary in summaries}
    pages[folder / "claims.md"] = claims_table(summaries)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def experiment_page(summary: Summary, figures: str | None = None) -> str:
    """One experiment: what it is, its claims, tables and figures, how it was made."""
    about, shown = summary.about, summary.shown()
    parts = [f"# {about.title}", about.text]
    if about.claims:
        parts += ["## Claims", claims_table([summary])]
    for title, head, rows in results(summary, shown):
        remarks = [f"{cells[0]}: {remark}" for cells, remark in rows if remark]
        parts += [f"## {title}", _table(head, (cells for cells, _ in rows)), *remarks]
    if figures is not None:
        parts += ["## Figures", *(f"![{view.title}]({figures}/{file_name(summary, view)}.png)" for view, _ in shown)]
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
    return _table(["the paper says", "holds here?", "evidence"], rows)


def _searched(summary: Summary) -> str:
    """The learning rates that were tried."""
    grids = {lr for run in summary.runs for lr in run.config.get("lr_search") or {}}
    usual = "that of the command, or else the experiment's for the method (the paper's where it has one)"
    if not grids:
        return f"Learning rate: {usual}."
    grid = ", ".join(sorted(grids, key=float))
    return f"Learning rate: with `--lr search` the best of {grid} for each method, on data of another seed; {usual}."


def _machine(summary: Summary) -> str:
    found = {key: {str(run.environment[key]) for run in summary.runs if run.environment.get(key)} for key in MACHINE}
    words = [f"{key} {', '.join(sorted(values))}" for key, values in found.items() if values]
    return f"Made on: {'; '.join(words)}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
