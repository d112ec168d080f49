"""Are runs that were kept with the code the same runs on another machine, and does their recording go on there?"""

from dataclasses import replace
from pathlib import Path

from benchmarks import keep
from pzobo.bench import runner
from pzobo.bench.experiments.memory import Quadratics
from pzobo.bench.report.runs import read
from pzobo.bench.report.summary import Summary

SMALL = Quadratics(
    p=3, d=3, n=32, N=2, steps=6, seeds=1, methods=("direct", "pzobo"), outer=("sgd",), lr="search",
    lr_grid=(0.01, 0.1), search_steps=2, compile=False, evaluate_every=2, workers=0, resume=True,
)  # fmt: skip


def test_what_was_kept_is_not_made_again_and_says_the_same(tmp_path: Path) -> None:
    file, there = tmp_path / "recorded.jsonl", tmp_path / "there"
    runner.run(replace(SMALL, out=tmp_path / "here"))
    (half,) = (tmp_path / "here").rglob("direct/seed-0/result.json")
    half.unlink()  # as if it had been killed
    assert keep.keep(tmp_path / "here", file) == 2, "the rates, and the run that has ended"
    assert keep.stored(file) == sorted(keep.finished(tmp_path / "here"), key=keep.key), "every number as it was"
    keep.bring_back(there, file)
    here, (back,) = read(tmp_path / "here"), read(there)
    (same,) = [run for run in here if run.method == "pzobo"]
    assert (back.config, back.result) == (same.config, same.result)
    found = [Summary(SMALL.about, (run,)) for run in (back, same)]
    for value in (Summary.final, Summary.milliseconds):
        assert abs(value(found[0], None) / value(found[1], None) - 1) < 1e-4
    assert [row["step"] for row in back.rows] == [0, 2, 4, 6]
    made: list[str] = []
    runner.run(replace(SMALL, out=there, seeds=2), lambda text, done, total: made.append(text.split(",")[0]))
    label = "quadratics: p3-d3-n32-sgd"
    assert made == [f"{label} {name}" for name in ("direct seed 0", "direct seed 1", "pzobo seed 1")], "no rate again"
    assert keep.keep(there, file) == 5
    assert keep.keep(tmp_path / "none", file) == 5, "what was kept stays"
    part = tmp_path / "part.jsonl"
    assert keep.keep(there, part, only="pzobo/seed") == 2, "the runs of one method, and no rates"
    assert {line["folder"].split("/")[-2] for line in keep.stored(part)} == {"pzobo"}
    newer = next(there.rglob("result.json"))
    newer.write_text("{}")
    keep.bring_back(there, file)
    assert newer.read_text() == "{}", "what is in the folder stays"


def test_long_runs_are_kept_by_some_of_their_rows(tmp_path: Path) -> None:
    runner.run(replace(SMALL, out=tmp_path, lr=0.1, steps=200, evaluate_every=1, methods=("direct",)))
    line = next(line for line in keep.finished(tmp_path) if "metrics.jsonl" in line["files"])
    steps = [row["step"] for row in line["files"]["metrics.jsonl"]]
    assert (len(steps), steps[0], steps[-1]) == (keep.ROWS, 0, 200)
