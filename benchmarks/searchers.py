"""Which searches are compared? Ours with and without a prior, Optuna's, least squares, descent by differences."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from benchmarks.search_problems import Evaluation, Spent
from pzobo.response.search import ResponseSearch

Searcher = Callable[[Evaluation, int], int]
"""Spends the budget of an evaluation, with a seed. The number of the evaluation that it would take, or -1: the best."""


def _response(prior: Any) -> Searcher:
    def search(task: Evaluation, seed: int) -> int:
        space = task.space
        generator = torch.Generator().manual_seed(seed)
        run = ResponseSearch(task.terms(prior), space.start, space.low, space.high, task.many, task.budget, generator)
        best = run.run()
        return next(i for i, place in enumerate(run.places) if place is best)

    return search


def _optuna(make: Callable[[Any, int, Evaluation], Any]) -> Searcher:
    def search(task: Evaluation, seed: int) -> int:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=make(optuna.samplers, seed, task))
        study.enqueue_trial({f"x{i}": float(v) for i, v in enumerate(task.start)})

        def value(trial: Any) -> float:
            return task.value([trial.suggest_float(f"x{i}", 0, 10) for i in range(task.p)])

        study.optimize(value, n_trials=task.budget)
        return -1

    return search


def _cma(task: Evaluation, seed: int) -> int:
    """CMA-ES from the start, with a first deviation of a tenth of the box; in Optuna it is this package."""
    from cmaes import CMA

    search = CMA(mean=task.start, sigma=1.0, bounds=np.tile([0.0, 10.0], (task.p, 1)), seed=seed)
    task.value(task.start)
    while True:
        told = []
        for _ in range(search.population_size):
            x = search.ask()
            told.append((x, task.value(x)))
        search.tell(told)


def _random(task: Evaluation, seed: int) -> int:
    """Around the start: uniform in the whole box it finds nothing where p is large."""
    stream = np.random.default_rng(seed)
    task.value(task.start)
    while True:
        task.value(np.clip(task.start + stream.normal(size=task.p), 0, 10))


def _least_squares(task: Evaluation, seed: int) -> int:
    from scipy.optimize import least_squares

    inside = np.clip(task.start, 1e-3, 10 - 1e-3)
    steps = 0.1 / np.maximum(np.abs(inside), 1e-3)  # relative, as scipy wants them: a hundredth of the box
    least_squares(lambda x: task.residuals(x)[0], inside, bounds=(0, 10), diff_step=steps, x_scale=1.0)
    return -1


def _dfo_ls(task: Evaluation, seed: int) -> int:
    import dfols

    np.random.seed(seed)
    bounds = (np.zeros(task.p), np.full(task.p, 10.0))
    dfols.solve(
        lambda x: task.residuals(x)[0],
        np.clip(task.start, 0.11, 9.89),
        bounds=bounds,
        rhobeg=0.5,
        maxfun=task.budget + 1,
        do_logging=False,
    )
    return -1


def _lbfgsb(task: Evaluation, seed: int) -> int:
    from scipy.optimize import minimize

    minimize(task.value, task.start, method="L-BFGS-B", bounds=[(0, 10)] * task.p, options={"eps": 0.1})
    return -1


SEARCHERS: dict[str, Searcher] = {
    "response": _response(None),
    "response, prior": _response("evidence"),
    "CMA-ES": _cma,
    "TPE": _optuna(lambda samplers, seed, task: samplers.TPESampler(seed=seed)),
    "GP": _optuna(lambda samplers, seed, task: samplers.GPSampler(seed=seed)),
    "random": _random,
    "least_squares": _least_squares,
    "DFO-LS": _dfo_ls,
    "L-BFGS-B": _lbfgsb,
}


def spend(name: str, task: Evaluation, seed: int) -> int:
    """Run a search until its budget is spent or it ends by itself: the number of the evaluation that it would take."""
    found = -1
    with suppress(Spent):
        found = SEARCHERS[name](task, seed)
    return int(np.argmin(task.values)) if found < 0 else found
