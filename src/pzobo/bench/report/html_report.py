"""What do the experiments say? One page that works offline: the paper's claims, each experiment, the theory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pzobo.bench.report import paper_figures
from pzobo.bench.report.about import About
from pzobo.bench.report.html_page import captioned, page, scrolling, text
from pzobo.bench.report.places import figure_names, places, slug
from pzobo.bench.report.runs import Run
from pzobo.bench.report.sections import generic, section
from pzobo.bench.report.summary import Summary
from pzobo.runs.json_text import shown

if TYPE_CHECKING:
    from pzobo.theory.measurements import Verification

TITLE = "Bilevel optimization without Hessians: the experiments"
OWN_TITLE = "Bilevel optimization: your runs"


def write_report(
    runs: Sequence[Run],
    abouts: Sequence[About],
    output: Path,
    *,
    theory: Verification | None = None,
    figures: Path | None = None,
) -> Path:
    """Write the page to `output`.

    Args:
        runs: from `pzobo.bench.report.runs.read`.
        abouts: the experiments that are described, in the order of their sections.
        output: the HTML file; its folder is made if it is not there.
        theory: a check of the theory, for a section of its own.
        figures: a folder for each view as PNG and PDF.
    """
    summaries = summarize(runs, abouts)
    sections = places(summaries)
    # A user's own runs have nothing to say about the paper.
    own = not any(run.experiment == about.name for run in runs for about in abouts)
    title = OWN_TITLE if own and runs else TITLE
    names = {"claims": "What the paper says"} if not own and any(about.claims for about in abouts) else {}
    names |= {place: summary.about.title for place, summary in zip(sections, summaries, strict=True)}
    names |= {"theory": "Theory"} if theory is not None else {}

    body = [f"<header><h1>{text(title)}</h1><p>{text(_overview(runs))}</p></header>"]
    if "claims" in names:
        body.append(_claims(abouts, dict(zip((s.about.name for s in summaries), sections, strict=True)), summaries))
    body += [section(summary, place) for summary, place in zip(summaries, sections, strict=True)]
    if theory is not None:
        body.append(_theory(theory))
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(title, names, body), encoding="utf-8")
    if figures is not None:
        for summary, names_of in zip(summaries, figure_names(summaries), strict=True):
            for (view, groups), name in zip(summary.shown(), names_of, strict=True):
                paper_figures.save(summary, view, groups, Path(figures), name)
    return output


def summarize(runs: Sequence[Run], abouts: Sequence[About]) -> list[Summary]:
    """The runs by experiment: those that are described, then others by name, then a user's own by their folder."""
    by_name = {about.name: about for about in abouts}
    described: dict[str, list[Run]] = {name: [] for name in by_name}
    others: dict[str, list[Run]] = {}
    own: dict[Path, list[Run]] = {}
    for run in runs:
        if run.experiment is None:
            own.setdefault(run.folder.absolute().parent, []).append(run)
        else:
            (described if run.experiment in by_name else others).setdefault(run.experiment, []).append(run)
    return [
        *(Summary(by_name[name], tuple(group)) for name, group in described.items() if group),
        *(Summary(generic(name, name, group), tuple(group)) for name, group in sorted(others.items())),
        *(
            # One run has its own name; several have that of the folder in which they are.
            Summary(
                generic(str(parent), shown((parent if len(group) > 1 else group[0].folder).name), group), tuple(group)
            )
            for parent, group in own.items()
        ),
    ]


def _overview(runs: Sequence[Run]) -> str:
    seeds = {str(run.config["seed"]) for run in runs if "seed" in run.config}
    unfinished = sum(run.result is None for run in runs)
    failed = sum(run.failed is not None for run in runs)
    with_seeds = f" with {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}" if seeds else ""
    parts = [f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}{with_seeds}."]
    if failed:
        parts.append(f"Failed: {failed}; the tables say why.")
    if unfinished:
        parts.append(f"Not finished: {unfinished}, shown as far as written.")
    return " ".join(parts) + " Times are without evaluation; memory is what a run added to its process at its peak."


def _claims(abouts: Sequence[About], sections: dict[str, str], summaries: Sequence[Summary]) -> str:
    by_name = {summary.about.name: summary for summary in summaries}
    rows = []
    for about in abouts:
        summary = by_name.get(about.name)
        for claim in about.claims:
            verdict, evidence = (claim.check(summary) if summary else None) or ("not run", "")
            where = f'<a href="#{text(sections[about.name])}">{text(about.title)}</a>' if summary else text(about.title)
            rows.append(
                f'<tr><th scope="row">{text(claim.text)}</th>'
                f'<td><span class="verdict {slug(verdict)}">{text(verdict)}</span></td>'
                f"<td>{text(evidence)} <span class='soft'>{where}</span></td></tr>"
            )
    caption = "Claims, verdicts and evidence"
    head = "".join(f'<th scope="col">{name}</th>' for name in ("The paper says", "Holds here?", "Evidence"))
    content = captioned(caption, head, "".join(rows), "claims")
    return (
        '<section id="claims" aria-labelledby="claims-title"><h2 id="claims-title">What the paper says</h2>'
        f"{scrolling(caption, content)}</section>"
    )


def _theory(found: Verification) -> str:
    from pzobo.theory.presentation import fragments

    caption = "The theory, measured"
    first, *plots = fragments(found, plotlyjs=False)
    first = first.replace("<thead>", f"<caption><span>{caption}</span></caption><thead>", 1)
    good, open_ = (sum(sweep.verdict == verdict for sweep in found.sweeps) for verdict in ("ok", "not decided"))
    undecided = f", and {open_} not decided" if open_ else ""
    return (
        '<section id="theory" aria-labelledby="theory-title"><h2 id="theory-title">Theory</h2>'
        "<p>Each bound beside what it bounds, on problems whose constants are known: "
        f"{good} of {len(found.sweeps)} are as the theory says{undecided}. A slope is that of a line through the "
        "logarithms; bound / measured is how loose a bound is over its grid. The sharp bounds are this library's, from "
        "the same assumptions.</p>"
        f'{scrolling(caption, first)}<div class="theory-plots">{"".join(plots)}</div></section>'
    )
