"""Which solvers and Jacobians can have their data on many ranks? Those that need sums over rows alone."""

from __future__ import annotations

from pzobo.errors import RequirementError
from pzobo.inner.solver import Solver
from pzobo.jacobians.auto import Auto
from pzobo.jacobians.base import Jacobian
from pzobo.solvers import ClosedForm


def check_rows(solver: Solver, jacobian: Jacobian, prepared: bool, compile: bool) -> None:
    """Refuse what cannot have its data on many ranks."""
    why = ""
    if compile:
        why = "compiled code does not wait for other ranks: use compile=False"
    elif isinstance(jacobian, Auto):
        why = "Auto chooses by time, which differs from rank to rank: name the Jacobian"
    elif solver.opaque:
        why = "a black box takes its rows by itself"
    elif prepared and (isinstance(solver, ClosedForm) or jacobian.only_at_z):
        why = 'with prepare, each rank has its own rows of z: a closed form, or at="z", would need all'
    elif prepared and getattr(jacobian, "products", "autodiff") == "difference":
        why = 'with prepare, the ranks would look for different lengths of a difference: use products="forward"'
    if why:
        raise RequirementError(f'split="data": {why}.')
