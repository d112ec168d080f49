"""How does the demo look on a page? The verdict, one picture, one short table; then the paper's figure and the rest."""

from __future__ import annotations

import base64
import io
import re

from torch import Tensor

from pzobo.bench.demo_findings import Findings, sentences
from pzobo.bench.report import html_page as parts
from pzobo.bench.report.about import Panel, View
from pzobo.bench.report.paper_figures import draw

SHOWN = 7
"""Digits of each source in the picture."""

STYLE = """
main { max-width: 60rem; }
body { display: block; } nav { position: static; height: auto; border: 0; }
@media (min-width: 64rem) { body { display: block; } nav { position: static; height: auto; padding: .5rem 2.5rem; }
  nav ul { flex-direction: row; } }
.verdict-line { font-size: 1.2rem; line-height: 1.4; max-width: 46rem; }
.sources { display: grid; grid-template-columns: max-content 1fr; gap: .55rem 1rem; margin: 1rem 0;
  align-items: center; }
.sources .digits { display: flex; gap: .3rem; }
.digits span { display: block; text-align: center; font-size: .75rem; line-height: 1.2; color: var(--soft); }
.digits img { display: block; width: 1.9rem; height: 1.9rem; image-rendering: pixelated;
  border: 1px solid var(--rule); }
.digits .wrong { color: #8a3200; font-weight: 700; } .digits .wrong img { border-color: #d55e00; }
.bars { display: grid; grid-template-columns: 4.2rem 1fr 2.6rem; gap: .1rem .4rem; font-size: .75rem;
  align-items: center; color: var(--soft); font-variant-numeric: tabular-nums; }
.bars i { display: block; height: .6rem; background: var(--tint); }
.bars b { display: block; height: 100%; }
.chart svg { width: 100%; height: auto; max-width: 38rem; }
@media (max-width: 40rem) {
  .sources { grid-template-columns: 1fr; gap: .3rem; } .sources .digits { margin-top: .6rem; }
  .digits img { width: 1.6rem; height: 1.6rem; }
}
"""
COLORS = {"wrong": "#d55e00", "pzobo-all": "#0072b2", "itd-r": "#009e73"}
NAMES = {"wrong": "wrong", "pzobo-all": "PZOBO", "itd-r": "exact"}


def page(found: Findings) -> str:
    """The whole page. It loads nothing and runs no script."""
    first, second, third = found.aloud()
    head, _, tail = first.partition(": ")
    body = [
        f"<h1>{parts.text(head)}</h1>",
        f'<p class="verdict-line">{parts.text(second)}</p>',
        '<section id="sources"><h2>The sources, and what was learned of them</h2>',
        f"<p>{parts.text(tail[:1].upper() + tail[1:])} Each row is a source: some of its digits with the label that it "
        "gives them (a wrong one is red), the share of labels that is wrong, and the weight that was learned for it. "
        "Nobody told the method which labels are wrong. Seed 0.</p>",
        picture(found),
        parts.table(
            "Accuracy on test digits, %: the ordinary models first",
            ("model", "mean", "min - max", "order of the weights", "processor s"),
            [(row.cells(), "") for row in found.rows],
            "results",
        ),
        '<p class="soft">All rows but the logistic regression are one network with the same training. The learned '
        "ones, Direct and “all data alike” have seen the target digits as training data at the end. An order of 1 "
        "means that the weights rank the sources as the truth does; Direct leaves those of the sources at 1/2, and the "
        "target digits have 1. Seconds are those of the outer steps, without evaluations. "
        f"{len(found.row('alike').accuracy)} seeds.</p></section>",
        '<section id="paper"><h2>The paper’s figure 2 (a)</h2>',
        "<p>Linear hyper-representation: the outer level learns features, the inner level a regression on them. Outer "
        "loss against processor seconds, as in the paper. ",
        parts.text(" ".join(sentences(found.paper))),
        " The paper says that PZOBO converges faster than all others; it does not compare with Direct.</p>",
        f'<div class="chart">{curves(found)}</div></section>',
        f'<section id="resume"><h2>Killed and resumed</h2><p>{parts.text(third)} The process got SIGKILL, as from a '
        "power cut. The outer variables of both runs are compared byte by byte.</p></section>",
        f'<section id="rest"><h2>Settings</h2>{settings(found)}</section>',
    ]
    places = {"sources": "Which data", "paper": "Figure 2 (a)", "resume": "Killed and resumed", "rest": "Settings"}
    return parts.plain("pzobo: which data should be trusted?", places, body, style=STYLE)


def picture(found: Findings) -> str:
    """A row for each source: digits with their labels, and bars."""
    problem = found.problem
    inputs, labels, source = problem.train
    rows = []
    for k, wrong in enumerate(problem.wrong.tolist()):
        # Wrong labels come first in a source; take digits from all of it.
        mine = (source == k).nonzero().flatten()
        mine = mine[:: max(1, len(mine) // SHOWN)][:SHOWN]
        digits = "".join(_digit(inputs[i], int(labels[i]), int(problem.clean[i])) for i in mine.tolist())
        bars = {"wrong": wrong} | {m: found.weights[m][k] for m in ("pzobo-all", "itd-r") if m in found.weights}
        cells = "".join(
            f'<span>{NAMES[name]}</span><i><b style="width:{100 * v:.1f}%;background:{COLORS[name]}"></b></i>'
            f"<span>{100 * v:.0f} %</span>"
            for name, v in bars.items()
        )
        rows.append(f'<div class="digits">{digits}</div><div class="bars">{cells}</div>')
    return f'<div class="sources">{"".join(rows)}</div>'


def _digit(pixels: Tensor, label: int, right: int) -> str:
    """One image with the label that it has."""
    from PIL import Image

    side = round(len(pixels) ** 0.5)
    grey = (255 * (1 - pixels / pixels.max().clamp(min=1e-6))).byte().reshape(side, side).numpy()
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    kind = ' class="wrong"' if label != right else ""
    return f'<span{kind}><img alt="a {right}" src="data:image/png;base64,{data}">{label}</span>'


def curves(found: Findings) -> str:
    """Figure 2 (a) as SVG, with text that stays text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pzobo", "font.family": "sans-serif"}):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = figure.subplots()
        view = View("", {}, ())
        draw(axes, found.paper, found.paper.groups(view), Panel("outer_loss", "seconds", log=True))
        axes.set_xlabel("processor seconds")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    return re.sub(r"(?s)^.*?(?=<svg)", "", svg).replace(
        "<svg ", '<svg role="img" aria-label="Outer loss against seconds" ', 1
    )


def settings(found: Findings) -> str:
    """What most readers skip."""
    runs = (*found.runs, *found.paper.runs)
    commands = {str(run.config.get("command", "")) for run in runs} - {""}
    first = runs[0] if runs else None
    environment = {k: str(v) for k, v in (first.environment if first else {}).items() if isinstance(v, str | int)}
    config = {
        k: str(v)
        for k, v in (first.config if first else {}).items()
        if k not in ("method", "label", "seed", "lr", "command", "lr_search")
    }
    return (
        parts.details("The machine", parts.definitions(environment))
        + parts.details("The first problem", parts.definitions(config))
        + parts.details("Commands", "<pre>" + parts.text("\n".join(sorted(commands))) + "</pre>" if commands else "")
    )
