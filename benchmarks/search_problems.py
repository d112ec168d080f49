"""On what are searches for hyperparameters compared? Tables of scikit-learn and Friedman's functions, p = 3 to 100."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_friedman1, make_friedman2
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import check_cv
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from pzobo.response.levenberg_marquardt import Terms
from pzobo.sklearn import Linear, Log, Scale
from pzobo.sklearn.losses import Outputs, independent_rows, row_loss
from pzobo.sklearn.space import Space


@dataclass(frozen=True)
class Task:
    """An estimator, its hyperparameters, and rows to search on; the others are the test.

    Args:
        about: in one line.
        data: X and y, by the seed.
        rows: how many of them the search sees.
        model: the estimator.
        space: its hyperparameters.
    """

    about: str
    data: Callable[[int], tuple[Any, Any]]
    rows: int
    model: Any
    space: dict[str, Any]


def _standard(data: Any) -> tuple[Any, Any]:
    X, y = data
    return X, (y - y.mean()) / y.std()


def _scales(p: int) -> Linear:
    return Linear(-5, 5, size=p)


def _kernel_ridge(p: int) -> Any:
    return make_pipeline(StandardScaler(), Scale(), KernelRidge(kernel="rbf", gamma=1 / p, alpha=0.1))


def _nystroem(p: int) -> Any:
    features = Nystroem(kernel="rbf", gamma=1 / p, n_components=100, random_state=0)
    return make_pipeline(StandardScaler(), Scale(), features, Ridge(alpha=0.1))


def _friedman(p: int, rows: int) -> Callable[[int], tuple[Any, Any]]:
    return lambda seed: _standard(make_friedman1(rows + 1000, p, noise=1.0, random_state=seed))


def _diabetes(seed: int) -> tuple[Any, Any]:
    return _standard(load_diabetes(return_X_y=True))


def _cancer(seed: int) -> tuple[Any, Any]:
    found: tuple[Any, Any] = load_breast_cancer(return_X_y=True)
    return found


def _digits(seed: int) -> tuple[Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


TASKS = {
    "svr-3": Task(
        "diabetes, SVR: C, gamma, epsilon",
        _diabetes,
        300,
        make_pipeline(StandardScaler(), SVR(gamma=0.1, tol=1e-5)),
        {"svr__C": Log(1e-3, 1e3), "svr__gamma": Log(1e-4, 10), "svr__epsilon": Log(1e-3, 1)},
    ),
    "friedman2-5": Task(
        "Friedman 2, kernel ridge: 4 length-scales and alpha",
        lambda seed: _standard(make_friedman2(1200, noise=100.0, random_state=seed)),
        200,
        _kernel_ridge(4),
        {"scale__log_scale": _scales(4), "kernelridge__alpha": Log(1e-4, 1e2)},
    ),
    "diabetes-11": Task(
        "diabetes, kernel ridge: 10 length-scales and alpha",
        _diabetes,
        300,
        _kernel_ridge(10),
        {"scale__log_scale": _scales(10), "kernelridge__alpha": Log(1e-4, 1e2)},
    ),
    "friedman-11": Task(
        "Friedman 1 with 10 features, kernel ridge: 10 length-scales and alpha",
        _friedman(10, 600),
        600,
        _kernel_ridge(10),
        {"scale__log_scale": _scales(10), "kernelridge__alpha": Log(1e-4, 1e2)},
    ),
    "cancer-30": Task(
        "breast cancer, logistic regression: 30 scales",
        _cancer,
        200,
        make_pipeline(StandardScaler(), Scale(), LogisticRegression(tol=1e-6, max_iter=1000)),
        {"scale__log_scale": _scales(30)},
    ),
    "cancer-400-30": Task(
        "the same with 400 rows",
        _cancer,
        400,
        make_pipeline(StandardScaler(), Scale(), LogisticRegression(tol=1e-6, max_iter=1000)),
        {"scale__log_scale": _scales(30)},
    ),
    "svc-31": Task(
        "breast cancer, SVC with calibrated decisions: 30 scales and C",
        _cancer,
        200,
        make_pipeline(StandardScaler(), Scale(), SVC(gamma=1 / 30, tol=1e-5)),
        {"scale__log_scale": _scales(30), "svc__C": Log(1e-3, 1e3)},
    ),
    "friedman-31": Task(
        "Friedman 1 with 30 features, kernel ridge: 30 length-scales and alpha",
        _friedman(30, 200),
        200,
        _kernel_ridge(30),
        {"scale__log_scale": _scales(30), "kernelridge__alpha": Log(1e-4, 1e2)},
    ),
    "friedman-5000-31": Task(
        "the same with 5,000 rows, ridge on 100 Nystroem features",
        _friedman(30, 5000),
        5000,
        _nystroem(30),
        {"scale__log_scale": _scales(30), "ridge__alpha": Log(1e-4, 1e2)},
    ),
    "digits-64": Task(
        "digits, logistic regression: 64 scales",
        _digits,
        800,
        make_pipeline(Scale(), LogisticRegression(tol=1e-5, max_iter=1000)),
        {"scale__log_scale": _scales(64)},
    ),
    "friedman-100": Task(
        "Friedman 1 with 99 features, kernel ridge: 99 length-scales and alpha",
        _friedman(99, 400),
        400,
        _kernel_ridge(99),
        {"scale__log_scale": _scales(99), "kernelridge__alpha": Log(1e-4, 1e2)},
    ),
}


class Spent(Exception):
    """The budget is spent."""


class Evaluation:
    """The CV loss of a task as a function of x in [0, 10]^p, counted.

    Args:
        name: of the task.
        seed: of its rows.
        budget: how many evaluations at most; the next raises `Spent`.
    """

    def __init__(self, name: str, seed: int, budget: int) -> None:
        task = TASKS[name]
        X, y = task.data(seed)
        order = np.random.default_rng(seed).permutation(len(y))
        mine, rest = order[: task.rows], order[task.rows :]
        self.X, self.y, self.X_test, self.y_test = X[mine], y[mine], X[rest], y[rest]
        self.model, self.budget = task.model, budget
        self.space = Space(task.space, task.model.get_params())
        self.outputs = Outputs.of(task.model, self.y)
        self.pairs = list(check_cv(5, self.y, classifier=is_classifier(task.model)).split(self.X, self.y))
        self.rows = np.concatenate([test for _, test in self.pairs])
        self.points: list[torch.Tensor] = []
        self.values: list[float] = []
        self.loss: Any = None

    @property
    def p(self) -> int:
        return len(self.space)

    @property
    def start(self) -> Any:
        return self.space.start.numpy()

    def r(self, x: Any) -> torch.Tensor:
        """The out-of-fold outputs, flat."""
        if len(self.values) >= self.budget:
            raise Spent
        x = torch.as_tensor(np.clip(np.asarray(x, dtype=float), 0, 10))
        model = clone(self.model).set_params(**self.space.values(x))
        with config_context(assume_finite=True, skip_parameter_validation=True):  # the same bits, a little faster
            parts = [
                self.outputs(clone(model).fit(self.X[train], self.y[train]), self.X[test]) for train, test in self.pairs
            ]
        r = np.concatenate(parts)
        if self.loss is None:
            self.loss = row_loss(None, self.outputs, r, self.y[self.rows], None)
        flat = torch.as_tensor(r).flatten()
        self.points.append(x)
        self.values.append(float(self.loss(x, flat, self._constants(x, flat))))
        return flat

    def value(self, x: Any) -> float:
        """The CV loss."""
        self.r(x)
        return self.values[-1]

    def residuals(self, x: Any) -> Any:
        """One for each row, whose mean square is the loss."""
        flat = self.r(x)
        each = self.loss.each(flat, self._constants(self.points[-1], flat))
        return each.clamp(min=1e-15).sqrt().numpy() / np.sqrt(len(each)), self.values[-1]

    def many(self, points: Sequence[torch.Tensor], kind: str) -> list[torch.Tensor | None]:
        """As `ResponseSearch` asks."""
        return [self.r(x) for x in points]

    def terms(self, prior: Any) -> Callable[[Any], Terms]:
        kind: Any = "nats" if self.outputs.classes is not None else "scale"
        rows = independent_rows(self.pairs, np.ones(len(self.X)))
        return lambda r: Terms(self.loss, rows, kind, prior, self.loss.extra)

    def _constants(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return Terms(self.loss, 1.0, extra=self.loss.extra).fitted(x, r, self.loss.extra)

    def test(self, number: int) -> float:
        """The loss on the test rows at an evaluated x, fitted on all rows of the search."""
        x = self.points[number]
        flat = self._without_counting(x)
        constants = self._constants(x, flat)
        fitted = clone(self.model).set_params(**self.space.values(x)).fit(self.X, self.y)
        r = self.outputs(fitted, self.X_test)
        loss = row_loss(None, self.outputs, r, self.y_test, None)
        return float(loss(x, torch.as_tensor(r).flatten(), constants))

    def _without_counting(self, x: torch.Tensor) -> torch.Tensor:
        if not len(self.loss.extra):
            return x.new_zeros(0)
        self.budget += 1
        r = self.r(x)
        self.budget, _, _ = self.budget - 1, self.points.pop(), self.values.pop()
        return r
