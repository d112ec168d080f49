"""Which problems come with the library? Inner and outer objectives, each with what is known of its optimum."""

from pzobo.problems.classification import Classification
from pzobo.problems.cleaning import data_cleaning
from pzobo.problems.data_reweighting import Reweighting, reweighting
from pzobo.problems.deep_hyper_representation import deep_hr
from pzobo.problems.hyper_representation import linear_hr, two_layer_hr
from pzobo.problems.logistic_regression import logistic_ho
from pzobo.problems.quadratic_problem import quadratic
from pzobo.problems.simulated import SimulatedQuadratics, simulated_quadratics
from pzobo.problems.sources import SourceWeights, source_weights

__all__ = [
    "Classification",
    "Reweighting",
    "SimulatedQuadratics",
    "SourceWeights",
    "data_cleaning",
    "deep_hr",
    "linear_hr",
    "logistic_ho",
    "quadratic",
    "reweighting",
    "simulated_quadratics",
    "source_weights",
    "two_layer_hr",
]
