"""Bilevel optimization without Hessians: a differentiable argmin for PyTorch."""

from pzobo import theory
from pzobo.argmin import Argmin
from pzobo.directions import Coordinate, Gaussian, Orthogonal, Rademacher, Sphere, UnitPerTensor
from pzobo.doctor import doctor
from pzobo.fit import Fit, fit
from pzobo.jacobians import CG, PZOBO, Direct, Exact, FixedPoint, ForwardMode, Implicit, Neumann, Nudged, Unrolled
from pzobo.method import Method
from pzobo.problem import Problem
from pzobo.smooth import smooth
from pzobo.solvers import GD, Adam, BlackBox, ClosedForm, HeavyBall
from pzobo.sparse import SparseMatrix

__version__ = "0.1.0"

__all__ = [
    "CG",
    "GD",
    "PZOBO",
    "Adam",
    "Argmin",
    "BlackBox",
    "ClosedForm",
    "Coordinate",
    "Direct",
    "Exact",
    "Fit",
    "FixedPoint",
    "ForwardMode",
    "Gaussian",
    "HeavyBall",
    "Implicit",
    "Method",
    "Neumann",
    "Nudged",
    "Orthogonal",
    "Problem",
    "Rademacher",
    "SparseMatrix",
    "Sphere",
    "UnitPerTensor",
    "Unrolled",
    "doctor",
    "fit",
    "smooth",
    "theory",
]
