"""What is dy/dx taken to be? One file a family of answers."""

from pzobo.jacobians.auto import Auto
from pzobo.jacobians.base import Jacobian
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.forward import ForwardMode
from pzobo.jacobians.implicit import CG, Exact, FixedPoint, Implicit, Neumann
from pzobo.jacobians.nudged import Nudged
from pzobo.jacobians.pzobo import PZOBO
from pzobo.jacobians.unrolled import Unrolled

__all__ = [
    "CG",
    "PZOBO",
    "Auto",
    "Direct",
    "Exact",
    "FixedPoint",
    "ForwardMode",
    "Implicit",
    "Jacobian",
    "Neumann",
    "Nudged",
    "Unrolled",
]
