"""Which problems come with the library? Inner and outer objectives, each with what is known of its optimum."""

from pzobo.problems.classification import Classification
from pzobo.problems.data_reweighting import Reweighting, reweighting
from pzobo.problems.deep_hyper_representation import deep_hr
from pzobo.problems.hyper_representation import linear_hr, two_layer_hr
from pzobo.problems.logistic_regression import logistic_ho
from pzobo.problems.quadratic_problem import quadratic

__all__ = [
    "Classification",
    "Reweighting",
    "deep_hr",
    "linear_hr",
    "logistic_ho",
    "quadratic",
    "reweighting",
    "two_layer_hr",
]
