"""Is damage in a folder of runs a sentence that hides no good run, and does a report stay in its folders?"""

import json
import os
import warnings
from pathlib import Path

import pytest

from pzobo import cli
from pzobo.bench.report import markdown
from pzobo.bench.report.html_report import write_report
from pzobo.bench.report.places import plain
from pzobo.bench.report.runs import read
from pzobo.errors import DamagedFileError
from pzobo.theory.measurements import Point, Sweep, Verification
from tests.bench.report.written import THEORY, about, done, values, write

GOOD = {"experiment": "hr-linear", "method": "pzobo", "label": "PZOBO, good", "seed": 0, "lr": 0.1, "d": 128, "N": 20}
HALF = "\ud800"
DEEP = "[" * 100_000


def report(folder, capsys):
    """All three forms; what was said on the way."""
    out = folder.parent / "out"
    words = ["report", str(folder), "-o", str(out / "page.html"), "--markdown", str(out / "pages")]
    assert cli.main([*words, "--figures", str(out / "figures")]) == 0
    shown = (out / "page.html").read_text(encoding="utf-8")
    assert "PZOBO, good" in shown
    assert "PZOBO, good" in (out / "pages" / "hr-linear.md").read_text(encoding="utf-8")
    assert (out / "figures" / "hr-linear-fig-2-a-d-128.png").stat().st_size > 1000
    return capsys.readouterr().err, shown


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "runs" / "good", values("outer_loss", [3.0, 1.0]), done(), **GOOD)
    return tmp_path / "runs"


def config(value):
    return json.dumps({"format": 2, "identity": {}, "config": value})


# Names of files


def test_a_report_writes_nothing_outside_of_its_folders(tmp_path):
    names = ["../../escaped", "/escaped", "a/b", "..", "claims", "A B", "a-b", "x" * 400, f"half{HALF}", "CON"]
    for i, name in enumerate(names):
        write(tmp_path / "in" / "runs" / str(i), values("outer_loss", [1.0]), done(), experiment=name)
    write(tmp_path / "in" / "runs" / "own" / "first", values("outer_loss", [1.0]), done())
    os.makedirs(tmp_path / "in" / "deep" / "out")
    before = sorted(tmp_path.rglob("*"))
    pages, figures = (tmp_path / "in" / "deep" / "out" / name for name in ("pages", "figures"))
    runs = read(tmp_path / "in" / "runs")
    write_report(runs, [about()], tmp_path / "in" / "deep" / "out" / "page.html", figures=figures)
    found = markdown.write(runs, [about()], pages, figures)
    new = {path for path in tmp_path.rglob("*") if path not in before}
    assert {path.parent for path in new} == {pages, figures, pages.parent}
    assert len(found) == len(set(found)) == len(names) + 2, "one page for each, and the claims"
    assert {path.suffix for path in pages.iterdir()} == {".md"}
    for page in found:
        for path in page.read_text(encoding="utf-8").split("](")[1:]:
            assert (page.parent / path.partition(")")[0]).is_file()


def test_names_that_collide_get_a_number():
    assert plain(["a b", "A-b", "a/b", "a-b-2", "", "..", "theory"], ["theory"]) == [
        "a-b", "a-b-2", "a-b-3", "a-b-2-2", "unnamed", "unnamed-2", "theory-2",
    ]  # fmt: skip


# What a run's files may hold


CONFIGS = {
    "not JSON": "{",
    "another form": "[]",
    "no config": '{"config": 3}',
    "deep": DEEP,
    "a number of 5000 digits": '{"config": {"seed": ' + "9" * 5000 + "}}",
    "half a character": config(GOOD | {"label": HALF, "note": HALF, HALF: HALF, "command": HALF}),
    "experiment is a list": config(GOOD | {"experiment": ["hr-linear"]}),
    "experiment is a dict": config(GOOD | {"experiment": {"a": 1}}),
    "experiment is a number": config(GOOD | {"experiment": 3}),
    "experiment is empty": config(GOOD | {"experiment": ""}),
    "experiment is half a character": config(GOOD | {"experiment": HALF}),
    "method is a list": config(GOOD | {"method": [1], "label": None}),
    "label is a dict": config(GOOD | {"label": {"a": [HALF]}}),
    "seed is a dict": config(GOOD | {"seed": {"a": 1}}),
    "N is a list": config(GOOD | {"N": [20], "method": "pzobo-authors"}),
    "lr is a text": config(GOOD | {"lr": "fast"}),
    "lr is not finite": '{"config": {"experiment": "hr-linear", "lr": Infinity, "seed": NaN}}',
    "searched is a number": config(GOOD | {"lr_search": 3}),
    "searched is a list": config(GOOD | {"lr_search": [[1]]}),
    "searched are texts": config(GOOD | {"lr_search": {"fast": 1, "nan": 2}}),
    "command is a list": config(GOOD | {"command": ["|", "\n"]}),
}


def test_configs_of_another_form(folder, capsys):
    for name, text in CONFIGS.items():
        bad = write(folder / name, values("outer_loss", [2.0, 1.5]), done())
        (bad / "config.json").write_text(text)
    said, _ = report(folder, capsys)
    assert {name for name in CONFIGS if f"{name}/config.json is damaged" in said} == set(list(CONFIGS)[:4])


METRICS = {
    "lines that are no dicts": (b'3\n"text"\n[1]\nnull\n', 4),
    "lines that are no JSON": (b"{\n\xff\xfe\n{}}\n", 3),
    "a deep line": (b"[" * 100_000 + b"\n", 1),
    "half a line at the end": (b'{"step": 0, "outer', 0),
    "texts for numbers": (b'{"step": "0", "seconds": [1], "outer_loss": {"a": 1}}\n', 0),
    "a number of 400 digits": (b'{"step": 0, "seconds": 1, "outer_loss": ' + b"9" * 400 + b"}\n", 0),
    "a step of 400 digits": (b'{"step": ' + b"9" * 400 + b', "seconds": ' + b"9" * 300 + b', "outer_loss": 1}\n', 0),
    "numbers of 308 digits": (b'{"step": 0, "seconds": ' + b"9" * 308 + b', "outer_loss": ' + b"9" * 308 + b"}\n", 0),
    "NaN and infinity": (b'{"step": NaN, "seconds": Infinity, "outer_loss": -Infinity}\n', 0),
    "half a character": (b'{"step": 0, "seconds": 0, "\\ud800": 1, "outer_loss": 2}\n', 0),
    "steps that go back": (b'{"step":5,"outer_loss":1e300}\n{"step":null}\n{"step":3,"outer_loss":1e-300}\n', 0),
    "nothing": (b"", 0),
}


@pytest.mark.parametrize("own", [False, True], ids=["paper", "own"])
def test_metrics_of_another_form(own, folder, capsys):
    for name, (content, _) in METRICS.items():
        bad = write(folder / "bad" / name, [], done(), **({} if own else GOOD | {"seed": name}))
        (bad / "metrics.jsonl").write_bytes(content)
    said, _ = report(folder, capsys)
    for name, (_, lines) in METRICS.items():
        assert (f"{name}/metrics.jsonl has {lines} lines that are no rows" in said) == (lines > 0)


RESULTS = ["[]", "{", "3", DEEP, '{"stopped": ["failed"], "error": {"a": "\\ud800"}}']


@pytest.mark.parametrize("name", ["result.json", "environment.json"])
def test_other_files_of_another_form(name, folder, capsys):
    for i, content in enumerate(RESULTS):
        bad = write(folder / f"bad{i}", values("outer_loss", [2.0]), done(), **GOOD | {"seed": i})
        (bad / name).write_text(content)
    said, _ = report(folder, capsys)
    assert [f"bad{i}/{name} is damaged" in said for i in range(len(RESULTS))] == [True] * 4 + [False]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "unreadable"])
def test_something_else_in_place_of_a_file(kind, folder, capsys, monkeypatch):
    paths = [folder / "theory.json"]
    for name in ("config.json", "metrics.jsonl", "result.json", "environment.json"):
        bad = write(folder / name[:3], values("outer_loss", [2.0]), done(), **GOOD | {"seed": name})
        paths.append(bad / name)
    real = Path.read_bytes

    def refuse(self):
        if self in paths:
            raise PermissionError(13, "Permission denied")
        return real(self)

    for path in paths:
        path.unlink(missing_ok=True)
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link to nothing":
            path.symlink_to("nowhere")
        else:
            path.write_text("{}")
            monkeypatch.setattr(Path, "read_bytes", refuse)  # the tests may run as root, who may read anything
    said, _ = report(folder, capsys)
    found = [path for path in paths if f"{path} is damaged" in said]
    assert found == (paths if kind != "link to nothing" else [])


def test_a_name_that_is_no_text(folder, capsys):
    write(folder / os.fsdecode(b"own\xff"), values("outer_loss", [2.0]), done())
    said, shown = report(folder, capsys)
    assert "own\N{REPLACEMENT CHARACTER}" in shown
    assert said == ""


# theory.json

SWEEP = json.loads(THEORY.to_json())["sweeps"][0]


def other_theories():
    yield "nothing", ""
    yield "deep", DEEP
    yield "a list", "[]"
    for key in ("sweeps", "seconds"):
        yield f"no {key}", json.dumps({k: v for k, v in json.loads(THEORY.to_json()).items() if k != key})
    for key in ("statement", "quantity", "problem", "against", "points"):
        yield f"no {key}", theory({k: v for k, v in SWEEP.items() if k != key})
    for key in SWEEP:
        yield f"{key} of another type", theory(SWEEP | {key: {"a": [HALF]}})
    for key in SWEEP["points"][0]:
        yield f"{key} of a point", theory(SWEEP | {"points": [SWEEP["points"][0] | {key: "1"}]})
    yield "another law", theory(SWEEP | {"law": "cubic"})
    yield "a span of three", theory(SWEEP | {"span": [0, 1, 2]})
    for value in (3, None, "text", {}):
        yield f"points that are {value!r}", theory(SWEEP | {"points": value})
        yield f"a span that is {value!r}", theory(SWEEP | {"span": value}) if value is not None else ""
    yield "an unknown key", theory(SWEEP | {"more": 1})
    yield "a bool for a number", theory(SWEEP | {"tolerance": True})


def theory(sweep):
    return json.dumps({"sweeps": [sweep], "seconds": 1.0})


@pytest.mark.parametrize(("name", "text"), [pytest.param(n, t, id=n) for n, t in other_theories()])
def test_a_theory_of_another_form(name, text):
    with pytest.raises(DamagedFileError):
        Verification.from_json(text)


def test_a_report_without_a_theory_that_is_damaged(folder, capsys):
    (folder / "theory.json").write_text("[]")
    assert cli.main(["report", str(folder), "-o", str(folder.parent / "page.html")]) == 0
    assert capsys.readouterr().err == (
        f"pzobo report: {folder / 'theory.json'} is damaged (it is '[]', expected a dict); "
        "the report is without the theory.\n"
    )
    assert "PZOBO, good" in (folder.parent / "page.html").read_text(encoding="utf-8")


def test_numbers_that_have_no_slope(folder, capsys):
    """They are no damage, but what they say is that the theory does not hold."""
    sweeps = []
    for law in ("power", "exponential"):
        for bad in (0.0, -1.0, float("nan"), float("inf"), 1e308):
            for points in (
                [Point(bad, 1.0, 0.0, 1.0)] * 3,
                [Point(1.0, bad, bad, bad, bad), Point(bad, bad, 0.0, 1.0)],
            ):
                sweeps.append(Sweep("Prop. 9", "error", HALF, "N", tuple(points), -1.0, law))
                assert not sweeps[-1].as_predicted
    (folder / "theory.json").write_text(Verification(tuple(sweeps), 1.0).to_json())
    _, shown = report(folder, capsys)
    assert "Prop. 9" in shown


def test_the_good_runs_are_read_without_a_word(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (run,) = read(folder)
    assert [row["outer_loss"] for row in run.rows] == [3.0, 1.0]
