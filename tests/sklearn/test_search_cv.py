"""Does ResponseSearchCV find the optimum, behave as GridSearchCV does, and tell when it should not be used?"""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_friedman1
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.feature_selection import SelectPercentile, f_regression
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    TimeSeriesSplit,
    cross_val_predict,
)
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator

from pzobo.errors import (
    NoResponseWarning,
    OptionError,
    RequirementError,
    RoughResponseError,
    ScalarLossError,
    SearchWarning,
)
from pzobo.sklearn import Linear, Log, ResponseSearchCV, Scale
from pzobo.sklearn.space import Space

X, y = make_friedman1(150, 6, noise=0.5, random_state=0)
y = (y - y.mean()) / y.std()
MODEL = make_pipeline(StandardScaler(), Scale(), KernelRidge(kernel="rbf", gamma=0.1, alpha=0.1))
SPACE = {"scale__log_scale": Linear(-5, 5, size=6), "kernelridge__alpha": Log(1e-4, 1e2)}


def search(model: Any = MODEL, space: Any = SPACE, **options: Any) -> ResponseSearchCV:
    return ResponseSearchCV(model, space, **{"cv": 3, "random_state": 0, **options})


# As scikit-learn's own


def statuses(estimator: Any) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {found["check_name"]: found["status"] for found in check_estimator(estimator, on_fail=None)}


@pytest.mark.parametrize(
    ("model", "grid", "space", "options"),
    [
        (Ridge(), {"alpha": [0.1, 1.0]}, {"alpha": Log(0.1, 10)}, {"error_score": "raise"}),
        (LogisticRegression(), {"C": [0.1, 1.0]}, {"C": Log(0.1, 10)}, {"error_score": "raise"}),
        (SVR(), {"C": [0.1, 1.0]}, {"C": Log(0.1, 10)}, {}),
    ],
)
def test_passes_the_checks_that_a_grid_passes(model: Any, grid: Any, space: Any, options: Any) -> None:
    assert len(theirs := statuses(GridSearchCV(model, grid, cv=2, **options))) > 40
    assert statuses(ResponseSearchCV(model, space, cv=2, max_fits=16, guard=False, **options)) == theirs


def test_every_evaluation_is_told() -> None:
    found = search(max_fits=90, return_train_score=True).fit(X, y)
    results = found.cv_results_
    count = len(results["params"])
    assert 25 <= count <= 30
    assert all(len(column) == count for column in results.values())
    assert list(results["kind"][:4]) == ["start", "smoothness", "smoothness", "column"]
    assert set(results["kind"]) == {"start", "smoothness", "column", "step"}
    assert found.best_params_ is results["params"][found.best_index_]
    assert found.best_score_ == results["mean_test_score"][found.best_index_]
    assert {"mean_train_score", "mean_fit_time", "rank_test_score", "param_scale__log_scale"} <= results.keys()
    assert not [name for name in vars(found) if name.startswith("_") and name != "_checked_cv_orig"]
    copies = pickle.loads(pickle.dumps(found)), clone(found)
    assert np.array_equal(copies[0].predict(X), found.best_estimator_.predict(X))
    assert not hasattr(copies[1], "best_params_")


def test_several_scores_and_a_choice_of_ones_own() -> None:
    options = {"max_fits": 48, "scoring": ["r2", "neg_mean_absolute_error"], "guard": False}
    found = search(refit="r2", **options).fit(X, y)
    assert found.best_score_ == found.cv_results_["mean_test_r2"][found.best_index_]
    assert set(found.scorer_) == {"r2", "neg_mean_absolute_error"}
    assert found.score(X, y) == pytest.approx(found.best_estimator_.score(X, y))
    told = f"chose row 2 of cv_results_, and the search row {found.best_index_}, .*report_"
    with pytest.warns(SearchWarning, match=told):
        assert search(refit=lambda results: 2, **options).fit(X, y).best_index_ == 2
    with pytest.raises(AttributeError, match="predict"):
        search(refit=False, max_fits=48).fit(X, y).predict(X)


# Values


def test_finds_what_a_fine_grid_finds() -> None:
    """One strength of ridge regression on diabetes, and no prior."""
    A, b = load_diabetes(return_X_y=True)
    folds = KFold(4, shuffle=True, random_state=1)
    found = search(Ridge(), {"alpha": Log(1e-3, 10, start=5)}, cv=folds, prior=None, max_fits=80).fit(A, b)
    losses = [
        np.mean((cross_val_predict(Ridge(alpha=alpha), A, b, cv=folds) - b) ** 2)
        for alpha in np.geomspace(1e-3, 10, 400)
    ]
    loss = found.cv_results_["loss"][found.best_index_]
    assert loss == pytest.approx(min(losses), rel=1e-4)
    alone = cross_val_predict(Ridge(**found.best_params_), A, b, cv=folds)
    assert loss == pytest.approx(np.mean((alone - b) ** 2), rel=1e-12)


def test_the_response_is_that_of_out_of_fold_predictions() -> None:
    found = search(max_fits=33, prior=1e9, guard=False).fit(X, y)  # nothing moves, so J is that of the start
    assert np.isnan(found.response_error_)
    assert found.response_.shape == (150, 7)
    assert found.names_[-1] == "kernelridge__alpha"

    def at(**change: Any) -> Any:
        return cross_val_predict(clone(MODEL).set_params(**change), X, y, cv=3)

    start, scales = at(), np.zeros(6)
    scales[2] = 0.1  # the width of differences, since a unit is 1 here
    assert np.allclose(found.response_[:, 2], (at(scale__log_scale=scales) - start) / 0.1, atol=1e-9)
    factor = np.exp(np.log(1e6) / 100)
    assert np.allclose(found.response_[:, 6], (at(kernelridge__alpha=0.1 * factor) - start) / 0.1, atol=1e-9)


@pytest.mark.parametrize("fits", [45, 63, 150])
def test_how_far_the_response_is_off_is_told(fits: int) -> None:
    """A short search ends amid long steps: J is that of places it has left, off by its own size."""
    found = search(max_fits=fits).fit(X, y)
    best = Space(SPACE, clone(MODEL).set_params(**found.best_params_).get_params())

    def at(x: torch.Tensor) -> Any:
        return cross_val_predict(clone(MODEL).set_params(**best.values(x)), X, y, cv=3)

    wanted = np.empty((150, 7))
    for j, way in enumerate(0.02 * torch.eye(7).double()):
        up, down = (best.start + way).clamp(max=10), (best.start - way).clamp(min=0)
        wanted[:, j] = (at(up) - at(down)) / float((up - down).sum())
    known = np.isfinite(found.response_).all(0)
    off = np.linalg.norm((found.response_ - wanted)[:, known]) / np.linalg.norm(wanted[:, known])
    assert found.response_error_ == pytest.approx(off, rel=0.3)
    assert (off < 0.25) == (fits == 150)


def test_learns_which_features_matter_and_holds_on_new_rows() -> None:
    """Friedman's function uses 5 of 6 features."""
    new, wanted = make_friedman1(1000, 6, noise=0.5, random_state=1)
    wanted = (wanted - wanted.mean()) / wanted.std()
    found = search(max_fits=200).fit(X, y, test=(new, wanted))
    scales = found.best_params_["scale__log_scale"]
    assert np.argmin(scales) == 5
    report = found.report_
    assert report.folds.best < 0.8 * report.folds.start
    assert report.other_folds.best < 0.9 * report.other_folds.start
    assert report.test.best < 0.9 * report.test.start
    assert report.test.best == pytest.approx(np.mean((found.predict(new) - wanted) ** 2))
    assert report.test.start == pytest.approx(np.mean((clone(MODEL).fit(X, y).predict(new) - wanted) ** 2))
    assert not report.overfits
    assert "held-out rows" in str(report)
    assert found.roughness_ < 0.2


def test_the_prior_holds() -> None:
    far, near, held = (search(max_fits=120, prior=prior, guard=False).fit(X, y) for prior in (None, 30.0, "evidence"))
    away = [np.abs(s.best_params_["scale__log_scale"]).sum() for s in (far, near)]
    assert away[1] < 0.5 * away[0]
    assert far.report_.folds.best <= near.report_.folds.best
    assert (far.prior_, near.prior_) == (0, 30)
    assert held.prior_ >= 0.12


def test_the_same_bits_again_and_in_two_processes() -> None:
    first = search(max_fits=60).fit(X, y)
    for jobs in (None, 2):
        again = search(max_fits=60, n_jobs=jobs).fit(X, y)
        assert np.array_equal(again.cv_results_["loss"], first.cv_results_["loss"])


# Kinds of data


@pytest.mark.parametrize("model", [LogisticRegression(C=0.1), SVC(gamma=0.2, C=0.1, tol=1e-6)])
def test_classes(model: Any) -> None:
    A, labels = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    space = {"scale__log_scale": Linear(-3, 3, size=4), f"{type(model).__name__.lower()}__C": Log(1e-2, 1e2)}
    found = search(make_pipeline(Scale(), model), space, max_fits=90).fit(A, names, test=(A[::50], names[::50]))
    assert found.report_.test.best < 0.5, "with Platt's targets of three rows it would be .8 at least"
    assert set(found.predict(A)) == set(names)
    assert found.report_.folds.best < found.report_.folds.start
    assert found.response_.shape == (150, 3, 5)
    if hasattr(found, "predict_proba"):
        wanted = log_loss(names, cross_val_predict(found.best_estimator_, A, names, cv=3, method="predict_proba"))
        assert found.report_.folds.best == pytest.approx(wanted, rel=1e-6)


def test_ten_classes_of_svc() -> None:
    """Its own decision function counts votes, and is refused as rough; the sums of its decisions are smooth."""
    images, digits = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), SVC(gamma=0.002, C=0.1, tol=1e-6))
    space = {"svc__C": Log(1e-3, 1e3), "svc__gamma": Log(1e-4, 1)}
    losses = []
    for shape in ("ovr", "ovo"):
        model.set_params(svc__decision_function_shape=shape)
        found = search(model, space, max_fits=60).fit(
            images[:300], digits[:300], test=(images[300:800], digits[300:800])
        )
        assert found.roughness_ < 0.2
        assert found.report_.test.best < 0.8 * found.report_.test.start
        assert found.score(images[300:800], digits[300:800]) > clone(model).fit(images[:300], digits[:300]).score(
            images[300:800], digits[300:800]
        )
        losses.append(found.cv_results_["loss"])
    assert np.array_equal(*losses)


def test_a_class_that_folds_were_not_trained_on_is_told() -> None:
    A, labels = load_iris(return_X_y=True)
    model, space = LogisticRegression(max_iter=1000), {"C": Log(1e-3, 1e3)}
    with pytest.warns(SearchWarning, match="3 of 3 folds have rows of a class.*StratifiedKFold"):
        search(model, space, cv=KFold(3), max_fits=15).fit(A, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SearchWarning)
        search(model, space, max_fits=15).fit(A, labels)


def test_sparse_rows_are_those_of_dense_ones() -> None:
    thin = X * (X > 0.5)
    model = make_pipeline(Scale(), Ridge(solver="lsqr", tol=1e-10))
    space = {"scale__log_scale": Linear(-5, 5, size=6)}
    dense, found = (search(model, space, max_fits=45).fit(rows, y) for rows in (thin, sparse.csr_array(thin)))
    assert np.allclose(found.cv_results_["loss"], dense.cv_results_["loss"], rtol=1e-5)


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    found = search(max_fits=45).fit(frame, pandas.Series(y, index=np.arange(150)[::-1]))
    assert list(found.feature_names_in_) == list("abcdef")
    assert np.allclose(found.cv_results_["loss"], search(max_fits=45).fit(X, y).cv_results_["loss"])


def test_weights_and_groups() -> None:
    """The loss is weighted as the fit is; groups stay together, on the other folds too."""
    weights, groups = np.random.default_rng(0).uniform(0.2, 3, 150), np.repeat(np.arange(15), 10)
    cv = GroupKFold(3)
    model = make_pipeline(Ridge(alpha=1.0))
    space = {"ridge__alpha": Log(1e-2, 1e2)}
    found = search(model, space, cv=cv, max_fits=30).fit(X, y, groups=groups, ridge__sample_weight=weights)
    plain = search(Ridge(alpha=1.0), {"alpha": Log(1e-2, 1e2)}, cv=cv, max_fits=30).fit(
        X, y, groups=groups, sample_weight=weights
    )
    total = 0.0
    for train, test in cv.split(X, y, groups):
        alone = Ridge(alpha=1.0).fit(X[train], y[train], sample_weight=weights[train])
        total += float(np.sum(weights[test] * (alone.predict(X[test]) - y[test]) ** 2))
    assert plain.cv_results_["loss"][0] == pytest.approx(total / weights.sum())
    assert found.cv_results_["loss"] == pytest.approx(plain.cv_results_["loss"]), "weights of a step are weights too"
    assert plain.report_.other_folds is not None
    model = make_pipeline(StandardScaler(), Ridge(alpha=1.0))
    both = {"standardscaler__sample_weight": weights, "ridge__sample_weight": weights[::-1]}
    with pytest.raises(OptionError, match="different sample weights"):
        search(model, space, max_fits=30).fit(X, y, **both)


def test_folds_stay_the_same_in_a_search() -> None:
    """A splitter without a seed splits differently each time; candidates must see one split."""
    cv = ShuffleSplit(4, test_size=0.3)
    found = search(cv=cv, max_fits=60).fit(X, y)
    assert found.response_.shape == (4 * 45, 7)
    assert found.roughness_ < 0.2, "other folds would look like noise"
    assert search(cv=TimeSeriesSplit(3), max_fits=45).fit(X, y).report_.other_folds is None


def test_folds_that_can_be_read_once() -> None:
    """A generator is a cv for GridSearchCV too."""
    folds = KFold(3)
    found, wanted = (search(cv=cv, max_fits=45, guard=False).fit(X, y) for cv in (folds.split(X), folds))
    assert np.array_equal(found.cv_results_["loss"], wanted.cv_results_["loss"])


def test_a_loss_of_ones_own() -> None:
    def huber(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (weights * torch.nn.functional.huber_loss(outputs, targets, reduction="none")).mean()

    found = search(loss=huber, max_fits=60).fit(X, y)
    assert found.report_.folds.best < found.report_.folds.start
    for wrong, kind, told in [
        (lambda o, t, w: ((o - t).abs() > 0.1).double().mean(), RequirementError, "gradient is zero in every output"),
        (lambda o, t, w: ((o.detach() - t) ** 2).mean(), RequirementError, "gradient is zero in every output"),
        (lambda o, t, w: (o - t).mean().log(), RequirementError, "The loss at the start is nan"),
        (lambda o, t, w: w * (o - t) ** 2, ScalarLossError, r"of shape \(150,\).*reduce it with .mean"),
        (lambda o, t, w: ((o - t) ** 2).mean().item(), ScalarLossError, "return the tensor itself"),
    ]:
        with pytest.raises(kind, match=told):
            search(loss=wrong, max_fits=60).fit(X, y + 1)


def test_fits_that_fail() -> None:
    class Fragile(KernelRidge):  # type: ignore[misc]
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
            if self.alpha < 0.0999:
                raise ValueError("too little")
            return super().fit(X, y)

    model = make_pipeline(StandardScaler(), Scale(), Fragile(kernel="rbf", gamma=0.1, alpha=0.1))
    space = {**SPACE, "fragile__alpha": SPACE["kernelridge__alpha"]}
    del space["kernelridge__alpha"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = search(model, space, max_fits=75).fit(X, y)
        assert found.report_.folds.best < found.report_.folds.start
        # A call in which every fit fails has no row; the others keep theirs, and the best its place.
        losses = found.cv_results_["loss"]
        assert len(losses) == len(found.cv_results_["params"]) < found.report_.evaluations
        assert losses[found.best_index_] == found.report_.folds.best
        again = search(model.set_params(**found.best_params_), space, max_fits=20).fit(X, y)
        assert again.report_.folds.start == pytest.approx(found.report_.folds.best)
        with pytest.raises(ValueError, match="too little"):
            search(model, {"fragile__alpha": Log(1e-3, 0.2)}, error_score="raise", max_fits=75).fit(X, y)
        with pytest.raises(ValueError, match="Input y contains NaN"):
            search(max_fits=75).fit(X, np.where(np.arange(150) == 3, np.nan, y))
        with pytest.raises(OptionError, match=r'some fits or their scores failed.*error_score="raise"'):
            search(max_fits=75, scoring="roc_auc").fit(X, y)


# Refused, and warned of


def refused(model: Any, space: Any, kind: Any, told: str, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind, match=told):
            search(model, space, **options).fit(X, y)


def test_what_is_not_smooth_is_refused() -> None:
    tree = DecisionTreeRegressor(random_state=0)
    refused(tree, {"min_impurity_decrease": Linear(0, 0.02, start=0.005)}, RoughResponseError, "jumps.*Optuna")
    drawn = MLPRegressor(hidden_layer_sizes=(5,), max_iter=5)
    refused(drawn, {"alpha": Log(1e-6, 10)}, RoughResponseError, "random_state")
    forest = RandomForestRegressor(5, random_state=0)
    refused(forest, {"n_estimators": Log(1, 100, start=5)}, OptionError, "must be an int.*Optuna")
    refused(Ridge(), {"solver": Linear(0, 1)}, OptionError, "must be a str.*Optuna")
    refused(Ridge(), {"fit_intercept": Linear(0, 1)}, OptionError, "Optuna")
    with pytest.warns(NoResponseWarning):
        found = search(make_pipeline(Scale(), tree), {"scale__log_scale": Linear(-5, 5, size=6)}).fit(X, y)
    assert found.best_index_ == 0
    share = make_pipeline(SelectPercentile(f_regression, percentile=50), Ridge())
    with pytest.warns(NoResponseWarning, match="or by jumps further away.*Optuna"):
        search(share, {"selectpercentile__percentile": Linear(5, 100)}).fit(X, y)
    with pytest.raises(RoughResponseError, match="random_state") as told:
        search(drawn, {"alpha": Log(1e-6, 10)}).fit(X, y)
    assert "tol" not in str(told.value), "no tolerance mends what is drawn"


def test_options() -> None:
    refused(MODEL, SPACE, OptionError, "less than four evaluations of 3 fits.*give 12", max_fits=8)
    refused(MODEL, SPACE, OptionError, "max_fits=0", max_fits=0)
    refused(MODEL, SPACE, OptionError, 'positive number, "evidence" or None', prior="strong")
    refused(Ridge(), {"beta": Log(1, 2)}, OptionError, "no parameter 'beta'")
    many = {"scale__log_scale": Linear(-5, 5, size=200)}
    with pytest.raises(RequirementError, match="200 hyperparameters cannot be told from 150 rows"):
        search(make_pipeline(Scale(), Ridge()), many).fit(np.tile(X, 34)[:, :200], y)
    with pytest.raises(OptionError, match="pair"):
        search(max_fits=45).fit(X, y, test=X)


def test_warnings_say_what_to_do() -> None:
    with pytest.warns(SearchWarning, match="9 evaluations, and J has 7 columns: .* stay as they are"):
        short = search(max_fits=27).fit(X, y)
    unknown = np.isnan(short.response_).all(0)
    assert 0 < unknown.sum() < 7
    assert np.isfinite(short.response_[:, ~unknown]).all()
    assert np.array_equal(short.best_params_["scale__log_scale"][unknown[:6]], np.zeros(unknown[:6].sum()))
    with pytest.warns(SearchWarning, match="40 rows for 7 hyperparameters"):
        search(max_fits=60).fit(X[:40], y[:40])
    held_out = PredefinedSplit(np.where(np.arange(150) < 40, 0, -1))
    with pytest.warns(SearchWarning, match="40 rows in the test folds for 7 hyperparameters"):
        search(cv=held_out, max_fits=20).fit(X, y)
    with pytest.raises(RequirementError, match="7 hyperparameters cannot be told from 5 rows in the test folds"):
        search(cv=ShuffleSplit(1, test_size=5, random_state=0), max_fits=20).fit(X, y)
    some = {"kernelridge__sample_weight": np.where(np.arange(150) % 4 == 0, 2.0, 0.0)}
    with pytest.warns(SearchWarning, match="38 rows with a weight above 0 for 7 hyperparameters"):
        search(max_fits=15).fit(X, y, **some)
    space = {"scale__log_scale": Linear(-5, 5, size=6)}
    with pytest.warns(SearchWarning, match=r"noisy.*Better make svc__tol=0\.1 a hundredth"):
        search(make_pipeline(Scale(), SVC(tol=0.1, gamma=0.3)), space, max_fits=60).fit(X, y > 0)
    trees = GradientBoostingRegressor(n_estimators=20, random_state=0)
    with pytest.warns(SearchWarning, match=r"noisy.*differences of [48]% of the boxes.*If that changes nothing.*trees"):
        search(trees, {"learning_rate": Log(1e-3, 1)}, max_fits=60).fit(X, y)
    with pytest.raises(RoughResponseError, match=r"jumps.*If svc__tol=1\.0 is coarse"):
        search(make_pipeline(Scale(), SVC(tol=1.0, gamma=0.02)), space, max_fits=60).fit(X, y > 0)


def test_learning_the_folds_by_heart_is_told() -> None:
    """Labels that have nothing to do with the features."""
    noise = np.random.default_rng(3).normal(size=60)
    new, other = np.random.default_rng(4).uniform(size=(300, 6)), np.random.default_rng(5).normal(size=300)
    careful = clone(MODEL).set_params(kernelridge__alpha=10.0)
    with pytest.warns(SearchWarning, match="by heart") as told:
        found = search(careful, max_fits=240, prior=None).fit(X[:60], noise, test=(new, other))
    assert found.report_.overfits
    assert found.report_.folds.best < found.report_.folds.start
    assert any("prior=10" in str(w.message) for w in told)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = search(careful, max_fits=240).fit(X[:60], noise, test=(new, other))
    assert held.report_.test.best < found.report_.test.best


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    search(max_fits=60, verbose=1).fit(X, y)
    assert "[ResponseSearchCV] step 1: 5 of 20 evaluations; loss 0." in capsys.readouterr().out
