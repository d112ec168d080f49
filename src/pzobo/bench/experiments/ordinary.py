"""What does the ordinary model reach? Logistic regression on all data, or on the clean data alone: controls."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pzobo.bench.experiments.controls import Plain
from pzobo.bench.methods import Named
from pzobo.extras import need
from pzobo.outer.objective import Objective
from pzobo.outer.refit import refitted
from pzobo.problems import Classification
from pzobo.solvers import Solver
from pzobo.tensors.sparse import SparseMatrix


@dataclass(frozen=True)
class Ordinary:
    """scikit-learn's logistic regression, its strength by cross-validation. It knows nothing of two levels.

    Args:
        data: "all" for training and validation data together, "clean" for the validation data alone.
        strengths: how many are tried.
        folds: of the cross-validation.
    """

    data: Literal["all", "clean"]
    strengths: int = 6
    folds: int = 3

    @property
    def outer_steps(self) -> int:
        return 1

    def start(self, problem: Classification, seed: int = 0) -> Plain:
        return Plain(problem, lambda: self.fit(problem))

    def fit(self, problem: Classification) -> dict[str, float]:
        """The model's validation loss, and its accuracies."""
        val = _arrays(problem.val)
        parts = [val] if self.data == "clean" else [_arrays(problem.train), val]
        inputs, labels = (_together(arrays) for arrays in zip(*parts, strict=True))
        model = need("sklearn.linear_model").LogisticRegressionCV(Cs=self.strengths, cv=self.folds, max_iter=300)
        with warnings.catch_warnings(action="ignore"):  # it says when a strength has not converged
            model.fit(inputs, labels)
        chances = model.predict_proba(val[0])[np.arange(len(val[1])), np.searchsorted(model.classes_, val[1])]
        test = _arrays(problem.test)
        return {
            "val_loss": float(-np.log(np.maximum(chances, math.exp(-50))).mean()),
            "accuracy": float(model.score(*val)),
            "test_accuracy": float(model.score(*test)),
        }


def again(objective: Objective, solver: Solver) -> dict[str, float]:
    """The test accuracy of the model at the found x, fitted again on training and validation data."""
    problem = getattr(objective, "problem", None)
    if not isinstance(problem, Classification) or problem.all_data is None or isinstance(objective, Plain):
        return {}
    return {"refit_test_accuracy": problem.accuracy(objective.x, refitted(problem, solver, objective.x))}


def _arrays(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels as scikit-learn takes them; sparse inputs as a CSR array of SciPy's."""
    inputs, labels = batch[0], batch[1].cpu().numpy()
    if not isinstance(inputs, SparseMatrix):
        return inputs.flatten(1).cpu().numpy(), labels
    start, column, value = (part.cpu().numpy() for part in inputs.parts[:3])
    return need("scipy.sparse").csr_array((value, column, start), shape=tuple(inputs.shape)), labels


def _together(inputs: Sequence[Any]) -> Any:
    """The rows of all."""
    return np.concatenate(inputs) if isinstance(inputs[0], np.ndarray) else need("scipy.sparse").vstack(inputs)


ORDINARY: dict[str, Named] = {
    "ordinary-all": Named(
        "Logistic regression, all data",
        "the ordinary model on training and validation data, its strength by cross-validation",
        lambda setup, problem: Ordinary("all"),
        tuned=False,
    ),
    "ordinary-clean": Named(
        "Logistic regression, clean data",
        "the ordinary model on the validation data alone",
        lambda setup, problem: Ordinary("clean"),
        tuned=False,
    ),
}
