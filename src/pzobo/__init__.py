"""Bilevel optimization without Hessians: a differentiable argmin for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from pzobo import deprecated
from pzobo.argmin import Argmin
from pzobo.inner.solution import Solution
from pzobo.inner.tasks import for_tasks, over_tasks
from pzobo.jacobians import (
    CG,
    PZOBO,
    Auto,
    Direct,
    Exact,
    FixedPoint,
    ForwardMode,
    Implicit,
    Jacobian,
    Neumann,
    Nudged,
    Unrolled,
)
from pzobo.outer.fitting import Fit, fit
from pzobo.outer.gauss_newton import GaussNewton
from pzobo.outer.hozog import HOZOG
from pzobo.outer.method import Method
from pzobo.outer.objective import Objective
from pzobo.outer.problem import Problem
from pzobo.solvers import GD, Adam, AdamW, BlackBox, ClosedForm, HeavyBall, Iterative, Schedule, Solver
from pzobo.tensors.functional import Functional
from pzobo.tensors.sparse import SparseMatrix
from pzobo.zeroth_order.directions import Coordinate, Gaussian, Orthogonal, Rademacher, Sampler, Sphere, UnitPerTensor
from pzobo.zeroth_order.smoothing import smooth

if TYPE_CHECKING:
    from pzobo import theory
    from pzobo.diagnosis.examination import doctor

__version__ = "0.2.0.dev0"

__all__ = [
    "CG",
    "GD",
    "HOZOG",
    "PZOBO",
    "Adam",
    "AdamW",
    "Argmin",
    "Auto",
    "BlackBox",
    "ClosedForm",
    "Coordinate",
    "Direct",
    "Exact",
    "Fit",
    "FixedPoint",
    "ForwardMode",
    "Functional",
    "GaussNewton",
    "Gaussian",
    "HeavyBall",
    "Implicit",
    "Iterative",
    "Jacobian",
    "Method",
    "Neumann",
    "Nudged",
    "Objective",
    "Orthogonal",
    "Problem",
    "Rademacher",
    "Sampler",
    "Schedule",
    "Solution",
    "Solver",
    "SparseMatrix",
    "Sphere",
    "UnitPerTensor",
    "Unrolled",
    "doctor",
    "fit",
    "for_tasks",
    "over_tasks",
    "smooth",
    "theory",
]

_ROOMS = ("algorithms", "bench", "data", "diagnosis", "meta", "networks", "problems", "sklearn", "testing", "theory")
"""What `import pzobo` leaves alone until it is named."""

deprecated.keep_old_modules()


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"pzobo.{name}")
    if name == "doctor":
        return importlib.import_module("pzobo.diagnosis.examination").doctor
    hint = "" if name.startswith("_") else f"; is it in one of its rooms, as in pzobo.algorithms.{name}?"
    raise AttributeError(f"module 'pzobo' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
