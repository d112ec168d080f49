"""Are the losses those of scikit-learn, on the outputs that were asked for?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, ShuffleSplit
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC, NuSVC

from pzobo.errors import OptionError, RequirementError
from pzobo.response.levenberg_marquardt import Terms
from pzobo.sklearn.losses import Outputs, decisions, given_weights, held_out, independent_rows, row_loss

X, y = load_iris(return_X_y=True)
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2, len(y))


def value(loss: Any, r: Any, c: Any = None) -> float:
    none = torch.zeros(0).double()
    return float(loss(none, torch.as_tensor(r).flatten(), loss.extra if c is None else c))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("classes", [2, 3])
def test_log_loss(classes: int, weights: Any) -> None:
    labels = np.array(["a", "b", "c"])[y]
    keep = y < classes
    model = LogisticRegression(C=0.01).fit(X[keep], labels[keep])
    outputs = Outputs.of(model, labels[keep])
    w = None if weights is None else weights[keep]
    r = outputs(model, X[keep])
    assert r.shape == ((100,) if classes == 2 else (150, 3))
    wanted = log_loss(labels[keep], model.predict_proba(X[keep]), sample_weight=w)
    assert value(row_loss(None, outputs, r, labels[keep], w), r) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_squared_error(weights: Any) -> None:
    for target in (X[:, 0], X[:, :2]):
        model = Ridge().fit(X, target)
        outputs = Outputs.of(model, target)
        r = outputs(model, X)
        wanted = mean_squared_error(target, r, sample_weight=weights)
        assert value(row_loss(None, outputs, r, target, weights), r) == pytest.approx(wanted)


def test_a_class_that_a_fold_has_not_seen_is_unlikely() -> None:
    model = LogisticRegression().fit(X[y != 1], y[y != 1])
    outputs = Outputs.of(model, y)
    r = outputs(model, X)
    assert r.shape == (150, 3)
    assert np.allclose(np.exp(r[:, [0, 2]]), model.predict_proba(X))
    assert np.all(r[:, 1] < -20)


@pytest.mark.parametrize("classes", [2, 3])
def test_decisions_are_calibrated(classes: int) -> None:
    """Scale and shifts are fitted: another scale of the decisions has the same loss."""
    keep = y < classes
    model = (LinearSVC(C=0.01) if classes == 3 else SVC()).fit(X[keep, 1:3], y[keep])
    outputs = Outputs.of(model, y[keep])
    assert outputs.answer == "decision_function"
    r = outputs(model, X[keep, 1:3])
    loss = row_loss(None, outputs, r, y[keep], None)
    none = torch.zeros(0).double()
    found = []
    for factor in (1.0, 3.0):
        flat = factor * torch.as_tensor(r).flatten()
        c = Terms(loss, 1.0, extra=loss.extra).fitted(none, flat, loss.extra)
        found.append(value(loss, flat, c))
        assert float(torch.func.grad(lambda c, r=flat: loss(none, r, c))(c).abs().max()) < 1e-4
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] < value(loss, r)


@pytest.mark.parametrize("classes", [2, 3])
def test_labels_that_calibrate_nothing_are_taken_as_they_are(classes: int) -> None:
    """Of ten rows Platt's targets are .86 and .14: a sure and right answer would have a large loss."""
    few = np.linspace(0, 50 * classes - 1, 10).astype(int)
    model = SVC().fit(X[: 50 * classes], y[: 50 * classes])
    outputs = Outputs.of(model, y[: 50 * classes])
    r = outputs(model, X[few])
    shifts = [0.1, -0.2][: classes - 1]
    logits = 4 * r + np.array([*shifts, 0]) if classes == 3 else np.stack([0 * r, 4 * r + 0.1], 1)
    wanted = log_loss(y[few], softmax(logits, axis=1))
    c = torch.tensor([4.0, *shifts]).double()
    assert value(row_loss(None, outputs, r, y[few], None, fitted=False), r, c) == pytest.approx(wanted)
    assert value(row_loss(None, outputs, r, y[few], None), r, c) > 2 * wanted


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("kind", [SVC, NuSVC])
def test_pairs_of_classes_are_added_up_without_votes(kind: Any, classes: int) -> None:
    """scikit-learn's own decision function of SVC is votes + s / (3 (|s| + 1)), with s what is wanted here."""
    images, digits = load_digits(n_class=classes, return_X_y=True)
    models = [make_pipeline(StandardScaler(), kind(decision_function_shape=shape)) for shape in ("ovr", "ovo")]
    found = []
    for model in models:
        model.fit(images[:200], digits[:200])
        before = model.decision_function(images[200:300])
        found.append(decisions(model, images[200:300]))
        assert np.array_equal(model.decision_function(images[200:300]), before), "the model stays as it is"
        assert np.array_equal(found[-1], decisions(model[-1], model[:-1].transform(images[200:300])))
    assert found[0].shape == (100, classes)
    assert np.array_equal(*found)
    own = models[0].decision_function(images[200:300])
    votes = np.round(own)
    assert np.allclose(votes.sum(1), classes * (classes - 1) / 2)
    assert np.allclose(own, votes + found[0] / (3 * (np.abs(found[0]) + 1)))


@pytest.mark.parametrize("shape", ["ovr", "ovo"])
def test_pairs_inside_of_pipelines_and_searches(shape: str) -> None:
    """Three classes have three pairs: their columns were taken for those of classes, and votes for decisions."""
    model = SVC(decision_function_shape=shape)
    wanted = decisions(clone(model).fit(X, y), X)
    for around in (
        make_pipeline("passthrough", make_pipeline(StandardScaler(with_mean=False, with_std=False), model)),
        GridSearchCV(make_pipeline(model), {"svc__C": [1.0]}),
        make_pipeline(make_pipeline(GridSearchCV(model, {"C": [1.0]}))),
    ):
        assert np.allclose(decisions(around.fit(X, y), X), wanted)


def test_columns_that_belong_to_no_class_are_refused() -> None:
    class Pairs(OneVsOneClassifier):  # type: ignore[misc]
        def decision_function(self, X: Any) -> Any:
            return np.zeros((len(X), 6))

    images, digits = load_digits(n_class=4, return_X_y=True)
    model = Pairs(LinearSVC()).fit(images, digits)
    with pytest.raises(RequirementError, match="6 columns for 4 classes"):
        Outputs.of(model, digits)(model, images)


def test_a_function_of_tensors() -> None:
    model = LogisticRegression().fit(X, y)
    outputs = Outputs.of(model, y)
    r = outputs(model, X)
    brier = row_loss(lambda o, t, w: (w * (o.softmax(1)[range(150), t] - 1) ** 2).mean(), outputs, r, y, None)
    wanted = np.mean((model.predict_proba(X)[range(150), y] - 1) ** 2)
    assert value(brier, r) == pytest.approx(wanted)


def test_refused() -> None:
    with pytest.raises(RequirementError, match="give y"):
        Outputs.of(Ridge(), None)
    with pytest.raises(RequirementError, match="several columns"):
        Outputs.of(LogisticRegression(), np.stack([y, y], 1))
    assert Outputs.of(Perceptron(), y).answer == "decision_function"
    outputs = Outputs.of(Ridge(), X[:, 0])
    with pytest.raises(OptionError, match="loss='log_loss': a regressor takes \"squared_error\""):
        row_loss("log_loss", outputs, X[:, 0], X[:, 0], None)
    with pytest.raises(OptionError, match='a classifier takes "log_loss"'):
        row_loss("squared_error", Outputs.of(SVC(), y), np.zeros((150, 3)), y, None)


def test_held_out_rows_that_have_no_loss_are_refused() -> None:
    """A label in between was taken for the next one, and the only label of y for that of all rows."""
    known = Outputs.of(LogisticRegression(), y[y != 1])
    assert held_out([X[:5], y[:5]], y[y != 1], known)[1].tolist() == [0] * 5
    for test, told in [
        ((X, y), r"labels that are not in y \(1\)"),
        ((X, y[:1]), r"inconsistent numbers of samples: \[150, 1\]"),
        ((X[:1], y[None, :1].repeat(2, 1)), "has 2 columns, and y has 1"),
        (X, "a pair"),
    ]:
        with pytest.raises(ValueError, match=told):
            held_out(test, y[y != 1], known)
    two = np.stack([X[:, 0], X[:, 1]])
    line = Outputs.of(Ridge(), y)
    for test, told in [((X, np.full(150, np.nan)), "NaN or infinity"), ((X[:0], y[:0]), "no rows")]:
        with pytest.raises(OptionError, match=told):
            held_out(test, y, line)
    with pytest.raises(ValueError, match=r"\[150, 2\]"):
        held_out((X, two), two.T, Outputs.of(Ridge(), two.T))


# How many rows they are worth


@pytest.mark.parametrize(
    ("cv", "wanted"),
    [
        (KFold(5), 200 / 2.25),
        (KFold(2), 200 / 3),
        (LeaveOneOut(), 200 / (1 + 200 / 199)),
        (ShuffleSplit(8, test_size=0.25, random_state=0), 50 / (1 / 8 + 1 / 3)),
    ],
)
def test_rows_that_folds_share_count_less(cv: Any, wanted: float) -> None:
    """Nadeau and Bengio, Eq. 9: (1/K + m/l) / m is the variance of the mean, in those of a row."""
    rows, ones = np.zeros((200, 1)), np.ones(200)
    assert independent_rows(list(cv.split(rows)), ones) == pytest.approx(wanted)
    masks = [tuple(np.isin(np.arange(200), side) for side in pair) for pair in cv.split(rows)]
    assert independent_rows(masks, ones) == pytest.approx(wanted)


def test_rows_of_no_weight_are_not_there() -> None:
    weights = np.tile([2.0, 0.0], 100)
    assert independent_rows(list(KFold(5).split(weights)), weights) == pytest.approx(100 / 2.25)
    ends = np.repeat([0.0, 1.0], [40, 160])
    pairs = list(KFold(5).split(ends))
    assert 0 < independent_rows(pairs, ends) < independent_rows(pairs, np.ones(200)), "a fold of no weight"


def test_weights_that_a_fit_asks_for_by_a_name_of_its_own() -> None:
    with config_context(enable_metadata_routing=True):
        ridge = Ridge().set_fit_request(sample_weight="importance").set_score_request(sample_weight="worth")
        for model in (ridge, make_pipeline(StandardScaler().set_fit_request(sample_weight=False), ridge)):
            assert np.array_equal(given_weights({"importance": [0, 1], "worth": [1, 1]}, model), [0.0, 1.0])
            assert given_weights({"groups": [1, 2]}, model) is None
    assert given_weights({"importance": [0, 1]}, ridge) is None, "nothing is routed"


@pytest.mark.parametrize("weights", [np.zeros(3), [1.0, -1.0, 1.0], [1.0, np.nan, 1.0], [1.0, np.inf, 1.0], 2.0])
def test_weights_that_weigh_nothing_are_refused(weights: Any) -> None:
    with pytest.raises(OptionError, match="a number for each row, none below 0 and not all of them 0"):
        given_weights({"ridge__sample_weight": weights})
    assert given_weights({"sample_weight": None, "groups": [1, 2]}) is None
    assert np.array_equal(given_weights({"sample_weight": [0, 1]}), [0.0, 1.0])
