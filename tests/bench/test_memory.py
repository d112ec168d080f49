"""Do the field's own benchmark problems run every method with every optimizer, and measure what they say?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pzobo
from pzobo.bench import runner
from pzobo.bench.experiments.controls import Plain
from pzobo.bench.experiments.lenet import LeNet
from pzobo.bench.experiments.memory import DataCleaning, Quadratics, solved
from pzobo.bench.experiments.quality import at_solution
from pzobo.bench.experiments.shallow import Linear, TwoLayer
from pzobo.bench.experiments.source_mix import Sources
from pzobo.bench.report import markdown
from pzobo.bench.report.runs import read
from pzobo.problems import data_cleaning


def test_every_method_has_every_optimizer_and_what_has_no_rate_runs_once() -> None:
    first, second = DataCleaning(methods=("soba", "ordinary-clean")).variants()
    assert (first.methods, second.methods) == (("soba", "ordinary-clean"), ("soba",))
    x = [torch.zeros(2, requires_grad=True)]
    assert [type(v.optimizer(x, 0.1)) for v in (first, second)] == [torch.optim.SGD, torch.optim.Adam]
    assert [v.label() for v in (first, second)] == ["digits-corruption0.5-sgd", "digits-corruption0.5-adam"]
    assert [v.settings()["outer"] for v in (first, second)] == ["sgd", "adam"]
    assert len(Quadratics(outer=("adam",)).variants()) == 1
    assert len(Quadratics(outer=("adam", "adam")).variants()) == 1
    assert [v.methods for v in DataCleaning(methods=("ordinary-clean",)).variants()] == [("ordinary-clean",)]


def test_rates_are_searched_for_each_optimizer_and_the_report_says_which(tmp_path: Path) -> None:
    experiment = Quadratics(
        p=3, d=3, n=32, N=2, batch_size=8, steps=4, seeds=1, methods=("soba",), lr="search", out=tmp_path, workers=0,
        lr_grid=(1e-6, 0.1), compile=False,
    )  # fmt: skip
    runner.run(experiment)
    runs = read(tmp_path)
    assert {run.config["outer"]: set(run.config["lr_search"]) for run in runs} == {
        "sgd": {"1e-06", "0.1"},
        "adam": {"1e-06", "0.1"},
    }
    assert runs[0].config["lr_search"] != runs[1].config["lr_search"]
    (page,) = [p for p in markdown.write(runs, [Quadratics.about], tmp_path / "pages") if p.stem != "claims"]
    head, _, *rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    assert head[1] == "outer optimizer"
    assert sorted(row[1] for row in rows) == ["adam", "sgd"]


def test_a_search_that_is_stopped_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this process makes the trials itself."""
    tried: list[float] = []

    def attempt(job: runner.Job) -> float:
        if len(tried) == 2:
            raise KeyboardInterrupt
        tried.append(job.lr)
        return job.lr

    monkeypatch.setattr(runner, "attempt", attempt)
    experiment = Quadratics(methods=("soba",), outer=("sgd",), lr="search", out=tmp_path, workers=0, resume=True)
    with pytest.raises(KeyboardInterrupt):
        runner.run(experiment)
    assert [job.lr for job in runner.Rates(experiment).missing()] == list(experiment.lr_grid[2:])


def test_x_is_worth_what_the_solved_inner_problem_says() -> None:
    """A penalty method's y is pulled towards f: its own loss says less of x than it seems."""
    problem = data_cleaning(corruption=0.5)
    objective = pzobo.algorithms.BOME(0.05, steps=2, batch_size=32, outer_batch_size=32).start(problem, 0)
    for _ in range(60):
        objective.hypergradient()
        with torch.no_grad():
            objective.x -= 0.1 * objective.x.grad
        objective.x.grad = None
    found = solved(objective, DataCleaning().to_the_end)

    (inputs, labels, _), (val, val_labels) = problem.train, problem.val
    weights, y = objective.x.detach().sigmoid(), torch.zeros_like(problem.y0)
    for _ in range(2000):
        softmax = (inputs @ y).softmax(1) - torch.nn.functional.one_hot(labels, y.shape[1])
        y -= 0.1 * (inputs.T @ (weights[:, None] * softmax) / len(labels) + 0.4 * y)
    expected = torch.nn.functional.cross_entropy(val @ y, val_labels)
    assert found["solved_val_loss"] == pytest.approx(float(expected), rel=1e-6)
    assert objective.evaluate()["val_loss"] < 0.9 * found["solved_val_loss"]


def test_a_rate_is_judged_by_what_x_is_worth(tmp_path: Path) -> None:
    """And not by the loss of a y that is fitted to the validation data."""
    experiment = DataCleaning(
        methods=("bome",), outer=("sgd",), steps=60, seeds=1, compile=False, workers=0, out=tmp_path
    )
    job = runner.Job(experiment, "bome", 0, 20.0, (), "")
    judged = runner.attempt(job)
    assert runner.make(job) is None
    (run,) = read(tmp_path)
    assert judged == pytest.approx(run.rows[-1]["solved_val_loss"], rel=1e-6)
    assert judged > 1.1 * run.rows[-1]["val_loss"]


def test_stocbio_sees_the_batches_of_the_algorithms() -> None:
    experiment = DataCleaning(methods=("stocbio",), compile=False)
    problem = experiment.problem(0)
    built = experiment.menu["stocbio"].build(experiment.setup(), problem)
    batches = {"batch_size": 64, "outer_batch_size": 64, "jacobian_batches": 7, "mixed": "batch"}
    solver, jacobian = pzobo.GD(0.02, 4), pzobo.Implicit(pzobo.Neumann(0.1, 6))
    assert built == pzobo.Method(solver, jacobian, warm_start=True, **batches)
    objective = built.start(problem, 0)
    with pytest.warns(pzobo.errors.AuditWarning, match="linear system"):  # six terms are few
        objective.hypergradient()
    assert int((objective.x.grad != 0).sum()) <= 64, "those of the batch of the mixed derivative"


def test_controls_have_nothing_to_solve_and_are_fitted_once() -> None:
    fits: list[int] = []

    def fit() -> dict[str, float]:
        fits.append(1)
        return {"val_loss": 0.5}

    control = Plain(data_cleaning(), fit)
    assert control.evaluate() == {}
    assert [float(control.outer_loss().detach()) for _ in range(3)] == [0.5] * 3
    assert (control.evaluate(), len(fits)) == ({"val_loss": 0.5}, 1)
    assert solved(control, pzobo.GD(0.1, 1)) == {}
    resumed = Plain(data_cleaning(), fit)
    resumed.load_state_dict(control.state_dict())
    assert float(resumed.outer_loss().detach()) == 0.5
    assert len(fits) == 1


def test_lenet_runs_the_algorithms_by_name_on_its_batches(tmp_path: Path) -> None:
    """They are on its menu, but not in its default: the features move, and the accuracy is measured."""
    experiment = LeNet(
        methods=("soba", "meha"), batch_size=64, steps=6, evaluate_every=3, seeds=1, out=tmp_path, workers=0
    )
    assert not {"soba", "meha"} & set(LeNet().chosen())
    runner.run(experiment)
    runs = read(tmp_path)
    assert {run.method for run in runs} == {"soba", "meha"}
    for run in runs:
        losses = [row["val_loss"] for row in run.rows if "val_loss" in row]
        assert len(losses) >= 2
        assert losses[-1] < losses[0] < 2.4  # log(10) at y0 = 0


def test_shallow_features_run_the_algorithms_by_name_and_show_what_x_is_worth(tmp_path: Path) -> None:
    """The y of a penalty method is pulled towards f: `solved_loss` is f at the ridge regression that x stands for."""
    experiment = Linear(
        d=(16,), n=50, also_N=(), methods=("bome",), steps=150, seeds=1, compile=False, workers=0, out=tmp_path
    )
    (variant,) = experiment.variants()
    assert not {"soba", "bome"} & {*Linear().chosen(), *TwoLayer().chosen()}
    job = runner.Job(variant, "bome", 0, 0.05, (), "")
    judged = runner.attempt(job)
    assert runner.make(job) is None
    (run,) = read(tmp_path)
    assert judged == pytest.approx(run.rows[-1]["solved_loss"], rel=1e-6)
    assert judged > 1.1 * run.rows[-1]["outer_loss"]

    problem = variant.problem(0)
    (inputs, targets), (val, val_targets) = problem.train, problem.val
    features = inputs @ problem.x0
    w = torch.linalg.solve(features.T @ features / 50 + variant.gamma * torch.eye(16), features.T @ targets / 50)
    expected = float(0.5 * (val @ problem.x0 @ w - val_targets).square().mean())
    for method in (pzobo.algorithms.BOME(1e-3), pzobo.Method(pzobo.GD(1e-3, 3), pzobo.PZOBO())):
        assert at_solution(method.start(problem, 0)) == {"solved_loss": pytest.approx(expected, rel=1e-4)}


def test_source_weights_run_the_algorithms_by_name(tmp_path: Path) -> None:
    """Inner batches of 128 rows, and all of the 60 target images in each step."""
    experiment = Sources(sources=(4,), methods=("soba",), steps=300, seeds=1, compile=False, out=tmp_path)
    (variant,) = experiment.variants()
    assert "soba" not in Sources().chosen()
    assert runner.make(runner.Job(variant, "soba", 0, 0.03, (), "")) is None
    (run,) = read(tmp_path)
    assert run.rows[-1]["val_loss"] < 1 < run.rows[0]["val_loss"]
    assert run.rows[-1]["rank"] > 0.7, "the weights tell which sources are right"
