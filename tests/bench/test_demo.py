"""Does the demo show what its runs are, on a small page, and does it see when a run does not end in the same bits?"""

import re
from html.parser import HTMLParser

import pytest
import torch

from pzobo import cli
from pzobo.bench import demo, demo_findings
from pzobo.bench.demo_resume import Resumed, kill_and_resume
from pzobo.bench.report.runs import read

SMALL = ["demo", "--seeds", "1", "--steps", "3", "--paper-steps", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    words = [*SMALL, "--out", str(folder / "runs"), "--output", str(folder / "demo.html")]
    assert cli.main(words) == 0
    return folder


def options(folder):
    return demo.Demo(seeds=1, steps=3, paper_steps=3, out=folder / "runs", output=folder / "demo.html")


def findings(folder):
    sources, paper = demo.experiments(options(folder))
    runs = read(folder / "runs" / sources.name), read(folder / "runs" / paper.name)
    return demo_findings.find(sources, *runs, kill_and_resume(sources, folder / "runs" / "killed"))


def test_the_table_has_the_ordinary_models_and_the_controls(made, capsys):
    found = findings(made)
    ends = {run.method: run.rows[-1] for run in read(made / "runs" / "source-weights")}
    for row in found.rows:
        last = ends[row.method]
        assert row.accuracy == (last.get("refit_test_accuracy", last["test_accuracy"]),)
    assert found.row("direct").order == 0
    assert set(found.weights["direct"]) == {0.5}, "without a response the weights never move"
    assert found.row("pzobo-all").order > 0.5
    # All eight directions at once are the exact slope, to mu.
    assert found.weights["pzobo-all"] == pytest.approx(found.weights["itd-r"], abs=0.15)


def test_the_last_three_lines_can_be_read_aloud(made, capsys):
    assert demo.show(options(made)) == 0  # what is there is not made again
    lines = capsys.readouterr().out.strip().splitlines()[-3:]
    found = findings(made)
    assert lines == found.aloud()
    assert lines[0].startswith("Which data to trust")
    best = max(found.row(name).mean for name in ("alike", "ordinary-all"))
    assert f"with all data alike {100 * best:.1f} % at best" in lines[1]
    assert lines[2] == "Killed at step 2 of 3 and resumed, the same run ended in the same bits."


def test_the_page_is_small_and_loads_nothing(made):
    page = (made / "demo.html").read_text()
    assert len(page) < 300_000
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)
    shown = Text(page).text
    assert "100 %" in shown
    order = [shown.index(words) for words in ("are read right", "Accuracy on test digits", "The machine")]
    assert order == sorted(order)
    assert page.count("<img") == 8 * 7
    wrong = re.findall(r'<span class="wrong"><img alt="a (\d)"[^>]*>(\d)</span>', page)
    right = re.findall(r'<span><img alt="a (\d)"[^>]*>(\d)</span>', page)
    assert all(truth != label for truth, label in wrong)
    assert all(truth == label for truth, label in right)
    assert len(wrong) + len(right) == 8 * 7


def test_other_bits_are_seen(made):
    sources, _ = demo.experiments(options(made))
    file = made / "runs" / "killed" / "source-weights" / sources.label() / "itd-r" / "seed-0" / "checkpoint.pt"
    before = file.read_bytes()
    state = torch.load(file, weights_only=False)
    state["x"][0][0] = torch.nextafter(state["x"][0][0], torch.tensor(9.0))
    torch.save(state, file)
    found = kill_and_resume(sources, made / "runs" / "killed")
    file.write_bytes(before)
    assert not found.same
    assert "did NOT end in the same bits" in found.sentence()


def test_a_run_that_could_not_be_killed_is_said():
    assert "was over before it could be killed" in Resumed(None, 3, True).sentence()


class Text(HTMLParser):
    """What a reader sees."""

    def __init__(self, page):
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_data(self, data):
        self.text += data
