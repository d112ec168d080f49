"""Are options numbers of their own, and things refused that have no derivative here?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import (
    OptionError,
    PzoboError,
    StructureError,
)
from tests.helpers import JACOBIANS, ZERO, bowl, each, leaf, make, normal, truth

GD = pzobo.GD(0.1, 20)


@pytest.mark.parametrize("make_solver", [lambda t: pzobo.GD(t, 3), lambda t: pzobo.HeavyBall(t, 0.9, 3)])
def test_a_rate_that_wants_a_gradient_is_refused(make_solver: Any) -> None:
    with pytest.raises(OptionError, match="lr is a tensor that requires a gradient"):
        make_solver(torch.tensor(0.1, requires_grad=True))
    with pytest.raises(OptionError, match="momentum"):
        pzobo.HeavyBall(0.1, torch.tensor(0.9, requires_grad=True), 3)


NUMBERS: dict[str, Callable[[Tensor], tuple[Any, Any]]] = {
    "GD": lambda t: (pzobo.GD(t, 8), pzobo.Unrolled()),
    "HeavyBall": lambda t: (pzobo.HeavyBall(t, t, 8), pzobo.Unrolled()),
    "Adam": lambda t: (pzobo.Adam(t, 8, betas=(t, 0.9), eps=t), pzobo.Unrolled()),
    "mu": lambda t: (pzobo.GD(0.1, 8), pzobo.PZOBO(t, 3, pzobo.Orthogonal(seed=0), shrink=t)),
    "eps": lambda t: (pzobo.GD(0.1, 8), pzobo.Nudged(t)),
    "damping": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.CG(5, damping=t))),
    "FixedPoint": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.FixedPoint(5, lr=t))),
    "Neumann": lambda t: (pzobo.GD(0.1, 8), pzobo.Implicit(pzobo.Neumann(t, 5))),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("kind", ["tensor", "array"])
@pytest.mark.filterwarnings("ignore::pzobo.errors.AuditWarning")
def test_an_option_is_the_number_that_it_was(make: Any, kind: str) -> None:
    """A tensor, or an array, that is written into afterwards changes nothing: neither the path nor its derivative."""
    found = []
    for change in (False, True):
        number = torch.tensor(0.1, dtype=torch.float64) if kind == "tensor" else np.array(0.1)
        solver, jacobian = make(number)
        x = leaf(3)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=jacobian)(x, ZERO)
        if change:
            number.mul_(3) if isinstance(number, Tensor) else number.__imul__(3)
        y.sum().backward()
        found.append(x.grad)
        y = pzobo.Argmin(bowl, solver=solver, jacobian=jacobian)(x, ZERO)
        found.append(y.detach())
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_numbers_of_an_algorithm_are_those_they_were() -> None:
    lr = torch.tensor(0.1)
    algorithm, decay = pzobo.algorithms.SOBA(lr=lr), pzobo.algorithms.Decay(lr, 0.5)
    lr.mul_(3)
    assert algorithm.lr == pytest.approx(0.1)
    assert decay(0) == pytest.approx(0.1)


@each
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("where", ["x", "prepare", "y0"])
def test_sparse_variables_are_refused(jacobian: Any, layout: torch.layout, where: str) -> None:
    dense = torch.eye(3, dtype=torch.float64)
    x = dense.to_sparse(layout=layout).requires_grad_() if where == "x" else dense.clone().requires_grad_()
    prepare = (lambda x, batch: x.to_sparse(layout=layout)) if where == "prepare" else None
    argmin = make(jacobian, lambda z, y, batch: ((z @ y).square() - y).sum(), prepare=prepare)
    y0 = dense.to_sparse(layout=layout) if where == "y0" else ZERO
    if where == "prepare" and isinstance(jacobian, pzobo.PZOBO):
        argmin(x, y0).sum().backward()
        return  # a path that is a function of x takes any z
    with pytest.raises(PzoboError, match=r"sparse.*(dense|forward-mode derivatives)"):
        argmin(x, y0).sum().backward()


def test_sparse_variables_of_smooth_are_refused() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    with pytest.raises(StructureError, match=r"t.values\(\)"):
        pzobo.smooth(lambda x: x.to_dense().sum(), x, mu=0.1)


@each
@pytest.mark.parametrize("where", ["x", "prepare"])
def test_complex_variables_are_refused(jacobian: Any, where: str) -> None:
    """A gradient with respect to them would have been left out."""
    x = torch.ones(3, dtype=torch.complex128 if where == "x" else torch.float64, requires_grad=True)
    argmin = make(jacobian, lambda z, y, b: bowl(z.real, y), prepare=lambda x, b: torch.complex(x.real, 2 * x.real))
    if where == "prepare" and getattr(jacobian, "at", "") in ("x", "auto") and isinstance(jacobian, pzobo.PZOBO):
        argmin(x, ZERO).sum().backward()
        assert x.grad is not None
        return  # a path that is a function of x takes any z
    with pytest.raises(StructureError, match=r"complex tensor of shape \(3,\).*view_as_real"):
        argmin(x, ZERO).sum().backward()


def test_complex_variables_of_smooth_are_refused() -> None:
    x = torch.ones(3, dtype=torch.complex128, requires_grad=True)
    with pytest.raises(StructureError, match="view_as_real"):
        pzobo.smooth(lambda x: x.real, x, mu=0.1)


EMPTY = {**JACOBIANS, "exact": pzobo.Implicit(pzobo.Exact()), "orthogonal": pzobo.PZOBO(1e-3, 2, pzobo.Orthogonal())}


@pytest.mark.parametrize("jacobian", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize(("p", "d"), [(0, 3), (3, 0), (0, 0)])
def test_empty_tensors(jacobian: Any, p: int, d: int) -> None:
    x = torch.zeros(p, dtype=torch.float64, requires_grad=True)
    y = make(jacobian, lambda x, y, b: y.square().sum() + x.sum() * y.sum())(x, torch.zeros(d, dtype=torch.float64))
    (y.sum() + x.sum()).backward()
    assert torch.equal(x.grad, torch.ones(p, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sparse_matrix_under_autocast(dtype: torch.dtype) -> None:
    dense = normal(4, 3, dtype=torch.float32)
    A = pzobo.SparseMatrix.from_torch(dense)

    def gradient(matrix: Any) -> Tensor:
        x = torch.ones(2, requires_grad=True)

        def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
            return (matrix @ y - x).square().mean() + 0.1 * y.float().square().sum()

        with torch.autocast("cpu", dtype=dtype):
            y = pzobo.Argmin(loss, solver=pzobo.GD(0.1, 5), jacobian=pzobo.Unrolled())(x, torch.zeros(3, 2))
            y.sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(A), gradient(dense), rtol=0.02, atol=0.01)


@each
def test_bowl_is_still_exact(jacobian: Any) -> None:
    """The control of this page: without any attack each Jacobian has its answer."""
    x = leaf(3)
    make(jacobian, bowl)(x, ZERO).sum().backward()
    assert torch.isfinite(x.grad).all()
    if isinstance(jacobian, pzobo.Unrolled):
        torch.testing.assert_close(x.grad, truth(x, ZERO), rtol=1e-5, atol=1e-7)
