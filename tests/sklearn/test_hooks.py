"""Is there still in scikit-learn what is overridden of it?"""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, ShuffleSplit, TimeSeriesSplit
from sklearn.model_selection._search import BaseSearchCV

from pzobo.sklearn.hooks import PredictingSearchCV, Scored, Splits, Watched, unwatched
from pzobo.sklearn.losses import Outputs
from pzobo.sklearn.report import Losses, Report, other_folds


def test_the_hooks_are_there() -> None:
    """Without one of them a search would run, and see no predictions."""
    for name in ("_get_scorers", "_run_search", "_format_results", "_select_best_index"):
        theirs = inspect.signature(getattr(BaseSearchCV, name)).parameters
        mine = inspect.signature(getattr(PredictingSearchCV, name)).parameters
        assert set(mine) - {"self"} <= set(theirs), name
    source = inspect.getsource(BaseSearchCV.fit)
    for text in ("self._get_scorers()", "self._run_search(", "self._format_results(", "self._select_best_index("):
        assert text in source
    assert "cv=None, more_results=None" in source
    assert source.index("self._checked_cv_orig = ") < source.index("self._run_search(")


def test_a_score_keeps_its_predictions_on_the_way_between_processes() -> None:
    score = Scored(0.5)
    score.outputs = np.arange(3.0)
    again = pickle.loads(pickle.dumps(score))
    assert again == 0.5
    assert again.outputs.tolist() == [0, 1, 2]


def test_a_scorer_that_is_watched() -> None:
    X, y = np.arange(6.0)[:, None], np.arange(6.0)
    model, outputs = Ridge().fit(X, y), Outputs("predict")
    single = Watched(lambda m, X, y: 0.25, outputs, np.nan)
    assert np.array_equal(single(model, X, y).outputs, model.predict(X))
    several = Watched(lambda m, X, y: {"a": "Traceback", "b": 2.0}, outputs, -1.0)(model, X, y)
    assert several == {"a": -1.0, "b": 2.0}
    assert np.array_equal(several["a"].outputs, model.predict(X))
    assert unwatched(single) is single.scorer


def test_splits_are_made_once() -> None:
    splits, X = Splits(ShuffleSplit(3)), np.zeros((20, 1))
    first = [test.tolist() for _, test in splits.split(X, X[:, 0])]
    assert [test.tolist() for _, test in splits.split(X, X[:, 0])] == first
    assert splits.rows.tolist() == [row for part in first for row in part]


@pytest.mark.parametrize("cv", [KFold(3), KFold(3, shuffle=True, random_state=0), ShuffleSplit(3, random_state=0)])
def test_other_folds_are_others(cv: object) -> None:
    X = np.zeros((30, 1))
    mine, other = ([test.tolist() for _, test in splitter.split(X)] for splitter in (cv, other_folds(cv, 5)))
    assert len(mine) == len(other)
    assert mine != other
    assert [test.tolist() for _, test in cv.split(X)] == mine
    assert other_folds(TimeSeriesSplit(3), 5) is None


def test_report() -> None:
    report = Report(Losses(2.0, 1.0), Losses(2.0, 2.5), None, 9, 45, 100, 3)
    assert report.overfits
    assert not Report(Losses(2.0, 1.0), Losses(2.0, 2.01), None, 9, 45, 100, 3).overfits
    assert "-50.0%" in str(report)
    assert "+25.0%" in str(report)
    assert "held-out" not in str(report)
