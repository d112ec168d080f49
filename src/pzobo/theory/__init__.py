"""What does the paper's theory say of a problem, and does it hold? Constants, bounds, settings, measurements."""

from pzobo.diagnosis.suggestion import Suggestion, suggest
from pzobo.theory import sharp
from pzobo.theory.assumptions import Constants
from pzobo.theory.closed_form import constants, logistic_constants, quadratic_constants
from pzobo.theory.deterministic import (
    P_3,
    P_4,
    bias_bound,
    hypergradient_bound,
    hypergradient_lipschitz,
    jacobian_lipschitz,
    response_bound,
    theorem_1,
    theorem_beta,
    theorem_mu,
    variance_bound,
)
from pzobo.theory.estimation import estimate_constants
from pzobo.theory.logistic_problem import logistic
from pzobo.theory.measurements import Point, Sweep, Verification
from pzobo.theory.presentation import fragments, page, table
from pzobo.theory.stochastic import (
    iterate_error_bound,
    jacobian_error_bound,
    recursion,
    stochastic_bias_bound,
    stochastic_variance_bound,
    theorem_2,
)
from pzobo.theory.sweeps import Grid
from pzobo.theory.verification import verify

__all__ = [
    "P_3",
    "P_4",
    "Constants",
    "Grid",
    "Point",
    "Suggestion",
    "Sweep",
    "Verification",
    "bias_bound",
    "constants",
    "estimate_constants",
    "fragments",
    "hypergradient_bound",
    "hypergradient_lipschitz",
    "iterate_error_bound",
    "jacobian_error_bound",
    "jacobian_lipschitz",
    "logistic",
    "logistic_constants",
    "page",
    "quadratic_constants",
    "recursion",
    "response_bound",
    "sharp",
    "stochastic_bias_bound",
    "stochastic_variance_bound",
    "suggest",
    "table",
    "theorem_1",
    "theorem_2",
    "theorem_beta",
    "theorem_mu",
    "variance_bound",
    "verify",
]
