"""Does a SparseMatrix multiply as the dense matrix does, in every way that a loss is evaluated?"""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.errors import StructureError
from tests.helpers import normal


def some(rows: int, cols: int, density: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    keep = torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed)) < density
    return normal(rows, cols, seed=seed, dtype=dtype) * keep


EMPTY_ROWS = torch.zeros(5, 4, dtype=torch.float64).index_put(
    (torch.tensor([1, 1, 4]), torch.tensor([0, 3, 2])), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
)
MATRICES = {
    "ordinary": some(6, 4),
    "wide": some(3, 9),
    "one row": some(1, 7, 0.5),
    "one column": some(7, 1, 0.5),
    "one number": torch.tensor([[2.0]], dtype=torch.float64),
    "empty rows and columns": EMPTY_ROWS,
    "no values": torch.zeros(4, 3, dtype=torch.float64),
    "full": normal(4, 5),
    "float32": some(6, 4, dtype=torch.float32),
}
each = pytest.mark.parametrize("dense", MATRICES.values(), ids=MATRICES)


def loss(A: Any, w: Tensor) -> Tensor:
    return (A @ w).sin().square().sum() + 0.1 * w.pow(3).sum()


def operand(dense: Tensor, width: int | None) -> Tensor:
    shape = (dense.shape[1],) if width is None else (dense.shape[1], width)
    return normal(*shape, seed=5, dtype=dense.dtype)


widths = pytest.mark.parametrize("width", [None, 1, 3])


@each
def test_there_and_back(dense: Tensor) -> None:
    layouts = [dense, dense.to_sparse_coo(), dense.to_sparse_csr(), dense.to_sparse_csc()]
    for source in layouts:
        A = pzobo.SparseMatrix.from_torch(source)
        assert A.shape == dense.shape
        assert A.dtype == dense.dtype
        assert torch.equal(A.to_dense(), dense)
    numpy = dense.numpy()
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_array):
        A = pzobo.SparseMatrix.from_scipy(kind(numpy), dtype=dense.dtype)
        assert torch.equal(A.to_dense(), dense)
        assert torch.equal(A.T.to_dense(), dense.T)


@each
@widths
def test_values_and_derivatives_of_first_and_second_order(dense: Tensor, width: int | None) -> None:
    A, w = pzobo.SparseMatrix.from_torch(dense), operand(dense, width)
    torch.testing.assert_close(A @ w, dense @ w)
    results = []
    for matrix in (A, dense):
        x = w.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(matrix, x), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first.detach().cos()).sum(), x)
        results.append((first.detach(), second))
    torch.testing.assert_close(*results)


@each
@widths
def test_torch_func(dense: Tensor, width: int | None) -> None:
    A, w = pzobo.SparseMatrix.from_torch(dense), operand(dense, width)
    many = torch.stack([w, 2 * w, -w])
    t = torch.ones_like(w)

    def transforms(matrix: Any) -> tuple[Any, ...]:
        def f(w: Tensor) -> Tensor:
            return loss(matrix, w)

        slope = torch.func.grad(f)
        return (
            slope(w),
            torch.func.jvp(f, (w,), (t,)),
            torch.func.jvp(slope, (w,), (t,)),
            torch.func.vjp(slope, w)[1](t),
            torch.vmap(lambda w: matrix @ w)(many),
            torch.vmap(slope)(many),
            torch.vmap(lambda t: torch.func.jvp(slope, (w,), (t,))[1])(many),
        )

    torch.testing.assert_close(transforms(A), transforms(dense))


@each
def test_transposes(dense: Tensor) -> None:
    A = pzobo.SparseMatrix.from_torch(dense)
    v, W = normal(dense.shape[0], seed=6, dtype=dense.dtype), normal(dense.shape[0], 2, seed=7, dtype=dense.dtype)
    for turned in (A.T, A.t(), A.mT, A.transpose(0, 1), A.transpose(-1, -2)):
        assert turned.shape == dense.T.shape
        torch.testing.assert_close(turned @ v, dense.T @ v)
        torch.testing.assert_close(turned @ W, dense.T @ W)
        assert torch.equal(turned.to_dense(), dense.T)
    assert torch.equal(A.T.T.to_dense(), dense)


@each
def test_a_dense_matrix_from_the_left(dense: Tensor) -> None:
    A, W = pzobo.SparseMatrix.from_torch(dense), normal(2, dense.shape[0], seed=7, dtype=dense.dtype)
    torch.testing.assert_close(W @ A, W @ dense)
    torch.testing.assert_close(W[0] @ A, W[0] @ dense)
    torch.testing.assert_close(torch.vmap(lambda w: w @ A)(W), W @ dense)


@each
def test_other_precisions(dense: Tensor) -> None:
    A = pzobo.SparseMatrix.from_torch(dense)
    for dtype in (torch.float32, torch.float64):
        for B in (A.to(dtype), A.to("cpu", dtype), A.to(dtype=dtype)):
            assert B.dtype == dtype
            assert torch.equal(B.to_dense(), dense.to(dtype))
            assert torch.equal(B.T.to_dense(), dense.to(dtype).T)
            w = operand(dense, 2).to(dtype)
            torch.testing.assert_close(B @ w, dense.to(dtype) @ w)
    assert A.double().dtype == torch.float64
    assert A.to(A.dtype).shape == A.shape


@each
def test_rows(dense: Tensor) -> None:
    A = pzobo.SparseMatrix.from_torch(dense)
    n = dense.shape[0]
    for index in ([0], list(range(n)), [n - 1, 0, n - 1], []):
        picked = torch.tensor(index, dtype=torch.long)
        batch = A.rows(picked)
        assert batch.shape == (len(index), dense.shape[1])
        assert torch.equal(batch.to_dense(), dense[picked])
        w = operand(dense, 2)
        torch.testing.assert_close(batch @ w, dense[picked] @ w)
        torch.testing.assert_close(batch.T @ dense[picked], dense[picked].T @ dense[picked])


def test_duplicate_and_unsorted_entries_are_summed() -> None:
    raw = scipy.sparse.coo_matrix(([1.0, 2.0, 4.0], ([0, 0, 1], [2, 2, 0])), shape=(2, 3))
    A = pzobo.SparseMatrix.from_scipy(raw, torch.float64)
    torch.testing.assert_close(A.to_dense(), torch.as_tensor(raw.toarray()))
    coo = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 4.0], (2, 3))
    torch.testing.assert_close(pzobo.SparseMatrix.from_torch(coo).to_dense(), coo.to_dense())


@pytest.mark.parametrize("kind", ["int64", "bool", "float32"])
def test_scipy_matrices_of_counts(kind: str) -> None:
    """What a CountVectorizer gives is of integers."""
    raw = scipy.sparse.random(6, 5, 0.5, random_state=0, dtype=float) * 9
    raw = raw.tocsr().astype(kind)
    A = pzobo.SparseMatrix.from_scipy(raw)
    assert A.dtype == torch.float32
    torch.testing.assert_close(A.to_dense(), torch.as_tensor(raw.toarray()).float())
    torch.testing.assert_close(A @ torch.ones(5), torch.as_tensor(raw.toarray()).float() @ torch.ones(5))


def test_the_source_may_change_afterwards() -> None:
    dense = some(4, 3)
    csr, scipy_csr = dense.to_sparse_csr(), scipy.sparse.csr_array(dense.numpy())
    matrices = [pzobo.SparseMatrix.from_torch(csr), pzobo.SparseMatrix.from_scipy(scipy_csr, torch.float64)]
    expected = dense.clone()
    csr.values().zero_()
    scipy_csr.data[:] = 0
    for A in matrices:
        assert torch.equal(A.to_dense(), expected)


@given(
    rows=st.integers(1, 12),
    cols=st.integers(1, 12),
    width=st.one_of(st.none(), st.integers(1, 4)),
    density=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(rows: int, cols: int, width: int | None, density: float, seed: int) -> None:
    dense = some(rows, cols, density, seed)
    A, w = pzobo.SparseMatrix.from_torch(dense), operand(dense, width)
    torch.testing.assert_close(A @ w, dense @ w)
    results = [torch.vmap(torch.func.grad(lambda w, m=m: loss(m, w)))(torch.stack([w, w.cos()])) for m in (A, dense)]
    torch.testing.assert_close(*results)
    x = w.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: A @ x, (x,))


def test_compiled() -> None:
    dense = some(6, 4, dtype=torch.float32)
    A, W = pzobo.SparseMatrix.from_torch(dense), normal(4, 3, dtype=torch.float32)

    @torch.compile(fullgraph=True)
    def slope(A: Any, W: Tensor) -> Tensor:
        return torch.func.grad(lambda W: loss(A, W) + loss(A.T, A @ W))(W)

    expected = torch.func.grad(lambda W: loss(dense, W) + loss(dense.T, dense @ W))(W)
    torch.testing.assert_close(slope(A, W), expected)
    again = some(6, 4, seed=3, dtype=torch.float32)  # other numbers and another count of them, the same program
    expected = torch.func.grad(lambda W: loss(again, W) + loss(again.T, again @ W))(W)
    torch.testing.assert_close(slope(pzobo.SparseMatrix.from_torch(again), W), expected)


JACOBIANS = {
    "pzobo": pzobo.PZOBO(1e-4, 3, pzobo.Gaussian(seed=0)),
    "pzobo, vmap": pzobo.PZOBO(1e-4, 9, pzobo.Gaussian(seed=0), batching="vmap"),
    "forward, vmap": pzobo.ForwardMode(9, pzobo.Gaussian(seed=0), batching="vmap"),
    "unrolled": pzobo.Unrolled(),
    "unrolled, difference": pzobo.Unrolled(products="difference"),
    "implicit": pzobo.Implicit(pzobo.CG()),
    "nudged": pzobo.Nudged(),
}


@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize("where", ["batch", "x", "closure"])
def test_in_an_argmin(jacobian: Any, where: str) -> None:
    """The same hypergradient as from dense data."""
    dense, target = some(8, 5), normal(8, 2, seed=1)
    results = []
    for matrix in (pzobo.SparseMatrix.from_torch(dense), dense):
        penalty = normal(5, seed=2).requires_grad_()
        x = (penalty, matrix) if where == "x" else (penalty, 0)

        def g(x: Any, y: Tensor, batch: Any, matrix: Any = matrix) -> Tensor:
            data = {"batch": batch, "x": x[1], "closure": matrix}[where]
            return (data @ y - target).square().mean() + (x[0].exp().unsqueeze(1) * y.square()).sum()

        argmin = pzobo.Argmin(g, solver=pzobo.GD(0.1, 3), jacobian=copy.deepcopy(jacobian))
        y = argmin(x, torch.zeros(5, 2, dtype=torch.float64), matrix)
        results.append((y.detach(), torch.autograd.grad(y.sum(), penalty)[0]))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


def test_it_is_a_constant_and_says_what_it_does_not_do() -> None:
    A = pzobo.SparseMatrix.from_torch(some(3, 3))
    assert not A.requires_grad
    for wrong in (lambda: A + 1, lambda: A @ A, lambda: A * A, lambda: A.sum(), lambda: A.relu()):
        with pytest.raises(StructureError, match="to_dense"):
            wrong()
    assert "SparseMatrix((3, 3)" in repr(A)
    with pytest.raises(StructureError, match="floating-point matrix"):
        pzobo.SparseMatrix.from_torch(torch.ones(3))
    with pytest.raises(StructureError, match="int64"):
        pzobo.SparseMatrix.from_torch(torch.ones(3, 3, dtype=torch.long))


@pytest.mark.parametrize("wrong", [(4,), (4, 2), (2, 2, 2)])
def test_a_product_of_wrong_shapes_raises(wrong: tuple[int, ...]) -> None:
    A = pzobo.SparseMatrix.from_torch(some(3, 3))
    with pytest.raises((RuntimeError, ValueError)):
        A @ torch.ones(wrong, dtype=torch.float64)


def test_copies_and_files() -> None:
    dense = some(4, 3)
    A = pzobo.SparseMatrix.from_torch(dense)
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    for B in (A.clone(), A.detach(), copy.deepcopy(A), torch.load(file, weights_only=False)):
        assert isinstance(B, pzobo.SparseMatrix)
        assert torch.equal(B.to_dense(), dense)
