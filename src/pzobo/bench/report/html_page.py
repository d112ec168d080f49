"""How is a page made that works offline, on a phone and on paper? Style and scripts inside, tables that scroll."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

text = html.escape


def page(title: str, navigation: Mapping[str, str], body: Iterable[str]) -> str:
    """The whole page with plots of plotly; `navigation` has the id of each section with its name."""
    from plotly.offline import get_plotlyjs

    return plain(title, navigation, body, first=get_plotlyjs(), last=_file("report.js"))


def plain(
    title: str, navigation: Mapping[str, str], body: Iterable[str], *, style: str = "", first: str = "", last: str = ""
) -> str:
    """The whole page; `style` comes after that of all pages, `first` and `last` are scripts around the body."""
    links = "".join(f'<li><a href="#{text(place)}">{text(name)}</a></li>' for place, name in navigation.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{text(title)}</title>\n<link rel="icon" href="data:,">\n<style>{_file("report.css")}{style}</style>\n'
        f"{_script(first)}</head>\n<body>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n'
        + "\n".join(body)
        + f"\n</main>\n{_script(last)}</body>\n</html>\n"
    )


def _script(code: str) -> str:
    return f"<script>{code}</script>\n" if code else ""


def table(caption: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], str]], kind: str) -> str:
    """A table of plain texts, in a box that scrolls. A row is its cells, and a remark that is shown below them."""
    heads = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    lines = []
    for (name, *cells), remark in rows:
        columns = "".join(f"<td>{text(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{text(name)}</th>{columns}</tr>')
        if remark:
            lines.append(f'<tr class="remark"><td colspan="{len(head)}"><span>{text(remark)}</span></td></tr>')
    return scrolling(caption, captioned(caption, heads, "\n".join(lines), kind))


def captioned(caption: str, head: str, body: str, kind: str) -> str:
    """A table of cells and rows that are HTML already; the caption stays in sight when the table is scrolled."""
    return (
        f'<table class="{kind}"><caption><span>{text(caption)}</span></caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def scrolling(label: str, content: str) -> str:
    """A box that scrolls sideways, by keyboard too, so that the page need not."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">{content}</div>'


def definitions(pairs: Mapping[str, str]) -> str:
    """Names with their values."""
    return "<dl>" + "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs.items()) + "</dl>"


def details(summary: str, content: str) -> str:
    """What most readers skip."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def _file(name: str) -> str:
    return (resources.files("pzobo.bench.report") / name).read_text(encoding="utf-8")
