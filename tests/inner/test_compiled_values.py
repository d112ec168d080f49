"""Does compiled code compute what eager code computes: y^N, its statistics and the hypergradient, in every combination?

A combination is a solver, a Jacobian, its products, the data, prepare, the shapes of x and y, and a dtype. What takes
time is compiling, so one Argmin serves all Jacobians, and `make test` runs a part that meets every choice (3 minutes of
one core). CONTRIBUTING.md says how to run all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo import CG, PZOBO, Direct, Exact, FixedPoint, ForwardMode, Implicit, Neumann, Nudged, Unrolled
from pzobo.errors import RequirementError
from tests.helpers import normal

STEPS, LR, MU = 7, 0.2, 0.1

SOLVERS = {
    "GD": pzobo.GD(LR, STEPS),
    "HeavyBall": pzobo.HeavyBall(LR / 2, 0.5, STEPS),
    "Adam": pzobo.Adam(0.05, STEPS),
    "ClosedForm": pzobo.ClosedForm(lambda z, batch: ridge(z, batch)),
}
DATA = ("batch", "equal batches", "unequal batches")
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# The largest relative difference between eager and compiled, in units of the dtype's eps: for what is computed
# directly the issue asks for 1e-5 and 1e-10. A difference quotient divides rounding by its relative length.
DIRECTLY, BY_MU = 80.0, 200.0 / MU


def jacobians(products: Any) -> dict[str, tuple[Any, float]]:
    """Those that take second derivatives, with how far they may differ (of eps)."""
    # The length of a central difference is 2 eps^(1/3): what is left is eps^(2/3).
    found = {
        "Unrolled": Unrolled(products=products),
        "Unrolled(last)": Unrolled(last=3, products=products),
        "Unrolled(checkpoint)": Unrolled(checkpoint=True, products=products),
        "CG": Implicit(CG(4, tol=0.0), products),
        "FixedPoint": Implicit(FixedPoint(4), products),
        "FixedPoint(lr)": Implicit(FixedPoint(4, lr=LR), products),
        "Neumann": Implicit(Neumann(LR, 4), products),
        "Exact": Implicit(Exact(), products),
    }
    return {
        f"{name}, {products}": (jacobian, 0.0 if products == "difference" else DIRECTLY)
        for name, jacobian in found.items()
    }


JACOBIANS: dict[str, tuple[Any, float]] = {
    "Direct": (Direct(), DIRECTLY),
    "PZOBO at x": (PZOBO(MU, 2, pzobo.Gaussian(seed=0), at="x"), BY_MU),
    "PZOBO at z": (PZOBO(MU, 2, pzobo.Gaussian(seed=0), at="z"), BY_MU),
    "ForwardMode at x": (ForwardMode(2, pzobo.Gaussian(seed=0), at="x"), DIRECTLY),
    "ForwardMode at z": (ForwardMode(2, pzobo.Gaussian(seed=0), at="z"), DIRECTLY),
    "Nudged": (Nudged(MU), BY_MU),
    **jacobians("autodiff"),
    **jacobians("forward"),
    **jacobians("difference"),
}


@dataclass(frozen=True)
class Problem:
    """g = mean h(A y + c - z), z = B tanh(x) and h(r) = r^2 / 2 + sqrt(1 + r^2): strongly convex, and dg/dy is one
    product of matrices, which compilers like to fuse with whatever follows."""

    matrix: bool
    prepared: bool

    def argmin(self, solver: Any, compile: bool) -> pzobo.Argmin:
        loss, prepare = (residual_loss, features) if self.prepared else (whole_loss, None)
        return pzobo.Argmin(loss, solver=solver, jacobian=Direct(), prepare=prepare, compile=compile, audit=False)

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows, 3) if self.matrix else (rows,)

    def x(self, dtype: torch.dtype) -> Tensor:
        return normal(*self.shape(5), seed=1, dtype=dtype).requires_grad_()

    def y0(self, dtype: torch.dtype) -> Any:
        return {
            "weight": normal(*self.shape(4), seed=2, dtype=dtype),
            "offset": normal(*self.shape(4)[1:], seed=3, dtype=dtype),
        }

    def data(self, name: str, dtype: torch.dtype) -> dict[str, Any]:
        sizes = {"batch": [12], "equal batches": [12] * STEPS, "unequal batches": [9, 12, 9, 10, 12, 9, 11]}[name]
        batches = [
            (normal(n, 4, seed=n + i, dtype=dtype), normal(n, 5, seed=7 * n + i, dtype=dtype))
            for i, n in enumerate(sizes)
        ]
        return {"batch": batches[0]} if name == "batch" else {"batches": batches}


def features(x: Tensor, batch: Any) -> Tensor:
    return batch[1] @ x.tanh()


def residual_loss(z: Tensor, y: Any, batch: Any) -> Tensor:
    r = batch[0] @ y["weight"] + y["offset"] - z
    return (r.square() / 2 + (1 + r.square()).sqrt()).mean()


def whole_loss(x: Tensor, y: Any, batch: Any) -> Tensor:
    return residual_loss(features(x, batch), y, batch)


def ridge(z: Tensor, batch: Any) -> Any:
    """Not the solution, but a formula all the same; x itself is taken for z where nothing is prepared."""
    a, b = batch
    z = z if len(z) == len(a) else b @ z.tanh()
    weight = torch.linalg.solve(a.T @ a + torch.eye(4, dtype=a.dtype), a.T @ z)
    return {"weight": weight, "offset": (z - a @ weight).mean(0)}


def run(argmin: pzobo.Argmin, jacobian: Any, problem: Problem, data: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a user sees of the first pass, in which lengths of differences are looked for, step by step, and of the
    third, which is the first without."""
    argmin.jacobian = jacobian.at_start()
    x, y0 = problem.x(dtype), problem.y0(dtype)
    found = {}
    for which in ("first", "second", "third"):
        y = argmin(x, y0, **problem.data(data, dtype))
        found[f"y, {which}"] = torch.cat([t.detach().flatten() for t in y.values()])
        outer = (y["weight"].sin().sum() + y["offset"].square().sum()) + x.square().sum()
        found[f"hypergradient, {which}"] = torch.autograd.grad(outer, x)[0]
    last = argmin.last
    found["statistics"] = torch.tensor([last.inner_loss, last.gradient_norm])
    return found


def disagreements(solver: str, problem: Problem, data: str, dtype: str, argmins: Any, names: Any) -> Iterator[str]:
    eps = torch.finfo(DTYPES[dtype]).eps
    for name in names:
        jacobian, tolerance = JACOBIANS[name]
        try:
            jacobian.check(SOLVERS[solver])
        except RequirementError:
            continue
        expected, found = (run(argmin, jacobian, problem, data, DTYPES[dtype]) for argmin in argmins)
        of_gradient = tolerance * eps if tolerance else 20 * eps ** (2 / 3)
        for what, value in found.items():
            error = float((value - expected[what]).norm() / expected[what].norm())
            allowed = of_gradient if "hypergradient" in what else DIRECTLY * eps
            if not error <= allowed:
                yield f"{name}, {data}, {dtype}: {what} differs by {error:.1e}, allowed {allowed:.1e}"


def check(solver: str, matrix: bool, prepared: bool, parts: list[tuple[str, str, Any]]) -> None:
    problem = Problem(matrix, prepared)
    argmins = [problem.argmin(SOLVERS[solver], compile) for compile in (False, True)]
    found = [
        line for data, dtype, names in parts for line in disagreements(solver, problem, data, dtype, argmins, names)
    ]
    assert not found, "\n" + "\n".join(found)


ALL = list(JACOBIANS)
# One of each kind of compiled code: the others are other numbers, or other ways through the same.
SHORT = [name for name in ALL if not name.startswith(("Unrolled(", "FixedPoint(", "Exact"))]
SOME: list[tuple[str, bool, bool, str, str, list[str]]] = [
    ("GD", True, False, "batch", "float32", SHORT),
    ("HeavyBall", True, True, "unequal batches", "float64", ["PZOBO at z", "ForwardMode at z", "Unrolled, difference"]),
    ("Adam", False, True, "equal batches", "float32", ["PZOBO at x", "Unrolled, autodiff"]),
    ("ClosedForm", False, False, "batch", "float64", ["CG, autodiff"]),
]


@pytest.mark.machine_code
@pytest.mark.parametrize(("solver", "matrix", "prepared", "data", "dtype", "names"), SOME, ids=[s[0] for s in SOME])
def test_some_choices(solver: str, matrix: bool, prepared: bool, data: str, dtype: str, names: list[str]) -> None:
    check(solver, matrix, prepared, [(data, dtype, names)])


@pytest.mark.machine_code
@pytest.mark.skipif("PZOBO_ALL_VALUES" not in os.environ, reason="takes hours: set PZOBO_ALL_VALUES=1")
@pytest.mark.parametrize("prepared", [False, True], ids=["at x", "prepared"])
@pytest.mark.parametrize("matrix", [False, True], ids=["vector", "matrix"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("solver", "data"), [(s, d) for s in SOLVERS for d in (("batch",) if s == "ClosedForm" else DATA)]
)
def test_all_choices(solver: str, data: str, dtype: str, matrix: bool, prepared: bool) -> None:
    check(solver, matrix, prepared, [(data, dtype, ALL)])
