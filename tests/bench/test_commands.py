"""Does the command line do what it says, and answer errors of use with a sentence and exit code 2?"""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from pzobo import cli
from pzobo.bench import commands
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.report.runs import read
from pzobo.theory.measurements import Point, Sweep, Verification

SMALL = ["--d", "8", "--n", "40", "--steps", "4", "--also-N", "--seeds", "1", "--no-compile", "--workers", "0"]
OPTIONS = {kind.__name__ for made in EXPERIMENTS.values() for kind in made.__mro__} | {"_Report", "_Reproduce", "Demo"}
SENTENCE = re.compile(r"(?!Of |And )[A-Z].*\.", re.S)


def test_list_names_everything(capsys):
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name, kind in EXPERIMENTS.items():
        assert name in shown
        assert all(method in shown for method in kind.menu)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "hr-cubic"], "there is no experiment 'hr-cubic'"),
        (["run", "hr-linear", "--methods", "magic"], "has no method 'magic'"),
        (["report", "nowhere"], "nowhere"),
        (
            [
                "run",
                "hr-lenet",
                "--data",
                "mnist",
                "--root",
                "nowhere",
                "--seeds",
                "1",
                "--methods",
                "direct",
                "--workers",
                "0",
            ],
            "MNIST/raw/train-images",
        ),
    ],
    ids=["experiment", "method", "folder", "data"],
)
def test_errors_of_use_are_sentences(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PZOBO_DATA", raising=False)
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["run", "hr-linear", "--stepz", "3"], ["run", "hr-linear", "--seeds", "many"]])
def test_a_wrong_flag_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2


def test_run_without_an_experiment_lists_them(capsys):
    assert cli.main(["run"]) == 2
    assert "hr-two-layer" in capsys.readouterr().out


def test_a_second_run_is_refused_until_it_is_resumed(tmp_path, capsys):
    command = ["run", "hr-linear", *SMALL, "--methods", "direct", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    assert cli.main(command) == 2
    assert "--resume" in capsys.readouterr().err
    assert cli.main([*command, "--resume"]) == 0


def test_run_and_report_with_the_theory(tmp_path, capsys):
    runs, page, figures = tmp_path / "runs", tmp_path / "report.html", tmp_path / "figures"
    assert cli.main(["run", "hr-linear", *SMALL, "--out", str(runs)]) == 0
    sweep = Sweep("Proposition 9", "error", "quadratic", "Q", (Point(1, 2.0, 0.1, 3.0), Point(2, 1.0, 0.1, 3.0)), -1.0)
    (runs / "theory.json").write_text(Verification((sweep,), 1.0).to_json())
    assert cli.main(["report", str(runs), "-o", str(page), "--figures", str(figures)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Proposition 9" in text
    assert "pzobo run hr-linear" in text
    assert "PZOBO, authors&#x27; code" in text
    assert text.count("plotly.js v") == 1
    assert {path.suffix for path in figures.iterdir()} == {".png", ".pdf"}
    made = {run.method: run for run in read(runs)}
    assert set(made) == set(EXPERIMENTS["hr-linear"]().chosen())
    assert made["itd-r"].rows[0]["cosine"] == pytest.approx(1, abs=1e-4)
    assert made["itd-r-difference"].rows[0]["cosine"] == pytest.approx(1, abs=1e-3)
    assert made["direct"].rows[0]["cosine"] < 0.9


def test_few_shot_learning_is_an_experiment(tmp_path):
    small = ["--filters", "8", "--meta-batch", "2", "--queries", "3", "--eval-tasks", "4", "--test-tasks", "6"]
    small += ["--steps", "3", "--seeds", "1", "--workers", "0", "--learner", "direct", "pzobo-z", "protonet", "anil"]
    assert cli.main(["run", "few-shot", *small, "--out", str(tmp_path)]) == 0
    made = {run.method: run for run in read(tmp_path)}
    assert set(made) == {"direct", "pzobo-z", "protonet", "anil"}
    for run in made.values():
        assert [row["step"] for row in run.rows] == [0, 1, 2, 3]
        assert 0.2 < run.rows[-1]["test_accuracy"] <= 1
        assert "test_accuracy" not in run.rows[0]


def test_digits_are_a_smaller_few_shot_problem_and_flags_win():
    make = EXPERIMENTS["few-shot"]
    sizes = ("filters", "queries", "meta_batch")
    assert [make().settings()[name] for name in sizes] == [16, 5, 4]
    assert [make(data="omniglot").settings()[name] for name in sizes] == [32, 15, 16]
    assert [make(data="omniglot", queries=3).settings()[name] for name in sizes] == [32, 3, 16]
    problem = make(filters=8).problem(0)
    assert (problem.queries, problem.meta_batch) == (5, 4)
    assert problem.model().net.convolutions[0].out_channels == 8
    assert problem.data.train.shape == (1, 16, 16)
    assert make(size=12).problem(0).data.train.shape == (1, 12, 12)


def test_the_theory_survives_json():
    found = Verification(
        (
            Sweep("P", "error", "quadratic", "N", (Point(1, 2.0, 0.1, 3.0, 2.5),), -0.1, "exponential", (0, None), 0.2),
            Sweep("L", "bias", "logistic", "mu", (Point(1e-3, 2.0, 0.0, 3.0),)),
        ),
        3.5,
    )
    assert Verification.from_json(json.dumps(json.loads(found.to_json()))) == found


def test_every_help_text_can_be_read_alone():
    """What stands below a field of a dataclass of options is its help text: a sentence, not "Of the data."."""
    folder = Path(commands.__file__).parent
    texts = {}
    for path in [folder / "commands.py", folder / "demo.py", *(folder / "experiments").glob("*.py")]:
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(kind, ast.ClassDef) and kind.name in OPTIONS:
                for field, below in pairwise(kind.body):
                    if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                        texts[f"{kind.name}.{ast.unparse(field.target)}"] = ast.literal_eval(below.value)
    assert len(texts) > 60
    fragments = {name: text for name, text in texts.items() if len(text.split()) < 4 or not SENTENCE.fullmatch(text)}
    assert not fragments
