"""How are results kept in a repository? The report's claims and tables as Markdown, with commands and machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pzobo.bench.records import About
from pzobo.bench.report import summarize
from pzobo.bench.runs import Run
from pzobo.bench.summary import Summary
from pzobo.bench.tables import results

MACHINE = ("cpu", "cores", "threads", "torch", "pzobo", "commit")


def write(runs: Sequence[Run], abouts: Sequence[About], folder: Path) -> list[Path]:
    """A page for each experiment, and `claims.md` with a table of all claims."""
    folder.mkdir(parents=True, exist_ok=True)
    summaries = summarize(runs, abouts)
    pages = {folder / f"{summary.about.name}.md": page(summary) for summary in summaries}
    pages[folder / "claims.md"] = claims(summaries)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def page(summary: Summary) -> str:
    """One experiment: what it is, its tables, its claims, how it was made."""
    about = summary.about
    parts = [f"# {about.title}", about.text]
    if about.claims:
        parts += ["## Claims", claims([summary])]
    for title, head, rows in results(summary, summary.shown()):
        remarks = [f"{cells[0]}: {remark}" for cells, remark in rows if remark]
        parts += [f"## {title}", _table(head, (cells for cells, _ in rows)), *remarks]
    commands = dict.fromkeys(str(run.config["command"]) for run in summary.runs if run.config.get("command"))
    parts += ["## How it was made", "```sh\n" + "\n".join(commands) + "\n```", _searched(summary), _machine(summary)]
    return "\n\n".join(part for part in parts if part) + "\n"


def claims(summaries: Iterable[Summary]) -> str:
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
    if not grids:
        return "Learning rates: those of the paper."
    grid = ", ".join(sorted(grids, key=float))
    return f"Learning rates: the best of {grid} for each method, on data of another seed."


def _machine(summary: Summary) -> str:
    found = {key: {str(run.environment[key]) for run in summary.runs if run.environment.get(key)} for key in MACHINE}
    words = [f"{key} {', '.join(sorted(values))}" for key, values in found.items() if values]
    return f"Made on: {'; '.join(words)}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
