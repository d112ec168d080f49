"""Do the pages for a repository have the values of the runs, their figures, and how they were made?"""

import re

from pzobo.bench.report import markdown
from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.html_report import write_report
from pzobo.bench.report.runs import read
from tests.bench.report.written import done, values, write

ABOUT = About(
    "toy",
    "A toy",
    "What is run.",
    "accuracy",
    (
        View("Easy", {"data": "easy"}, (Panel("accuracy"),), thresholds=(0.9,)),
        View("Hard", {"data": "hard"}, (Panel("accuracy"),)),
    ),
    higher=True,
    beside=("test_accuracy", "test_interval"),
    thresholds=(0.3, 0.4),
    claims=(Claim("It learns.", lambda s: ("yes", f"{s.final('pzobo', data='easy'):g} | 1")),),
)


def written(folder, **more):
    for data, last in (("easy", 0.95), ("hard", 0.35)):
        rows = values("accuracy", [0.2, last], 2.0)
        rows[-1] |= {"test_accuracy": last - 0.05, "test_interval": 0.0125}
        config = {"experiment": "toy", "method": "pzobo", "label": "PZOBO", "seed": 0, "lr": 0.5, "data": data}
        write(folder / data, rows, done(), **config, command=f"pzobo run toy --data {data}", **more)
    return read(folder)


def table(page, title):
    lines = re.search(rf"^## {title}\n\n(.*?)\n\n", page, re.S | re.M)[1].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_tables_have_other_metrics_and_the_thresholds_of_their_view(tmp_path):
    markdown.write(written(tmp_path / "runs"), [ABOUT], tmp_path / "pages")
    page = (tmp_path / "pages" / "toy.md").read_text(encoding="utf-8")
    (easy,), (hard,) = table(page, "Easy"), table(page, "Hard")
    assert easy["final accuracy"] == "0.95"
    assert easy["test accuracy"] == "0.9"
    assert easy["its ± (95 %)"] == "0.0125"
    assert easy["s to ≥\N{NO-BREAK SPACE}0.9"] == "2"
    assert "s to ≥\N{NO-BREAK SPACE}0.3" not in easy
    assert hard["s to ≥\N{NO-BREAK SPACE}0.3"] == "2"
    assert hard["s to ≥\N{NO-BREAK SPACE}0.4"] == "not reached"


def test_a_page_says_how_it_was_made(tmp_path):
    found = markdown.write(written(tmp_path / "runs"), [ABOUT], tmp_path / "pages")
    assert {path.name for path in found} == {"toy.md", "claims.md"}
    page, claims = (path.read_text(encoding="utf-8") for path in found)
    assert "pzobo run toy --data easy\npzobo run toy --data hard" in page
    assert "a CPU" in page
    assert "--lr search" not in page
    assert "| It learns. | **yes** | 0.95 \\| 1 |" in page
    assert "| It learns. | **yes** | 0.95 \\| 1 |" in claims
    assert "![" not in page


def test_rates_that_were_searched_are_named(tmp_path):
    runs = written(tmp_path / "runs", lr_search={"0.5": 1.0, "0.02": 2.0})
    page, _ = (path.read_text(encoding="utf-8") for path in markdown.write(runs, [ABOUT], tmp_path / "pages"))
    assert "with `--lr search` the best of 0.02, 0.5" in page


def test_figures_that_a_page_shows_are_files(tmp_path):
    runs = written(tmp_path / "runs")
    write_report(runs, [ABOUT], tmp_path / "page.html", figures=tmp_path / "figures")
    markdown.write(runs, [ABOUT], tmp_path / "docs" / "pages", tmp_path / "figures")
    page = (tmp_path / "docs" / "pages" / "toy.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[(.*?)\]\((.*?)\)", page)
    assert [title for title, _ in shown] == ["Easy", "Hard"]
    assert all((tmp_path / "docs" / "pages" / path).is_file() for _, path in shown)
