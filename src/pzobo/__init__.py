"""Bilevel optimization without Hessians: a differentiable argmin for PyTorch."""

from pzobo import theory
from pzobo.argmin import Argmin
from pzobo.diagnosis.examination import doctor
from pzobo.jacobians import CG, PZOBO, Direct, Exact, FixedPoint, ForwardMode, Implicit, Neumann, Nudged, Unrolled
from pzobo.outer.fitting import Fit, fit
from pzobo.outer.method import Method
from pzobo.outer.problem import Problem
from pzobo.solvers import GD, Adam, BlackBox, ClosedForm, HeavyBall
from pzobo.tensors.sparse import SparseMatrix
from pzobo.zeroth_order.directions import Coordinate, Gaussian, Orthogonal, Rademacher, Sphere, UnitPerTensor
from pzobo.zeroth_order.smoothing import smooth

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
