"""What are the parts of a report called, as files and in a page? Plain names, each of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pzobo.bench.report.summary import Summary

RESERVED = ("claims", "theory")
LONGEST = 120
"""Characters of a name; file systems allow 255, and there is an ending, and perhaps a number."""


def slug(text: str) -> str:
    """Letters, digits and dashes, and at least one of them: never a path to somewhere else."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST].strip("-") or "unnamed"


def plain(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A name for each text, no two alike, none of them taken: a later one gets a number."""
    used, names = set(taken), []
    for text in wanted:
        name = first = slug(text)
        number = 1
        while name in used:
            number += 1
            name = f"{first}-{number}"
        used.add(name)
        names.append(name)
    return names


def places(summaries: Sequence[Summary]) -> list[str]:
    """The name of each experiment: of its section and of its Markdown page."""
    return plain((Path(summary.about.name).name for summary in summaries), RESERVED)


def figure_names(summaries: Sequence[Summary]) -> list[list[str]]:
    """The names of the figures of each experiment, one for each view that is shown, without the ending."""
    titles = [[view.title for view, _ in summary.shown()] for summary in summaries]
    parts = zip(places(summaries), titles, strict=True)
    names = iter(plain(f"{place} {title}" for place, views in parts for title in views))
    return [[next(names) for _ in views] for views in titles]
