"""Does a search on a Dask cluster have the bits of one process?"""

from __future__ import annotations

import os

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_friedman1
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVR

from pzobo.sklearn import Linear, Log, ResponseSearchCV, Scale

distributed = pytest.importorskip("dask.distributed")


class Signed(SVR):  # type: ignore[misc]
    """Says in which process it was fitted."""

    def fit(self, X: object, y: object = None, sample_weight: object = None) -> object:
        self.process_ = os.getpid()
        return super().fit(X, y, sample_weight)


def process(model: object, X: object, y: object) -> float:
    """As a score."""
    return float(model[-1].process_)  # type: ignore[index]


def test_the_bits_are_those_of_one_process() -> None:
    X, y = make_friedman1(80, 5, random_state=0)
    model = make_pipeline(Scale(), Signed(gamma=1.0, tol=1e-6))
    space = {"scale__log_scale": Linear(-3, 3, size=5), "signed__C": Log(1e-2, 1e2)}

    def search(**options: object) -> ResponseSearchCV:
        found = ResponseSearchCV(model, space, cv=2, max_fits=34, random_state=0, scoring=process, **options)
        return found.fit(X, (y - y.mean()) / y.std())

    alone = search()
    assert set(alone.cv_results_["split0_test_score"]) == {os.getpid()}
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster), joblib.parallel_config(backend="dask"):
        spread = search(n_jobs=-1)
    where = {*spread.cv_results_["split0_test_score"], *spread.cv_results_["split1_test_score"]}
    assert len(where) == 2, "two workers"
    assert os.getpid() not in where
    assert np.array_equal(spread.cv_results_["loss"], alone.cv_results_["loss"])
    assert np.array_equal(spread.response_, alone.response_)
    assert spread.report_.folds.best < spread.report_.folds.start
