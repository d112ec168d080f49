"""How is a page of results made of kept runs? Its tables are made anew, its text stays."""

from pathlib import Path

from pzobo.bench.report.about import About
from pzobo.bench.report.runs import read
from pzobo.bench.report.summary import Summary


def finished(folder: Path, about: About) -> Summary:
    """The runs of an experiment in a folder that have ended."""
    return Summary(about, tuple(run for run in read(folder) if run.experiment == about.name and run.result is not None))


def renew(place: Path, title: str, tables: str, kept: str) -> None:
    """Put the tables between the text above a page's first part, or a title, and what it has from `kept` on."""
    before = place.read_text() if place.exists() else f"# {title}\n\n"
    _, heading, rest = before.partition(kept)
    place.write_text(before.partition("## ")[0] + tables + (f"\n{heading}{rest}" if heading else ""))
