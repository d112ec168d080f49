"""Is a folder of runs read as it was written, also where a process was killed?"""

import json
import math

import pytest

from pzobo.bench.report.runs import read
from pzobo.bench.report.sections import generic
from pzobo.errors import OptionError, PzoboError
from tests.bench.report.written import ENVIRONMENT, done, values, write


def test_a_run_is_read_from_any_depth(tmp_path):
    folder = write(tmp_path / "a" / "b" / "c", values("outer_loss", [3.0, 1.0]), done(), method="pzobo", seed=4)
    (run,) = read(tmp_path)
    assert run.folder == folder
    assert run.config == {"method": "pzobo", "seed": 4}
    assert run.environment == ENVIRONMENT
    assert run.rows == (
        {"step": 0, "seconds": 0.0, "outer_loss": 3.0},
        {"step": 1, "seconds": 1.0, "outer_loss": 1.0},
    )
    assert run.result == done()
    assert run.method == "pzobo"
    assert run.experiment is None
    assert run.failed is None


def test_runs_come_in_the_order_of_their_names(tmp_path):
    for name in ("c", "a", "b"):
        write(tmp_path / name, [], name=name)
    assert [run.config["name"] for run in read(tmp_path)] == ["a", "b", "c"]


def test_half_a_line_is_ignored(tmp_path):
    write(tmp_path / "run", [*values("outer_loss", [3.0, 2.0]), '{"step": 2, "outer_lo'])
    (run,) = read(tmp_path)
    assert [row["step"] for row in run.rows] == [0, 1]
    assert run.result is None


def test_a_whole_last_line_counts_without_its_end(tmp_path):
    write(tmp_path / "run", [*values("outer_loss", [3.0]), '{"step": 1, "outer_loss": 2.0}'])
    (run,) = read(tmp_path)
    assert [row["outer_loss"] for row in run.rows] == [3.0, 2.0]


def test_half_a_character_does_no_harm(tmp_path):
    folder = write(tmp_path / "run", values("outer_loss", [3.0]))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 1, "é'.encode()[:-1])
    (run,) = read(tmp_path)
    assert len(run.rows) == 1


def test_null_and_infinity_are_nan(tmp_path):
    write(tmp_path / "run", ['{"step": 0, "outer_loss": null}\n{"step": 1, "outer_loss": Infinity}\n'])
    (run,) = read(tmp_path)
    assert [math.isnan(row["outer_loss"]) for row in run.rows] == [True, True]


def test_rows_with_and_without_booleans_are_the_same(tmp_path):
    """Version 0.1 wrote neither "evaluated" nor "last"; neither is a metric to plot."""
    rows = values("outer_loss", [3.0, 1.0])
    write(tmp_path / "old", rows)
    write(tmp_path / "new", [row | {"evaluated": i == 1, "last": i == 1} for i, row in enumerate(rows)])
    new, old = read(tmp_path)
    assert new.rows == old.rows
    assert generic("toy", "toy", [new]).views == generic("toy", "toy", [old]).views


def test_steps_done_again_after_a_resume_count_once(tmp_path):
    write(
        tmp_path / "run", [{"step": s, "outer_loss": y} for s, y in ((0, 9.0), (1, 8.0), (2, 7.0), (1, 6.0), (2, 5.0))]
    )
    (run,) = read(tmp_path)
    steps = [row["step"] for row in run.rows]
    assert steps == sorted(steps)
    assert run.rows[-1]["outer_loss"] == 5.0
    assert 7.0 not in [row["outer_loss"] for row in run.rows]


def test_columns_pair_the_rows_that_have_both(tmp_path):
    write(tmp_path / "run", [{"step": 0, "a": 1.0}, {"step": 1}, {"step": 2, "a": 3.0}, {"a": 4.0}])
    (run,) = read(tmp_path)
    assert run.column("step", "a") == [(0, 1.0), (2, 3.0)]


def test_only_a_config_is_needed(tmp_path):
    folder = write(tmp_path / "run", [], seed=0)
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").write_text('{"python": "3.')
    (run,) = read(tmp_path)
    assert run.rows == ()
    assert run.environment == {}


def test_why_a_run_failed(tmp_path):
    write(tmp_path / "run", [], {"stopped": "failed", "error": "The path is not finite."})
    (run,) = read(tmp_path)
    assert run.failed == "The path is not finite."


def test_a_folder_with_half_a_config_is_left_out_with_a_warning(tmp_path):
    write(tmp_path / "good", [], seed=0)
    broken = write(tmp_path / "broken", [], seed=1) / "config.json"
    broken.write_text(json.dumps({"format": 1})[:-3])
    with pytest.warns(UserWarning, match="broken"):
        (run,) = read(tmp_path)
    assert run.config == {"seed": 0}


def test_no_folder_and_no_runs_say_what_to_do(tmp_path):
    assert issubclass(OptionError, PzoboError)
    with pytest.raises(OptionError, match=r"nowhere is not a folder\. Give the folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"no run in .*Run an experiment first"):
        read(tmp_path)


def test_rows_with_an_accuracy_have_an_error(tmp_path):
    write(
        tmp_path / "a", [{"step": 0, "accuracy": 0.75}, {"step": 1, "outer_loss": 2.0}, {"step": 2, "accuracy": None}]
    )
    (run,) = read(tmp_path)
    first, second, third = run.rows
    assert first["error"] == 0.25
    assert "error" not in second
    assert math.isnan(third["error"])
