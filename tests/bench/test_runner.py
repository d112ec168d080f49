"""Do runs side by side come to the same as one by one, go on where they were, and take the best learning rate?"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro

import pzobo
from pzobo.bench import runner
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.experiments.hyperparameters import auc
from pzobo.bench.experiments.shallow import Linear
from pzobo.bench.methods import METHODS
from pzobo.bench.report.runs import read

SMALL = Linear(
    d=(8,), n=40, steps=6, seeds=2, also_N=(), methods=("direct", "pzobo"), compile=False, evaluate_every=2, workers=0
)


def rows(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "memory")} for line in lines]


def test_a_run_is_what_fit_gives(tmp_path):
    experiment = replace(SMALL, out=tmp_path, workers=2)
    assert runner.run(experiment) == []
    folder = tmp_path / "hr-linear" / "d8-N20" / "pzobo" / "seed-1"
    problem = experiment.problem(1)
    method = METHODS["pzobo"].build(experiment.setup(), problem)
    found = pzobo.fit(problem, method, 6, lr=0.05, seed=1, evaluate=experiment.evaluate, evaluate_every=2)
    expected = [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in found.history]
    assert rows(folder) == expected
    assert len(read(tmp_path)) == 4


def test_what_is_finished_is_not_made_again(tmp_path):
    experiment = replace(SMALL, out=tmp_path, resume=True, seeds=1)
    made = []
    runner.run(experiment, lambda text, done, total: made.append(total))
    runner.run(experiment, lambda text, done, total: made.append(total))
    assert made == [2, 2]
    runner.run(replace(experiment, steps=9), lambda text, done, total: made.append(total))
    assert made == [2, 2, 2, 2]
    assert [r["step"] for r in rows(tmp_path / "hr-linear" / "d8-N20" / "direct" / "seed-0")] == list(range(10))


@pytest.mark.parametrize("lr", ["paper", "search"])
def test_shards_make_the_runs_of_the_whole(tmp_path, lr):
    """Three jobs of an array on a shared folder make each run once, with the rates of one job that makes all."""
    whole = replace(SMALL, lr=lr, lr_grid=(0.01, 0.1), methods=("direct", "pzobo", "itd-r"), search_steps=2)
    runner.run(replace(whole, out=tmp_path / "whole"))
    made = []
    for part in ("1/3", "2/3", "3/3"):
        runner.run(replace(whole, out=tmp_path / "shards", shard=part, resume=True))
        made.append({r.relative_to(tmp_path) for r in (tmp_path / "shards").rglob("result.json")})
    assert [len(found) for found in made] == [2, 4, 6]
    for path in (tmp_path / "whole").rglob("result.json"):
        assert rows(path.parent) == rows(tmp_path / "shards" / path.parent.relative_to(tmp_path / "whole"))
    totals = []
    again = replace(whole, out=tmp_path / "shards", resume=True)
    runner.run(again, lambda text, done, total: totals.append(total))
    assert totals == [], "nothing is left to do, and no rate to search"
    assert len(read(tmp_path / "shards")) == 6


@pytest.mark.parametrize("shard", ["0/3", "4/3", "2", "a/b", "1/0"])
def test_a_shard_is_a_part_of_so_many(shard):
    with pytest.raises(pzobo.errors.OptionError, match="as in 2/8"):
        replace(SMALL, shard=shard)


def test_another_run_in_the_folder_is_refused(tmp_path):
    runner.run(replace(SMALL, out=tmp_path, seeds=1))
    with pytest.raises(pzobo.errors.RunFolderError, match=r"different run: mu is 0\.01 there and 0\.1 here\."):
        runner.run(replace(SMALL, out=tmp_path, seeds=1, mu=0.1, resume=True))


def test_the_best_rate_of_the_grid_is_taken(tmp_path):
    experiment = replace(SMALL, out=tmp_path, seeds=1, lr="search", lr_grid=(1e-9, 0.05, 1e9), methods=("direct",))
    runner.run(experiment)
    (run,) = read(tmp_path)
    assert run.config["lr"] == 0.05
    tried = run.config["lr_search"]
    assert tried["0.05"] < tried["1e-09"]
    assert tried["0.05"] < tried["1e+09"]
    # A resumed search takes what was found.
    before = (tmp_path / "hr-linear" / "rates-d8-N20.json").read_text()
    runner.run(replace(experiment, resume=True))
    assert (tmp_path / "hr-linear" / "rates-d8-N20.json").read_text() == before


@pytest.mark.parametrize("change", [{"search_steps": 1}, {"search_seconds": 5.0}, {"mu": 0.3}])
def test_rates_of_another_search_are_refused(change, tmp_path):
    """Trials of 5 s and of 20 s choose other rates: they must not be taken for each other."""
    experiment = replace(SMALL, out=tmp_path, seeds=1, lr="search", lr_grid=(0.01, 0.05), methods=("direct",))
    runner.run(experiment)
    (key,) = change
    with pytest.raises(
        pzobo.errors.RunFolderError, match=f"searched with {key.removeprefix('search_')}=.*searched anew"
    ):
        runner.run(replace(experiment, resume=True, **change))
    assert runner.Rates(replace(experiment, resume=True, evaluate_every=1)).missing() == [], (
        "how a run is shown is no part"
    )


def test_a_rate_that_is_not_asked_for_is_not_taken(tmp_path):
    experiment = replace(SMALL, out=tmp_path, seeds=1, lr="search", lr_grid=(1e-9, 0.05), methods=("direct",))
    runner.run(experiment)
    narrow = runner.Rates(replace(experiment, resume=True, lr_grid=(1e-9,)))
    assert narrow.missing() == []
    assert narrow(experiment.only("direct", lr_grid=(1e-9,)), "direct")[0] == 1e-9


def test_each_size_has_rates_of_its_own(tmp_path):
    experiment = replace(
        SMALL, d=(8, 16), seeds=1, lr="search", lr_grid=(0.01, 0.05), methods=("direct",), out=tmp_path
    )
    runner.run(experiment)
    assert {path.name for path in (tmp_path / "hr-linear").glob("rates-*")} == {
        "rates-d8-N20.json",
        "rates-d16-N20.json",
    }
    tried = {run.config["d"]: run.config["lr_search"] for run in read(tmp_path)}
    assert set(tried[8]) == set(tried[16]) == {"0.01", "0.05"}
    assert tried[8] != tried[16]


def test_a_method_that_diverges_is_a_result(tmp_path):
    experiment = replace(SMALL, out=tmp_path, seeds=1, methods=("direct",), lr=1e30)
    (sentence,) = runner.run(experiment)
    assert sentence.startswith("direct, seed 0: ")
    (run,) = read(tmp_path)
    assert run.failed is not None


def within_a_minute(condition):
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.1)
    return False


def ended(group):
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["alone", "with its workers"])
def test_a_killed_experiment_goes_on(tmp_path, kill):
    words = ["run", "hr-linear", "--d", "8", "--n", "40", "--steps", "1500", "--also-N", "--seeds", "1", "--no-compile"]
    words += ["--methods", "pzobo", "--workers", "1", "--checkpoint-every", "50", "--evaluate-every", "100"]
    command = [sys.executable, "-m", "pzobo.cli", *words, "--out", str(tmp_path / "a"), "--resume"]
    folder = tmp_path / "a" / "hr-linear" / "d8-N20" / "pzobo" / "seed-0"
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as work:
        came = within_a_minute((folder / "checkpoint.pt").exists)
        kill(work.pid, signal.SIGKILL)
    assert came
    assert within_a_minute(lambda: ended(work.pid)), "a worker outlives the process that started it"
    assert (folder / "checkpoint.pt").exists()
    assert not (folder / "result.json").exists()
    subprocess.run(command, check=True, capture_output=True)
    runner.run(replace(SMALL, out=tmp_path / "b", steps=1500, seeds=1, methods=("pzobo",), evaluate_every=100))
    other = tmp_path / "b" / "hr-linear" / "d8-N20" / "pzobo" / "seed-0"
    assert rows(folder) == rows(other)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_the_command_makes_the_same_experiment(name):
    kind = EXPERIMENTS[name]
    experiment = kind(seeds=7, lr=0.5, methods=("direct", "hozog"), compile=not kind().compile, seconds=3.0)
    words = shlex.split(runner.command_of(experiment))
    assert words[:3] == ["pzobo", "run", name]
    assert tyro.cli(kind, args=words[3:]) == experiment
    assert runner.command_of(kind()) == f"pzobo run {name}"


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_shows_the_controls(name):
    experiment = EXPERIMENTS[name]()
    assert "direct" in experiment.chosen()
    assert len(experiment.about.views) > 0
    menu = set(experiment.menu)
    for view in experiment.about.views:
        wanted = view.where.get("method", ())
        assert set((wanted,) if isinstance(wanted, str) else wanted) <= menu
    sets = [{"pzobo", "pzobo-authors", "pzobo-paper"}, {"pzobo-s", "pzobo-s-authors", "pzobo-s-paper"}]
    sets += [{"pzobo-x", "pzobo-z"}]
    assert any(forms <= set(experiment.chosen()) for forms in sets)


def test_variants_are_those_of_the_paper():
    linear = EXPERIMENTS["hr-linear"]().variants()
    assert [(v.d, v.N, v.steps) for v in linear] == [
        ((128,), 20, 100),
        ((256,), 20, 150),
        ((128,), 10, 100),
        ((128,), 40, 100),
    ]
    assert [v.N for v in EXPERIMENTS["hr-two-layer"]().variants()] == [10, 5, 20, 50]
    assert [v.N for v in EXPERIMENTS["ho-logistic"](data="newsgroups").variants()] == [(5,), (10,)]
    assert "exact" not in EXPERIMENTS["ho-logistic"](data="newsgroups").chosen()
    assert [v.model for v in EXPERIMENTS["partial-vs-full"]().variants()] == [("linear",), ("two-layer",)]


def test_auc_by_hand():
    corrupted = torch.tensor([True, True, False, False])
    assert auc(torch.tensor([0.0, 1.0, 2.0, 3.0]), corrupted) == 1.0
    assert auc(torch.tensor([3.0, 2.0, 1.0, 0.0]), corrupted) == 0.0
    assert auc(torch.zeros(4), corrupted) == 0.5
    assert auc(torch.tensor([0.0, 2.0, 1.0, 3.0]), corrupted) == 0.75


def test_strengths_stay_where_the_inner_steps_are_stable():
    experiment = EXPERIMENTS["ho-logistic"](N=(5,), compile=False)
    problem = experiment.problem(0)
    method = METHODS["itd-r"].build(experiment.setup(), problem)
    found = pzobo.fit(problem, method, 40, optimizer=experiment.optimizer, lr=1.0, evaluate_every=0)
    limit = torch.log(torch.tensor(640.0)).item()  # alpha = 1
    assert found.x.max().item() == pytest.approx(limit)
    assert found.history[-1]["outer_loss"] < found.history[0]["outer_loss"]
    free = replace(experiment, bounded=False)
    assert pzobo.fit(problem, method, 40, optimizer=free.optimizer, lr=1.0, evaluate_every=0).x.max() > limit
