"""Which problems come with the library? Inner and outer objectives, each with what is known of its optimum."""

from pzobo.problems.hyper_representation import linear_hr
from pzobo.problems.quadratic import quadratic

__all__ = ["linear_hr", "quadratic"]
