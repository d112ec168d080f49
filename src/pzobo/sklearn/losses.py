"""What is made least? Smooth losses of out-of-fold predictions, and which of an estimator's answers they take."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, get_routing_for_object
from torch import Tensor
from torch.nn.functional import softplus

from pzobo.errors import OptionError, RequirementError
from pzobo.tensors.checks import scalar

Answer = Literal["predict", "predict_proba", "decision_function"]
Custom = Callable[[Tensor, Tensor, Tensor], Tensor]
LEAST = 1e-12
"""Probabilities below this are taken as this."""


@dataclass(frozen=True)
class Outputs:
    """Which answer of a fitted estimator is r: predictions, or logits.

    Args:
        answer: the method that is called.
        classes: all labels, for a classifier.
    """

    answer: Answer
    classes: Any = None

    @classmethod
    def of(cls, estimator: Any, y: Any) -> Outputs:
        if y is None:
            raise RequirementError("ResponseSearchCV compares predictions with y: give y.")
        if not is_classifier(estimator):
            if not hasattr(estimator, "predict"):
                raise RequirementError(f"{type(estimator).__name__} has no predict(): there is no response to measure.")
            return cls("predict")
        labels = np.asarray(y)
        if labels.ndim > 1 and labels.shape[1] > 1:
            raise RequirementError("ResponseSearchCV takes one label for each row; y has several columns.")
        classes = np.unique(labels)
        for answer in ("predict_proba", "decision_function"):
            if hasattr(estimator, answer):
                return cls(answer, classes)
        raise RequirementError(
            f"{type(estimator).__name__} has neither predict_proba nor decision_function: labels alone do not change "
            "a little. Use Optuna."
        )

    def __call__(self, fitted: Any, X: Any) -> Any:
        """r of some rows: numbers, or logits with a column for each class (one column for two classes)."""
        if self.answer == "predict":
            return np.asarray(fitted.predict(X), dtype=float)
        known, count = np.searchsorted(self.classes, fitted.classes_), len(self.classes)
        if self.answer == "predict_proba":
            found = np.asarray(fitted.predict_proba(X), dtype=float)
            all_of_them = np.full((len(found), count), LEAST)
            all_of_them[:, known] = np.clip(found, LEAST, None)
            logits = np.log(all_of_them)
        else:
            found = decisions(fitted, X)
            logits = np.full((len(found), count), min(-10.0, found.min()) if len(known) < count else 0.0)
            logits[:, known] = found
        return logits[:, 1] - logits[:, 0] if count == 2 else logits


def decisions(fitted: Any, X: Any) -> Any:
    """The decision function, with a column for each class that the estimator knows.

    SVC and NuSVC decide between pairs of classes. Of more than two classes their decision function counts votes, which
    jump, or has a column for each pair. Here a class has the sum of its decisions against the others, inside of
    pipelines and searches too.
    """
    if hasattr(fitted, "best_estimator_"):
        return decisions(fitted.best_estimator_, X)
    if steps := list(getattr(fitted, "steps", ())):
        return decisions(steps[-1][1], fitted[:-1].transform(X) if len(steps) > 1 else X)
    count = len(fitted.classes_)
    if count < 3 or not hasattr(fitted, "decision_function_shape"):
        found = np.asarray(fitted.decision_function(X), dtype=float)
        found = np.stack([np.zeros_like(found), found], 1)[:, :count] if found.ndim == 1 else found
    else:
        fitted = copy.copy(fitted)
        fitted.decision_function_shape = "ovo"
        against = np.asarray(fitted.decision_function(X), dtype=float)
        found = np.zeros((len(against), count))
        for decided, (one, other) in zip(against.T, itertools.combinations(range(count), 2), strict=True):
            found[:, one] += decided
            found[:, other] -= decided
    if found.shape[1] != count:
        raise RequirementError(
            f"decision_function of {type(fitted).__name__} has {found.shape[1]} columns for {count} classes: which "
            "belongs to which class is not known. Take an estimator with predict_proba, such as "
            "CalibratedClassifierCV of it."
        )
    return found


@dataclass(frozen=True)
class RowLoss:
    """f(x, r, c), a weighted mean over the out-of-fold rows.

    Args:
        form: "squared", "log" or a function of (outputs, targets, weights).
        shape: of r.
        targets: what is wanted: numbers, or the numbers of classes.
        weights: of the rows, with a mean of 1.
        calibrated: whether r are decisions, which a scale and shifts make logits (Platt, 1999).
    """

    form: Literal["squared", "log"] | Custom
    shape: tuple[int, ...]
    targets: Tensor
    weights: Tensor
    calibrated: bool = False

    @property
    def extra(self) -> Tensor:
        """Where scale and shifts start."""
        if not self.calibrated:
            return torch.zeros(0, dtype=torch.float64)
        many = self.shape[1] if len(self.shape) > 1 else 2
        return torch.cat([torch.ones(1), torch.zeros(many - 1)]).double()

    def __call__(self, x: Tensor, r: Tensor, c: Tensor) -> Tensor:
        if callable(self.form):
            return scalar(self.form(self._outputs(r, c), self.targets, self.weights), "loss=")
        return self.each(r, c).mean()

    def each(self, r: Tensor, c: Tensor) -> Tensor:
        """What each row adds, as its weight says."""
        outputs = self._outputs(r, c)
        if self.form == "squared":
            squares = (outputs - self.targets).square()
            found = squares if squares.ndim == 1 else squares.mean(1)
        elif outputs.ndim == 1:
            found = softplus(outputs) - self.targets * outputs
        else:
            found = outputs.logsumexp(1) - (self.targets * outputs).sum(1)
        return self.weights * found

    def _outputs(self, r: Tensor, c: Tensor) -> Tensor:
        """r in its shape; decisions as logits."""
        outputs = r.reshape(self.shape)
        if not self.calibrated:
            return outputs
        shifts = c[1] if outputs.ndim == 1 else torch.cat([c[1:], torch.zeros_like(c[:1])])
        return c[0] * outputs + shifts


def independent_rows(pairs: Sequence[tuple[Any, Any]], weights: Any) -> float:
    """How many independent rows the out-of-fold losses of a cross-validation are worth.

    Models of different folds share rows to train on, so their errors hang together: the mean over K splits with m rows
    to predict and l to train on has a variance of (1/K + m/l) v / m, not of v / (K m), with v that of a row (Nadeau and
    Bengio, 2003, Eq. 9). With five folds n rows are worth n / 2.25.

    Args:
        pairs: rows to train on and rows to predict, one pair a split.
        weights: of all rows; those of different weights are worth fewer (Kish, 1965).
    """

    def worth(rows: Any) -> float:
        w = np.asarray(weights, dtype=float)[rows]
        return float(w.sum() ** 2 / np.square(w).sum()) if w.any() else 0.0

    trained, predicted = (float(np.mean([worth(pair[side]) for pair in pairs])) for side in (0, 1))
    return predicted / (1 / len(pairs) + predicted / trained)


def weight_names(routing: MetadataRequest | MetadataRouter) -> set[str]:
    """By which names of their own its fits ask for sample weights: `set_fit_request(sample_weight="importance")`."""
    if isinstance(routing, MetadataRouter):
        return {name for _, pair in routing for name in weight_names(pair.router)}
    name = routing.fit.requests.get("sample_weight")
    return {name} if isinstance(name, str) else set()


def given_weights(params: Mapping[str, Any], estimator: Any = None) -> Any:
    """The weights of the rows among the arguments of `fit`.

    They are `sample_weight`, that of a step of a pipeline, or where metadata are routed what a fit asks for by a name
    of its own.
    """
    routed = get_config()["enable_metadata_routing"]
    names = weight_names(get_routing_for_object(estimator)) if routed else set()
    found = [v for k, v in params.items() if k.rpartition("__")[2] == "sample_weight" or k in names]
    found = [v for v in found if v is not None]
    if any(not np.array_equal(found[0], other) for other in found[1:]):
        raise OptionError("The steps got different sample weights, and the loss has one for each row: give the same.")
    if not found:
        return None
    weights = np.asarray(found[0], dtype=float)
    if weights.ndim != 1 or not (weights >= 0).all() or not np.isfinite(weights).all() or not weights.any():
        raise OptionError(
            "sample_weight must be a number for each row, none below 0 and not all of them 0: the loss is their mean."
        )
    return weights


def held_out(test: Any, y: Any, outputs: Outputs) -> tuple[Any, Any]:
    """The pair (X, y) of held-out rows, if a loss can be told of them."""
    if not isinstance(test, (tuple, list)) or len(test) != 2:
        raise OptionError("test= must be a pair (X, y) of held-out rows.")
    check_consistent_length(*test)
    if not len(test[1]):
        raise OptionError("test= has no rows.")
    given, wanted = (np.asarray(targets).reshape(len(targets), -1) for targets in (test[1], y))
    if given.shape[1] != wanted.shape[1]:
        raise OptionError(f"y of test= has {given.shape[1]} columns, and y has {wanted.shape[1]}.")
    if outputs.classes is not None and not (known := np.isin(given, outputs.classes)).all():
        raise OptionError(
            f"test= has labels that are not in y ({', '.join(map(str, np.unique(given[~known])))}): no model has a "
            "probability for them. Leave these rows out."
        )
    if outputs.classes is None and not np.isfinite(given.astype(float)).all():
        raise OptionError("y of test= has NaN or infinity: no loss can be told of it. Leave these rows out.")
    return test[0], test[1]


def row_loss(loss: Any, outputs: Outputs, r: Any, y: Any, weights: Any, fitted: bool = True) -> RowLoss:
    """The loss of the out-of-fold rows.

    Args:
        loss: as in `ResponseSearchCV`.
        outputs: what r is.
        r: of the rows.
        y: of the rows.
        weights: of the rows, or None.
        fitted: whether scale and shifts of decisions are fitted to these rows. Then their targets are those of Platt,
            without which separable rows ask for an infinite scale.
    """
    given = np.ones(len(r)) if weights is None else np.asarray(weights, dtype=float)
    w: Tensor = torch.tensor(given / given.mean())
    shape, calibrated = tuple(np.shape(r)), outputs.answer == "decision_function"
    if outputs.classes is None:
        if loss not in (None, "squared_error") and not callable(loss):
            raise OptionError(f'loss={loss!r}: a regressor takes "squared_error" or a function of torch tensors.')
        targets = torch.tensor(np.asarray(y, dtype=float)).reshape(shape)
        return RowLoss(loss if callable(loss) else "squared", shape, targets, w)
    if loss not in (None, "log_loss") and not callable(loss):
        raise OptionError(f'loss={loss!r}: a classifier takes "log_loss" or a function of torch tensors.')
    numbers = torch.as_tensor(np.searchsorted(outputs.classes, np.asarray(y).ravel()))
    if callable(loss):
        return RowLoss(loss, shape, numbers, w)
    hot = torch.nn.functional.one_hot(numbers, len(outputs.classes)).double()
    if calibrated and fitted:
        counts = hot.sum(0)
        hot = hot * (counts + 1) / (counts + 2) + (1 - hot) / (len(hot) - counts + 2) / max(hot.shape[1] - 1, 1)
        hot = hot / hot.sum(1, keepdim=True)
    return RowLoss("log", shape, hot[:, 1] if len(shape) == 1 else hot, w, calibrated)
