"""Which problems come with the library? Inner and outer objectives, each with what is known of its optimum."""

from pzobo.problems.classification import Classification
from pzobo.problems.deep_hyper_representation import deep_hr
from pzobo.problems.hyper_representation import linear_hr, two_layer_hr
from pzobo.problems.logistic import logistic_ho
from pzobo.problems.quadratic import quadratic
from pzobo.problems.reweighting import Reweighting, reweighting

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
