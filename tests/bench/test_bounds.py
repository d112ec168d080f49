"""Is a number that makes no sense refused by every experiment, with a sentence, before anything runs?"""

import math
from dataclasses import fields, replace

import pytest

from pzobo import cli
from pzobo.bench import runner
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.experiments.shallow import Linear
from pzobo.errors import DamagedFileError, OptionError, TooLargeError

MAY_BE_ZERO = {"workers", "evaluate_every", "checkpoint_every", "gamma", "noise", "corruption", "momentum", "start"}
WHOLE_AND_UNSET = {
    "m",
    "n",
    "steps",
    "search_steps",
    "filters",
    "queries",
    "meta_batch",
    "eval_tasks",
    "milestones",
    "also_N",
}
FLOAT_AND_UNSET = {"seconds", "search_seconds", "alpha", "start", "lr"}


def numbers():
    """Every option of every experiment that takes a number, and whether it is a whole one."""
    for name, kind in EXPERIMENTS.items():
        for f in fields(kind):
            default = f.default[0] if isinstance(f.default, tuple) and f.default else f.default
            if isinstance(default, bool):
                continue
            if isinstance(default, (int, float)) or f.name in WHOLE_AND_UNSET | FLOAT_AND_UNSET:
                whole = isinstance(default, int) or f.name in WHOLE_AND_UNSET
                yield pytest.param(name, f.name, whole, isinstance(f.default, tuple), id=f"{name} {f.name}")


@pytest.mark.parametrize(("name", "option", "whole", "many"), list(numbers()))
def test_every_number_has_bounds(name, option, whole, many):
    bad = [-1, 10**10, 10**30, 1.5, math.nan] if whole else [math.nan, math.inf, -math.inf]
    if not whole and option != "start":
        bad.append(-1.0)
    if option not in MAY_BE_ZERO:
        bad.append(0)
    for value in bad:
        with pytest.raises(OptionError, match=f"^{option}={value!r}: must be a "):
            EXPERIMENTS[name](**{option: (value,) if many else value})
    if option in MAY_BE_ZERO:
        EXPERIMENTS[name](**{option: 0})


def test_numbers_are_found():
    found = [p.values[1] for p in numbers()]
    assert {"seeds", "steps", "N", "d", "n", "mu", "directions", "lr", "lr_grid", "batch_size", "workers"} <= set(found)
    assert len(found) > 90


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hr-linear", "--steps", "0"], "steps=0: must be a whole number from 1"),
        (["hr-linear", "--seeds", "0"], "seeds=0: must be a whole number from 1 to 1000"),
        (["hr-linear", "--lr", "nan"], "lr=nan: must be a finite number above 0"),
        (["hr-linear", "--lr", "inf"], "lr=inf"),
        (["hr-linear", "--lr-grid", "0.1", "nan"], "lr_grid=nan"),
        (["hr-linear", "--lr-grid"], "lr_grid is empty"),
        (["hr-linear", "--seconds", "-1"], r"seconds=-1.0"),
        (["hr-linear", "--d"], "d is empty"),
        (["hr-linear", "--device", "abacus"], "device='abacus' cannot be used"),
        (["ho-logistic", "--N"], "N is empty"),
        (["ho-logistic", "--momentum", "1"], "momentum=1.0: must be a number in [0, 1)"),
        (["partial-vs-full", "--model", "cubic"], "cubic"),
        (["hr-linear", "--directions", "1000000000"], "one outer step would make 4.0e+10 inner steps"),
        (["hr-linear", "--N", "1000000000"], "directions=1 and N=1000000000: one outer step would make"),
        (["hr-linear", "--also-N", "20", "1000000000"], "N=1000000000: one outer step would make"),
        (["ho-logistic", "--directions", "20000000"], "Choose fewer"),
        (["few-shot", "--directions", "1000000000"], "one outer step would make 3.0e+10 inner steps"),
        (["few-shot", "--meta-batch", "1000000000"], "meta_batch=1000000000: there are train_tasks=20000 different"),
        (["few-shot", "--eval-tasks", "1000000000"], "eval_tasks=1000000000: must be a whole number from 1 to 1000000"),
        (["few-shot", "--test-tasks", "1000000000"], "test_tasks=1000000000: must be a whole number from 1 to 1000000"),
        (["few-shot", "--meta-batch", "9", "--train-tasks", "8"], "Choose a smaller meta_batch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_on_the_command_line(arguments, sentence, tmp_path, capsys):
    try:
        code = cli.main(["run", *arguments, "--out", str(tmp_path / "runs"), "--workers", "0"])
    except SystemExit as stop:
        code = stop.code
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


def test_work_that_is_only_much_is_let_through():
    Linear(directions=10**6)
    Linear(N=10**6, also_N=())
    EXPERIMENTS["few-shot"](meta_batch=8, train_tasks=8)


def test_the_demo_and_the_reproduction_have_the_same_bounds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["demo", "--steps", "0"], ["demo", "--seeds", "-1"], ["reproduce", "--quick", "--workers", "-1"]):
        assert cli.main(words) == 2
        assert "must be a whole number" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_steps_are_those_that_were_asked_for():
    assert [v.steps for v in Linear(d=(128, 256), also_N=()).variants()] == [100, 150]
    assert [v.steps for v in Linear(d=(128, 256), also_N=(), steps=1).variants()] == [1, 1]


SMALL = Linear(d=(8,), n=40, steps=2, seeds=1, also_N=(), methods=("direct",), compile=False, workers=0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [{"d": (10**9,)}, {"n": 10**9, "m": 10**9}, {"d": (200_000,), "n": 1}])
def test_what_cannot_be_allocated_is_a_sentence(size, workers, tmp_path):
    with pytest.raises(TooLargeError, match=r"does not fit .*GB are needed at once.*choose smaller sizes"):
        runner.run(replace(SMALL, out=tmp_path, workers=workers, **size))
    assert runner.run(replace(SMALL, out=tmp_path)) == [], "the limit is gone"


FOUND = ['{"direct": 3}', '{"direct": {"fast": 1}}', '{"direct": {"0.1": "x"}}']


@pytest.mark.parametrize(
    "text", ["[]", "{", *FOUND, '{"direct": {"0.1": 1}}', *(f'{{"settings": {{}}, "found": {part}}}' for part in FOUND)]
)
def test_a_search_that_is_damaged(text, tmp_path):
    file = tmp_path / "hr-linear" / "rates-d8-N20.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(DamagedFileError, match=r"rates-d8-N20\.json is damaged .*remove it"):
        runner.run(replace(SMALL, out=tmp_path, lr="search", lr_grid=(0.1,), resume=True))
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"steps": "many", "stopped": ["x"]}', "[" * 100_000])
def test_a_result_that_is_damaged_is_not_a_finished_run(text, tmp_path):
    runner.run(replace(SMALL, out=tmp_path))
    result = tmp_path / "hr-linear" / "d8-N20" / "direct" / "seed-0" / "result.json"
    good = result.read_text()
    result.write_text(text)
    runner.run(replace(SMALL, out=tmp_path, resume=True))
    assert result.read_text() == good


def test_evaluations_by_seconds():
    assert Linear(evaluate_every="2s").settings()["evaluate_every"] == "2s"
    for text in ("2", "s", "0s", "-1s", "2 s"):
        with pytest.raises(OptionError, match="evaluate_every"):
            Linear(evaluate_every=text)
