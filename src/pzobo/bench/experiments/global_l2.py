"""What does one l2 strength for all weights reach? The best of a grid on validation data, solved by scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.bench.experiments.controls import Control
from pzobo.extras import need
from pzobo.problems import Classification
from pzobo.tensors.sparse import SparseMatrix


@dataclass(frozen=True)
class GlobalL2:
    """Logistic regression without intercept, CE + s |y|^2 / 2, for each strength s: one outer step each.

    Args:
        strengths: the grid, from strong to weak; each solution starts at the one before.
        iterations: of scikit-learn's solver (L-BFGS), at most.
    """

    strengths: tuple[float, ...] = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
    iterations: int = 300

    @property
    def outer_steps(self) -> int:
        """A step for each strength."""
        return len(self.strengths)

    def start(self, problem: Classification, seed: int = 0) -> GridSearch:
        return GridSearch(problem, self)


class GridSearch(Control):
    """The best of the grid so far."""

    def __init__(self, problem: Classification, options: GlobalL2) -> None:
        super().__init__(problem)
        self.options, self.position, self.best, self.strength = options, 0, float("inf"), 0.0
        self.y: Tensor = problem.y0
        self._last: Tensor | None = None

    def attempt(self) -> float:
        if self.position < self.options.outer_steps:
            strength = self.options.strengths[self.position]
            self._last = solve(self.problem, strength, self.options.iterations, self._last)
            value = float(self.problem.outer_loss(None, self._last, self.problem.val))
            if value < self.best:
                self.best, self.strength, self.y = value, strength, self._last
            self.position += 1
        return self.best

    def evaluate(self) -> dict[str, float]:
        return {**self.problem.metrics(None, self.y), "strength": self.strength}

    def state_dict(self) -> dict[str, Any]:
        state = {"position": self.position, "best": self.best, "strength": self.strength, "y": self.y}
        return {**state, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.best, self.strength = state["position"], state["best"], state["strength"]
        self.y, self._last = state["y"], state["last"]


def solve(problem: Classification, strength: float, iterations: int, start: Tensor | None = None) -> Tensor:
    """The classifier's weights, d x c, for one strength of all."""
    inputs, labels = problem.train[:2]
    model = need("sklearn.linear_model").LogisticRegression(
        C=1 / (len(labels) * strength), fit_intercept=False, max_iter=iterations, tol=1e-6, warm_start=start is not None
    )
    if start is not None:
        model.coef_, model.intercept_ = start.T.double().numpy().copy(), 0.0
        model.classes_ = torch.unique(labels).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stopped at the last of its iterations, which we ask for
        model.fit(_rows(inputs), labels.numpy())
    return torch.from_numpy(model.coef_.T.copy()).to(problem.y0.dtype)


def _rows(inputs: Tensor) -> Any:
    """As scikit-learn reads them, in float64."""
    if not isinstance(inputs, SparseMatrix):
        return inputs.double().numpy()
    starts, columns, values = (part.numpy() for part in inputs.parts[:3])
    return need("scipy.sparse").csr_matrix((values.astype("float64"), columns, starts), shape=tuple(inputs.shape))
