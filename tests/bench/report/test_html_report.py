"""Does the page say what the runs say, need nothing from outside, and print what files hold as text?"""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.html_report import summarize, write_report
from pzobo.bench.report.plots import figure
from pzobo.bench.report.runs import read
from pzobo.bench.report.summary import POINTS, Summary
from tests.bench.report.written import ABOUTS, NASTY, THEORY, about, done, values, write, write_experiments

VOID = {"meta", "link", "br", "img", "path"}


class Page(HTMLParser):
    """The elements of a page with their attributes and texts; complains about what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data + " "

    def all(self, tag, **attrs):
        return [found for name, found in self.elements if name == tag and attrs.items() <= found.items()]


def without_plotly(text):
    head, _, rest = text.partition("<script>")
    return head + rest.partition("</script>")[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_experiments(folder / "runs", seeds=3)
    write_report(
        read(folder / "runs"), ABOUTS, folder / "out" / "report.html", theory=THEORY, figures=folder / "figures"
    )
    return folder


@pytest.fixture(scope="module")
def source(written):
    return without_plotly((written / "out" / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_every_section_has_a_name_and_a_place_in_the_navigation(page):
    places = [attrs["id"] for attrs in page.all("section")]
    assert places == ["claims", "hr-linear", "effect-of-n", "mine", "theory"]
    assert [attrs["href"] for attrs in page.all("a")][: len(places)] == [f"#{place}" for place in places]
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    assert {attrs["aria-labelledby"] for attrs in page.all("section")} <= ids


def test_claims_come_with_verdict_and_evidence(page):
    verdicts = [attrs["class"] for attrs in page.all("span") if attrs.get("class", "").startswith("verdict")]
    assert verdicts == ["verdict yes", "verdict in-part", "verdict no", "verdict not-run"]
    assert "It converges late." in page.text


def test_the_check_of_an_experiment_without_runs_is_not_asked(tmp_path):
    def check(summary):
        raise AssertionError

    write(tmp_path / "run", values("outer_loss", [1.0]), experiment="toy")
    never = About("never", "Never", "", "loss", (), claims=(Claim("Nothing.", check),))
    text = write_report(read(tmp_path), [about(), never], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not run" in Page(without_plotly(text)).text


def test_a_page_of_own_runs_opens_with_them_and_says_nothing_of_the_paper(tmp_path):
    write(tmp_path / "mine" / "run", values("outer_loss", [1.0]))
    own = Page(without_plotly(write_report(read(tmp_path), ABOUTS, tmp_path / "page.html").read_text(encoding="utf-8")))
    assert [attrs["id"] for attrs in own.all("section")] == ["mine"]
    assert "your runs" in own.text
    assert "1 run." in own.text
    assert "The paper says" not in own.text


def test_nothing_is_loaded_from_outside(page, source):
    for tag, attrs in page.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, attrs)
    assert "@import" not in source
    assert "url(" not in source
    assert "http" not in source.replace("http-equiv", "")


def test_plotly_is_there_once_and_the_rest_is_small(written, source):
    whole = (written / "out" / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"plotly\.js v\d", whole)) == 1
    assert len(source) < 1_000_000


def test_what_files_hold_is_shown_as_text(page, source):
    assert NASTY in page.text
    assert "<script>alert" not in source
    assert not page.all("b")
    blobs = re.findall(r'<script type="application/json">(.*?)</script>', source, re.S)
    names = {trace["name"] for blob in blobs for trace in json.loads(blob)["data"]}
    assert html.escape(NASTY) in names  # plotly reads markup in names
    assert NASTY not in names


def test_a_table_has_the_values_of_the_runs(tmp_path):
    for seed, last in enumerate((1.0, 2.0, 4.0)):
        config = {"experiment": "toy", "method": "pzobo", "label": "PZOBO", "seed": seed, "lr": 0.25}
        rows = [row | {"memory": 12.5} for row in values("outer_loss", [9.0, last], 0.5)]
        write(tmp_path / str(seed), rows, done(), **config, command=f"pzobo run toy --seed {seed}")
    text = write_report(read(tmp_path), [about(thresholds=(2.0, 0.5))], tmp_path / "page.html").read_text(
        encoding="utf-8"
    )
    table = re.search(r'<table class="results">.*?</table>', text, re.S)
    assert table is not None
    cells = [html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", table[0])]
    head, row = cells[:9], cells[9:]
    assert head[1:5] == [
        "final outer loss",
        "least to largest",
        "s to ≤\N{NO-BREAK SPACE}2",
        "s to ≤\N{NO-BREAK SPACE}0.5",
    ]
    assert row == ["PZOBO", "2", "1 to 4", "0.5", "not reached", "500", "12.5", "0.25", "3"]
    assert "pzobo run toy --seed 2" in text
    assert "Median over 3 seeds" in text
    assert "a CPU" in text


def test_failures_and_unfinished_runs_are_said_in_words(page):
    assert "failed: 1 of 1. The inner path is not finite" in page.text
    assert "not finished: 1 of 1." in page.text
    assert "not finite" in page.text


def test_audits_and_choices_are_said_in_words(tmp_path):
    rows = [
        {"step": 0, "seconds": 0.0, "outer_loss": 2.0, "audit_ratio": 0.78, "audit_signal": 0.5},
        {"step": 1, "seconds": 1.0, "outer_loss": 1.0, "audit_ratio": 0.994},
    ]
    chosen = {**done(), "chosen": "Unrolled(): 3 ms a pass, 0.0e+00 from Unrolled()."}
    write(tmp_path / "mine", rows, chosen)
    write(tmp_path / "toy", rows, done(), experiment="toy", method="pzobo", seed=0)
    text = write_report(read(tmp_path), [about()], tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(without_plotly(text)).text
    assert page.count("audit: ratio 0.78 to 0.99, signal 0.5.") == 2
    assert "chosen: Unrolled()." in page
    assert "audit_ratio" not in page  # no curve of its own


def test_runs_that_no_view_shows_are_in_a_table(page):
    assert "Other settings" in page.text
    assert page.text.count("direct gradient only") >= 4  # both views' legends and tables, though one does not name it


def test_half_written_runs_alone_make_a_page(tmp_path):
    write(tmp_path / "empty", [], experiment="toy", method="pzobo", seed=0)
    write(tmp_path / "cut", ['{"step": 0, "outer'], experiment="toy", method="hozog", seed=0)
    write(tmp_path / "mine", [])
    text = write_report(read(tmp_path), [about()], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not finished: 1 of 1." in Page(without_plotly(text)).text


def test_runs_are_sorted_into_sections(tmp_path):
    write(tmp_path / "a", [], experiment="toy")
    write(tmp_path / "b", values("outer_loss", [100.0, 0.1]), experiment="unknown")
    write(tmp_path / "mine" / "one", values("accuracy", [0.1]))
    write(tmp_path / "mine" / "two", [])
    write(tmp_path / "yours" / "only", [])
    found = summarize(read(tmp_path), [about("other"), about()])
    assert [summary.about.title for summary in found] == ["A toy", "unknown", "mine", "only"]
    unknown, mine = found[1].about, found[2].about
    assert [(p.y, p.x, p.log) for p in unknown.views[0].panels] == [
        ("outer_loss", "seconds", True),
        ("outer_loss", "step", True),
    ]
    assert (mine.final, mine.higher) == ("accuracy", True)


def test_a_curve_and_its_band_share_a_legendgroup(tmp_path):
    for seed in range(2):
        write(tmp_path / str(seed), values("outer_loss", [4.0 + seed, 2.0]), done(), method="pzobo", seed=seed)
    summary = Summary(about(), tuple(read(tmp_path)))
    panel = Panel("outer_loss", log=True)
    area, line = figure(summary, summary.groups(View("", {}, (panel,))), panel).data
    assert area.legendgroup == line.legendgroup
    assert list(line.y) == [4.5, 2.0]
    assert list(area.y) == [5.0, 2.0, 2.0, 4.0]
    assert area.fill == "toself"


def test_the_data_in_the_page_are_thin_and_finite(source):
    blobs = re.findall(r'<script type="application/json">(.*?)</script>', source, re.S)
    assert len(blobs) == 3 + 3 + 3 + 2 + 3
    for blob in blobs:
        assert "<" not in blob
        data = json.loads(blob, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["data"]
        assert data
        assert all(len(trace["x"]) <= 2 * POINTS for trace in data)


def test_figures_for_paper_are_written_for_each_view(written):
    names = sorted(path.name for path in (written / "figures").iterdir())
    assert len(names) == 2 * 5
    assert "hr-linear-fig-2-a-d-128.pdf" in names
    for path in (written / "figures").iterdir():
        start = path.read_bytes()[:8]
        assert start.startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
        assert path.stat().st_size > 5000
