"""How are ten to a hundred hyperparameters of an estimator found? By steps on the measured response of predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from torch import Tensor

from pzobo.errors import OptionError, RequirementError, RoughResponseError, SearchWarning
from pzobo.options import positive, whole
from pzobo.response.levenberg_marquardt import Place, Terms
from pzobo.response.search import ResponseSearch
from pzobo.sklearn.hooks import PredictingSearchCV, Splits, unwatched
from pzobo.sklearn.losses import Outputs, RowLoss, given_weights, held_out, independent_rows, row_loss
from pzobo.sklearn.report import Losses, Report, other_folds
from pzobo.sklearn.space import USE_OPTUNA, Hyperparameter, Space

FEW_ROWS = 20
"""With fewer rows than this for each hyperparameter, the folds are easily learned by heart."""


class StartError(OptionError):
    """Some of the fits at the start failed, or their scores."""


class ResponseSearchCV(PredictingSearchCV):
    """Ten to a hundred continuous hyperparameters of any scikit-learn estimator, by cross-validation.

    The out-of-fold predictions r are a function of the hyperparameters x, and the loss f(r) is known. Evaluations
    measure the response matrix J = dr/dx (PZOBO with all coordinate directions), an eighth of its columns at a time; a
    Levenberg-Marquardt step on what is known of it is the next x. J is kept: later steps renew an eighth of its
    columns. A Gaussian prior at the start, as strong as the Laplace evidence says, holds hyperparameters that the rows
    tell nothing about.

    With fewer than about ten hyperparameters other searches do as well. Predictions must change smoothly: trees are
    refused, and so are whole numbers and choices. See the page "Search" of the documentation.

    Args:
        estimator: any classifier or regressor, or a pipeline.
        space: hyperparameters by name, as in `set_params`: {"svc__C": Log(1e-3, 1e3)}.
        scoring: as in `GridSearchCV`. It is reported; what is made least is `loss`.
        loss: None is "squared_error" for a regressor, and for a classifier "log_loss" of `predict_proba`, or else of a
            calibrated `decision_function`. Or a function of torch tensors (outputs, targets, weights) that gives a mean
            over the rows: outputs are predictions, logits (one column for two classes) or decisions; targets are
            numbers, or the numbers of classes.
        max_fits: how many fits the search may make, one for each evaluation and fold. None is enough for 4 (p + 1) + 20
            evaluations.
        prior: "evidence" finds the strength of the prior; a number sets it (1 is a deviation of a tenth of the box);
            None is no prior.
        n_jobs: as in `GridSearchCV`. The evaluations that measure columns of J are independent.
        refit: as in `GridSearchCV`; the best candidate is that of the least loss and prior, unless a function chooses.
        cv: as in `GridSearchCV`.
        verbose: 1 tells of every step, 3 and more of every fit.
        pre_dispatch: as in `GridSearchCV`.
        random_state: of the direction in which smoothness is tried, of restarts and of other folds.
        error_score: as in `GridSearchCV`. A step to where fits fail is not taken.
        return_train_score: as in `GridSearchCV`.
        guard: fit the start and the best candidate on other folds too, for `report_`, and a candidate for
            `response_error_`. These fits are not counted in `max_fits`.

    Attributes:
        response_: J where the search stood at its end, an array of (rows, outputs..., p) in units of a hyperparameter:
            a tenth of its box. Rows are those of X that are in test folds, in its order; where folds share some, those
            of the folds one after the other. A column that the budget was too small to measure is NaN; others are as
            old as their last measurement, and corrected since.
        response_error_: by which part J is off there, along one direction that moves all measured hyperparameters; NaN
            without `guard`.
        names_: the p names of its last axis.
        prior_: the strength of the prior at the end.
        report_: losses of the start and of the best candidate, on the folds, on other folds and on held-out rows.
        roughness_: kappa of the page "Search"; .02 to .07 is smooth, .75 and more is refused.
        cv_results_: as in `GridSearchCV`, with the columns "loss" and "kind", what an evaluation was for.
        best_index_: as in `GridSearchCV`, as are `best_params_`, `best_score_`, `best_estimator_`, `scorer_`,
            `n_splits_`, `refit_time_`, `multimetric_`, `classes_`, `n_features_in_` and `feature_names_in_`.

    Raises:
        OptionError: an option or the space makes no sense.
        RoughResponseError: predictions change by jumps, or not at all, as those of trees.

    Examples:
        >>> from sklearn.datasets import make_friedman1
        >>> from sklearn.kernel_ridge import KernelRidge
        >>> from sklearn.pipeline import make_pipeline
        >>> from pzobo.sklearn import Linear, Log, ResponseSearchCV, Scale
        >>> X, y = make_friedman1(100, 10, random_state=0)
        >>> model = make_pipeline(Scale(), KernelRidge(kernel="rbf", gamma=0.1, alpha=0.1))
        >>> space = {"scale__log_scale": Linear(-5, 5, size=10), "kernelridge__alpha": Log(1e-4, 1e2)}
        >>> search = ResponseSearchCV(model, space, cv=3, max_fits=120, random_state=0).fit(X, y)
        >>> search.response_.shape                                       # rows x hyperparameters
        (100, 11)
        >>> search.predict(X[:2]).shape
        (2,)
    """

    _temporary = (
        *PredictingSearchCV._temporary,
        *("_own_params", "_space", "_weights", "_random", "_run", "_best", "_loss", "_guarded", "_off", "_outputs"),
    )

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Hyperparameter],
        *,
        scoring: Any = None,
        loss: Any = None,
        max_fits: int | None = None,
        prior: Any = "evidence",
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        guard: bool = True,
    ) -> None:
        super().__init__(
            estimator=estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.space, self.loss, self.max_fits, self.prior = space, loss, max_fits, prior
        self.random_state, self.guard = random_state, guard

    def fit(self, X: Any, y: Any = None, *, test: Any = None, **params: Any) -> Self:
        """Search, and refit the best candidate on all rows.

        Args:
            X: rows of features: an array, a sparse matrix, a data frame.
            y: what is to be predicted.
            test: a pair (X, y) of held-out rows, for `report_` alone.
            params: of the estimator's `fit`, such as `sample_weight` or a step's `ridge__sample_weight` (both weigh the
                loss too), and `groups`.
        """
        self._own_params = self.estimator.get_params()
        space = Space(self.space, self._own_params)
        self._space, self._weights = space, given_weights(params, self.estimator)
        self._random = check_random_state(self.random_state)
        if self.max_fits is not None:
            whole("max_fits", self.max_fits)
        if self.prior is not None and self.prior != "evidence":
            positive("prior", self.prior, least='a positive number, "evidence" or None')
        self._outputs = outputs = Outputs.of(self.estimator, y)
        rows = None if test is None else held_out(test, y, outputs)
        self._start(outputs)
        try:
            super().fit(X, y, **params)
            self.scorer_: Any = unwatched(self.scorer_)
            self._finish(None if rows is None else self._on_test(X, y, rows, params, outputs))
        except StartError:
            self._fitted(self._space.start, X, y, params)  # what is wrong with all rows the estimator says itself
            raise
        finally:
            self._end()
        return self

    # The search itself

    def _search(self) -> None:
        space, p = self._space, len(self._space)
        splits = self.n_splits_
        budget = 4 * (p + 1) + 20 if self.max_fits is None else int(self.max_fits) // splits
        if budget < 4:
            raise OptionError(
                f"max_fits={self.max_fits} is less than four evaluations of {splits} fits each: give {4 * splits} at "
                f"least, and {splits * (2 * p + 10)} for two steps with all of J."
            )
        if budget < p + 4:
            warnings.warn(
                f"max_fits={self.max_fits} is {budget} evaluations, and J has {p} columns: hyperparameters whose "
                f"column cannot be measured stay as they are. Give {splits * (2 * p + 10)}, say.",
                SearchWarning,
                stacklevel=4,
            )
        seed = int(self._random.randint(2**31 - 1))
        self._run = ResponseSearch(
            self._terms,
            space.start,
            space.low,
            space.high,
            self._evaluate_at,
            budget,
            torch.Generator().manual_seed(seed),
            self._tell,
            self._drawn,
        )
        try:
            best = self._run.run()
        except RoughResponseError as error:
            jumps = bool(self._run.places) and bool(self._run.smoothness.found)  # no tolerance mends the other reasons
            coarse = self._tolerances() if jumps else ""
            advice = f" If {coarse} is coarse, a hundredth of it may do." if coarse else ""
            raise RoughResponseError(f"{error}{advice}") from None
        self._best = best
        self._chosen = sum(self._recorded[: next(i for i, place in enumerate(self._run.places) if place is best)])
        self._guarded = self._on_other_folds(best, seed) if self.guard else None
        self._off = self._response_error(seed) if self.guard else math.nan

    def _evaluate_at(self, points: Sequence[Tensor], kind: str) -> list[Tensor | None]:
        try:
            found = self._outputs_of([self._space.values(x) for x in points], kind)
        except ValueError as error:
            mine = [f"The {name.rpartition('__')[2]!r} parameter" for name in self.space]
            told = [line for line in str(error).splitlines() if any(text in line for text in mine)]
            if kind == "start" and told:
                raise OptionError(f"{told[0].rpartition('Error: ')[2]} {USE_OPTUNA}") from error
            raise
        if kind == "start":
            if found[0] is None:
                raise StartError(
                    "At the start, which is what the estimator has, some fits or their scores failed: the warnings "
                    'above say why. error_score="raise" shows the first of them whole.'
                )
            self._look_at_rows(found[0])
        # Copies in torch's own memory: products of numbers that begin anywhere in memory can differ in their last bits.
        return [None if r is None else torch.tensor(r).flatten() for r in found]

    def _look_at_rows(self, r: Any) -> None:
        """The loss of the out-of-fold rows; and whether there are enough of them."""
        self._loss = self._loss_on(self._splits, r)
        rows = np.unique(self._splits.rows)  # those that are in no test fold, or have no weight, tell nothing
        where = "" if len(rows) == len(self._splits.y) else " in the test folds"
        if self._weights is not None and not (weighty := np.asarray(self._weights)[rows] > 0).all():
            rows, where = rows[weighty], f"{where} with a weight above 0"
        n, p = len(rows), len(self._space)
        unseen = self._splits.unseen() if self._outputs.classes is not None else 0
        if unseen:
            warnings.warn(
                f"{unseen} of {self.n_splits_} folds have rows of a class that they were not trained on: their log "
                "loss says nothing of the hyperparameters. Give cv= a splitter that keeps the shares of the classes, "
                "such as StratifiedKFold.",
                SearchWarning,
                stacklevel=2,
            )
        if p >= n:
            raise RequirementError(
                f"{p} hyperparameters cannot be told from {n} rows{where}: search fewer, or get more rows."
            )
        if n < FEW_ROWS * p:
            held = "" if self.prior is None else " The prior holds what they do not tell."
            warnings.warn(
                f"{n} rows{where} for {p} hyperparameters: with fewer than {FEW_ROWS} rows for each, a smaller loss on "
                f"the folds can be a larger one on new rows.{held} Look at report_, and give fit(..., test=(X, y)).",
                SearchWarning,
                stacklevel=2,
            )

    def _loss_on(self, splits: Splits, r: Any) -> RowLoss:
        rows = splits.rows
        weights = None if self._weights is None else np.asarray(self._weights)[rows]
        return row_loss(self.loss, self._outputs, r, np.asarray(splits.y)[rows], weights)

    def _terms(self, r: Tensor) -> Terms:
        weights = np.ones(len(self._splits.y)) if self._weights is None else self._weights
        rows = independent_rows(self._splits.pairs, weights)
        prior = self.prior if self.prior in (None, "evidence") else float(self.prior)
        return Terms(self._loss, rows, "nats" if self._loss.form == "log" else "scale", prior, self._loss.extra)

    def _tell(self, run: ResponseSearch) -> None:
        if self.verbose > 0:
            best = run.steps.best.value
            print(  # noqa: T201 (as scikit-learn's searches do)
                f"[ResponseSearchCV] step {run.steps.step}: {len(run.places)} of {run.budget} evaluations; loss "
                f"{run.places[-1].value:.5g}, best {best:.5g}, start {run.places[0].value:.5g}"
            )

    # What is told at the end

    def _finish(self, test: Losses | None) -> None:
        run, space = self._run, self._space
        values = [place.value for place in run.places]
        self.cv_results_["loss"] = np.array(values)[self._recorded]
        self.names_, self.roughness_, self.prior_ = space.names(), run.smoothness.kappa, run.steps.alpha
        J = run.steps.J.masked_fill(run.steps.age < 0, torch.nan).numpy().reshape(*self._loss.shape, len(space))
        rows = self._splits.rows
        self.response_ = J[np.argsort(rows)] if len(np.unique(rows)) == len(rows) else J
        self.response_error_ = self._off
        folds = Losses(values[0], self._best.value)
        self.report_ = Report(
            folds, self._guarded, test, len(values), len(values) * self.n_splits_, len(self._splits.y), len(space)
        )
        if callable(self.refit) and self.best_index_ != self._chosen:
            warnings.warn(
                f"refit= chose row {self.best_index_} of cv_results_, and the search row {self._chosen}, which has the "
                "least loss and prior: best_params_ are of the first, report_ and response_ of the second.",
                SearchWarning,
                stacklevel=3,
            )
        if run.smoothness.noisy:
            what = f"make {self._tolerances()} a hundredth" if self._tolerances() else "let it converge further"
            warnings.warn(
                f"The predictions are noisy (kappa = {run.smoothness.kappa:.2g} with differences of "
                f"{10 * run.smoothness.width:.2g}% of the boxes): fits stop too early, or jump a little. Better {what}."
                " If that changes nothing, they jump as those of trees: use Optuna.",
                SearchWarning,
                stacklevel=3,
            )
        if self.report_.overfits:
            warnings.warn(
                f"The search has learned the folds by heart: on other rows the loss is larger than at the start.\n"
                f"{self.report_}\nKeep the start, take more rows or fewer hyperparameters, or a stronger prior "
                f"(prior={10 * max(self.prior_, 1):.2g}, say).",
                SearchWarning,
                stacklevel=3,
            )

    def _drawn(self) -> bool:
        """Whether a fit may draw random numbers that nobody has seeded."""
        return any(k.rpartition("__")[2] == "random_state" and v is None for k, v in self._own_params.items())

    def _tolerances(self) -> str:
        """The estimator's tolerances, as `name=value`."""
        found = [f"{k}={v!r}" for k, v in self._own_params.items() if k.rpartition("__")[2] == "tol" and v is not None]
        return " or ".join(found)

    def _on_other_folds(self, best: Place, seed: int) -> Losses | None:
        cv = other_folds(self._splits.cv, seed)
        if cv is None:
            return None
        places, other = [self._run.places[0], best], Splits(cv)
        found = self._outputs_of([self._space.values(place.x) for place in places], "guard", other)
        if any(r is None for r in found):
            return None
        return Losses(*(self._value(self._loss_on(other, r), r, place) for place, r in zip(places, found, strict=True)))

    def _response_error(self, seed: int) -> float:
        """|r(x + s) - r(x) - J s| / |r(x + s) - r(x)| at J's place, for an s as long as a difference."""
        steps = self._run.steps
        here, known = steps.best, steps.age >= 0
        if not bool(known.any()):
            return math.nan
        signs = torch.randint(0, 2, known.shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(here.x)
        s = torch.where(known, 2 * signs - 1, 0) * steps.width / math.sqrt(int(known.sum()))
        s = torch.where((here.x + s < steps.low) | (here.x + s > steps.high), -s, s)
        (found,) = self._outputs_of([self._space.values(here.x + s)], "guard", self._splits)
        if found is None:
            return math.nan
        change = torch.tensor(found).flatten() - here.r
        return float((change - steps.J @ s).norm() / change.norm())

    def _on_test(self, X: Any, y: Any, test: tuple[Any, Any], params: Any, outputs: Outputs) -> Losses:
        X_test, y_test = test
        losses = []
        for place in (self._run.places[0], self._best):
            r = outputs(self._fitted(place.x, X, y, params), X_test)
            losses.append(self._value(row_loss(self.loss, outputs, r, y_test, None, fitted=False), r, place))
        return Losses(*losses)

    def _fitted(self, x: Tensor, X: Any, y: Any, params: Any) -> Any:
        routed = self._get_routed_params_for_fit(params).estimator.fit
        return clone(self.estimator).set_params(**self._space.values(x)).fit(X, y, **routed)

    @staticmethod
    def _value(loss: RowLoss, r: Any, place: Place) -> float:
        return float(loss(place.x, torch.as_tensor(r).flatten(), place.extra))
