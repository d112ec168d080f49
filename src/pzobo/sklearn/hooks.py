"""How does scikit-learn's search give predictions, not only scores? What is overridden of BaseSearchCV, in one place.

`BaseSearchCV` fits candidates side by side, routes metadata, scores, times, handles fits that fail, and refits. It
keeps the scores alone. Here a scorer hands the predictions of the held-out rows on with its score.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection._search import BaseSearchCV

from pzobo.sklearn.losses import Outputs


class Scored(float):
    """A score that has the predictions with it."""

    outputs: Any = None


class Watched:
    """A scorer that hands the outputs of the fitted estimator on.

    Args:
        scorer: what it stands for: a function of (estimator, X, y) that gives a number, or a dict of them.
        outputs: what to ask the estimator.
        error_score: what stands for a score that could not be computed.
    """

    def __init__(self, scorer: Any, outputs: Outputs, error_score: Any) -> None:
        self.scorer, self.outputs, self.error_score = scorer, outputs, error_score

    def __call__(self, estimator: Any, X: Any, y: Any = None, **params: Any) -> Any:
        found = self.scorer(estimator, X, y, **params)
        if not isinstance(found, dict):
            return self._carry(float(found), estimator, X)
        # A scorer of several that fails gives its traceback as a text.
        numbers = {k: self.error_score if isinstance(v, str) else v for k, v in found.items()}
        first = next(iter(numbers))
        return {**numbers, first: self._carry(float(numbers[first]), estimator, X)}

    def _carry(self, score: float, estimator: Any, X: Any) -> Scored:
        carrier = Scored(score)
        carrier.outputs = self.outputs(estimator, X)
        return carrier


def unwatched(scorer: Any) -> Any:
    """The scorer itself, or the dict of several."""
    scorer = getattr(scorer, "scorer", scorer)
    return getattr(scorer, "_scorers", scorer)


class Splits:
    """A splitter that splits once, and then always the same way: all candidates must see the same rows.

    Args:
        cv: the splitter.

    Attributes:
        pairs: rows to train on and rows to predict, one pair a split.
        y: what is to be predicted, of all rows.
    """

    def __init__(self, cv: Any) -> None:
        self.cv = cv
        self.pairs: list[tuple[Any, Any]] = []
        self.y: Any = None

    @property
    def rows(self) -> Any:
        """Which rows are predicted, split after split."""
        return np.concatenate([np.arange(len(self.y))[test] for _, test in self.pairs])

    def unseen(self) -> int:
        """In how many splits there are labels to predict that no row to train on has."""
        y = np.asarray(self.y)
        return sum(bool(np.setdiff1d(y[test], y[train]).size) for train, test in self.pairs)

    def split(self, X: Any, y: Any = None, **params: Any) -> Iterator[tuple[Any, Any]]:
        if not self.pairs:
            self.pairs, self.y = list(self.cv.split(X, y, **params)), y
        return iter(self.pairs)


class PredictingSearchCV(BaseSearchCV):  # type: ignore[misc]
    """A search of scikit-learn whose candidates give predictions.

    A subclass has `_search(evaluate)`; `self._outputs_of(candidates)` are the outputs of the held-out rows, split after
    split, or None where a fit failed. `self._chosen` is the row of the best candidate in `cv_results_`, which has none
    of a call in which every fit failed: `self._recorded` tells which candidates have one.
    """

    def _start(self, outputs: Outputs) -> None:
        """Before `fit` of scikit-learn."""
        self._watching: Outputs | None = outputs
        self._collected: list[Any] = []
        self._recorded: list[bool] = []
        self._chosen = 0
        self._kept: int | None = None

    _temporary: ClassVar[tuple[str, ...]] = (
        "_watching",
        "_splits",
        "_collected",
        "_recorded",
        "_chosen",
        "_kept",
        "_evaluate",
    )
    """What only a search in progress has. It does not go to other processes."""

    def _end(self) -> None:
        """After it."""
        for name in self._temporary:
            self.__dict__.pop(name, None)

    def __getstate__(self) -> Any:
        return {name: value for name, value in super().__getstate__().items() if name not in self._temporary}

    def _get_scorers(self) -> Any:
        scorers, refit_metric = super()._get_scorers()
        # The first call in `fit` is for the candidates, later ones look at the scorers themselves.
        outputs, self._watching = self.__dict__.get("_watching"), None
        return (scorers if outputs is None else Watched(scorers, outputs, self.error_score)), refit_metric

    def _run_search(self, evaluate_candidates: Any) -> None:
        # What scikit-learn has made of `cv`: of a generator nothing is left by now.
        self._evaluate, self._splits = evaluate_candidates, Splits(self._checked_cv_orig)
        self._search()

    @abstractmethod
    def _search(self) -> None:
        """Spend the budget, by `_outputs_of`."""

    def _outputs_of(
        self, candidates: Sequence[Mapping[str, Any]], kind: str, splits: Splits | None = None
    ) -> list[Any]:
        """The outputs of candidates, on the folds of the search; or on other folds, which leave no trace."""
        before = len(self._collected)
        if splits is not None and self._kept is None:
            self._kept = before // len(self._splits.pairs)
        try:
            self._evaluate(candidates, cv=splits or self._splits, more_results={"kind": [kind] * len(candidates)})
        except ValueError as error:
            if not before or "fits failed" not in str(error) or self.error_score == "raise":
                raise
            self._recorded += [False] * len(candidates) if splits is None else []
            return [None] * len(candidates)
        self._recorded += [True] * len(candidates) if splits is None else []
        found = self._collected[before:]
        each = len(self._splits.pairs)
        return [_joined(found[first : first + each]) for first in range(0, len(found), each)]

    def _format_results(self, candidate_params: Any, n_splits: int, out: Any, more_results: Any = None) -> Any:
        for one in out[len(self._collected) :]:
            scores = one["test_scores"]
            carriers = scores.values() if isinstance(scores, dict) else [scores]
            carrier = next((c for c in carriers if isinstance(c, Scored)), None)
            self._collected.append(None if carrier is None else carrier.outputs)
            if carrier is not None:
                carrier.outputs = None  # scikit-learn keeps the scores of all candidates to the end
        if self._kept is not None:
            candidate_params, out = candidate_params[: self._kept], out[: self._kept * n_splits]
            more_results = {name: values[: self._kept] for name, values in (more_results or {}).items()}
        return super()._format_results(candidate_params, n_splits, out, more_results)

    def _select_best_index(self, refit: Any, refit_metric: Any, results: Any) -> Any:
        if callable(refit):
            return BaseSearchCV._select_best_index(refit, refit_metric, results)
        return self._chosen


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else np.concatenate(parts)
