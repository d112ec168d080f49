"""What is an experiment, for a report? Views of its runs, thresholds, and what the paper says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pzobo.bench.report.summary import Summary


@dataclass(frozen=True)
class Panel:
    """One plot: a key of the rows of metrics.jsonl against another. Runs without these keys have no curve."""

    y: str
    x: Literal["seconds", "step", "oracle_calls"] = "seconds"
    log: bool = False


@dataclass(frozen=True)
class View:
    """A figure of the paper: the runs it shows, what its curves are, and its panels.

    Args:
        title: as in "Fig. 2 (a), d = 128".
        where: settings that a run must have, each a value or a tuple of values; "method" is one of them.
        by: what its curves differ in: "method", or another setting such as "N".
        panels: its plots.
        thresholds: in place of the experiment's, for data that is easier or harder.
    """

    title: str
    where: Mapping[str, Any]
    panels: tuple[Panel, ...]
    by: str = "method"
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is checked: verdict ("yes", "no", "in part") and evidence, None if not run."""

    text: str
    check: Callable[[Summary], tuple[str, str] | None]


@dataclass(frozen=True)
class About:
    """What the report shows of one experiment.

    Args:
        name: as on the command line.
        title: of its section.
        text: one paragraph: what is run and on which data.
        final: the metric whose last value the table shows, and whose times to `thresholds` it lists.
        higher: whether a higher value of it is better.
        views: the figures.
        beside: other metrics whose last values the table shows.
        settings: settings that have a column in the table, such as the outer optimizer.
        thresholds: values of `final` for the times of the table.
        claims: what the paper says.
    """

    name: str
    title: str
    text: str
    final: str
    views: tuple[View, ...]
    higher: bool = False
    beside: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    claims: tuple[Claim, ...] = ()
