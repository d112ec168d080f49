"""How does sparse data enter a loss? As a matrix that carries its own transpose, so that no backward makes it again."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import StructureError

aten = torch.ops.aten
_PARTS = ("crow", "col", "values", "crow_t", "col_t", "values_t")


@torch.library.custom_op("pzobo::spmm", mutates_args=())
def spmm(crow: Tensor, col: Tensor, values: Tensor, rows: int, cols: int, dense: Tensor) -> Tensor:
    """A CSR matrix, given by its parts, times a dense matrix."""
    return torch.sparse_csr_tensor(crow, col, values, (rows, cols), check_invariants=False) @ dense


@spmm.register_fake
def _(crow: Tensor, col: Tensor, values: Tensor, rows: int, cols: int, dense: Tensor) -> Tensor:
    return dense.new_empty(rows, dense.shape[1])


_spmm: Callable[..., Tensor] = spmm


@functools.cache
def _be_warned_once() -> None:
    """Let torch say that sparse tensors are new, as it does at the first of a process, where nobody hears it."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        torch.zeros(1, 1, device="cpu").to_sparse_csr()


class SparseMatrix(Tensor):
    """A constant sparse matrix A, for `A @ w` and `A @ W` with dense w, W inside losses.

    It keeps A and A^T in compressed rows. So the backward of `A @ W` is one more product of the same speed, where a
    plain CSR tensor would transpose itself every time; and it works under `torch.vmap`, `torch.func.grad` and
    `torch.compile`, where plain sparse tensors do not.

    It is made by `from_torch` or `from_scipy`, which find the parts.

    Args:
        parts: of A, (n, d), as in compressed rows (CSR): row starts (n + 1,), columns and values, one for each number
            that is stored; then those of A^T, (d, n).
        shape: (n, d).

    Examples:
        >>> A = pzobo.SparseMatrix.from_torch(torch.eye(3).to_sparse_csr())
        >>> (A @ torch.ones(3, 2)).shape
        torch.Size([3, 2])
    """

    @staticmethod
    def __new__(cls, parts: tuple[Tensor, ...], shape: tuple[int, ...]) -> SparseMatrix:
        _be_warned_once()
        values = parts[2]
        made: SparseMatrix = Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device, requires_grad=False
        )
        return made

    def __init__(self, parts: tuple[Tensor, ...], shape: tuple[int, ...]) -> None:
        # A leading batch dimension in `shape` means the same matrix for every element of the batch.
        for name, part in zip(_PARTS, parts, strict=True):
            setattr(self, f"_{name}", part)

    @classmethod
    def from_torch(cls, matrix: Tensor) -> SparseMatrix:
        """From a 2-d torch tensor in any layout, sparse or dense."""
        if matrix.dim() != 2 or not matrix.is_floating_point():
            raise StructureError(
                f"SparseMatrix.from_torch got a {matrix.dtype} tensor of shape {tuple(matrix.shape)}; "
                "expected a floating-point matrix."
            )
        _be_warned_once()
        csr, csr_t = (m.detach().to_sparse_csr() for m in (matrix, matrix.t()))
        parts = [part for m in (csr, csr_t) for part in (m.crow_indices(), m.col_indices(), m.values())]
        index = torch.int32 if max(csr.values().numel(), *matrix.shape) < 2**31 else torch.int64
        return cls(
            tuple(p.clone() if p.is_floating_point() else p.to(index, copy=True) for p in parts), tuple(matrix.shape)
        )

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """From a SciPy sparse matrix or array."""
        csr = matrix.tocsr()
        both = (csr, csr.T.tocsr())
        parts = [torch.as_tensor(part.copy()) for m in both for part in (m.indptr, m.indices, m.data)]
        return cls(tuple(p.to(dtype) if i % 3 == 2 else p for i, p in enumerate(parts)), tuple(csr.shape))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """(row starts, columns, values) of A, then of A^T."""
        return tuple(getattr(self, f"_{name}") for name in _PARTS)

    def rows(self, index: Tensor) -> SparseMatrix:
        """The matrix of some of the rows: a minibatch."""
        return type(self).from_torch(self._plain().to_sparse_coo().index_select(0, index))._padded()

    def above(self, other: SparseMatrix) -> SparseMatrix:
        """The matrix with the rows of this one, and then those of the other.

        Args:
            other: (m, d): m more rows, of d columns as this one has.
        """
        return type(self).from_torch(torch.cat([m._plain().to_sparse_coo() for m in (self, other)]))

    def _padded(self) -> SparseMatrix:
        """The same matrix with zeros after its values, up to one of eight numbers for each power of two.

        Compiled code is made for a number of values: so minibatches share a few of them.
        """
        count = self.parts[2].numel()
        unit = max(1, 2 ** (count.bit_length() - 4))
        more = -count % unit
        padded = []
        for crow, col, values in (self.parts[:3], self.parts[3:]):
            end = crow.clone()
            end[-1] += more
            padded += [end, torch.cat([col, col.new_zeros(more)]), torch.cat([values, values.new_zeros(more)])]
        return SparseMatrix(tuple(padded), tuple(self.shape))

    def to_dense(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same matrix as a dense tensor."""
        return self._plain().to_dense(*args, **kwargs)

    def _plain(self) -> Tensor:
        crow, col, values = self.parts[:3]
        return torch.sparse_csr_tensor(crow, col, values, tuple(self.shape), check_invariants=False)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"SparseMatrix({tuple(self.shape)}, {self.parts[2].numel()} values, {self.dtype})"

    # What torch asks of a tensor subclass

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        # The number of values is part of what compiled code is made for.
        return [f"_{name}" for name in _PARTS], (tuple(self.shape), self.parts[2].numel())

    @staticmethod
    def __tensor_unflatten__(
        parts: dict[str, Tensor], about: tuple[Any, ...], _size: Any, _stride: Any
    ) -> SparseMatrix:
        return SparseMatrix(tuple(parts[f"_{name}"] for name in _PARTS), about[0])

    def _stable_hash_for_caching(self) -> str:
        return hashlib.sha256(repr((type(self).__name__, self.__tensor_flatten__(), self.dtype)).encode()).hexdigest()

    def _like(self, shape: tuple[int, ...]) -> SparseMatrix:
        return SparseMatrix(self.parts, tuple(shape))

    def _swapped(self) -> SparseMatrix:
        return SparseMatrix(self.parts[3:] + self.parts[:3], (*self.shape[:-2], self.shape[-1], self.shape[-2]))

    def _as(self, dtype: torch.dtype, device: Any = None) -> SparseMatrix:
        moved = [p.to(device) for p in self.parts]
        return SparseMatrix(tuple(p.to(dtype) if p.is_floating_point() else p for p in moved), tuple(self.shape))

    def _times(self, dense: Tensor) -> Tensor:
        """A @ dense, for a matrix or a batch of them (its columns are put side by side)."""
        rows, cols = self.shape[-2:]
        if dense.dtype in (torch.float16, torch.bfloat16):  # torch has no sparse product in half precision
            return self._as(torch.float32)._times(dense.float()).to(dense.dtype)
        if dense.dim() == 2:
            return _spmm(*self.parts[:3], rows, cols, dense)
        batch, _, width = dense.shape
        wide = dense.permute(1, 0, 2).reshape(cols, batch * width)
        return _spmm(*self.parts[:3], rows, cols, wide).reshape(rows, batch, width).permute(1, 0, 2)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        a = args[0]
        if func in (aten.mm.default, aten.bmm.default):
            b = args[1]
            if isinstance(a, SparseMatrix) and not isinstance(b, SparseMatrix):
                return a._times(b)
            if not isinstance(a, SparseMatrix):
                return b._swapped()._times(a.transpose(-1, -2)).transpose(-1, -2)
        if func is aten.mv.default and isinstance(a, SparseMatrix):
            return a._times(args[1].unsqueeze(-1)).squeeze(-1)
        if func in (aten.t.default, aten.transpose.int, aten.mT.default):
            return a._swapped()
        if func is aten.permute.default and [d % a.dim() for d in args[1]] == [
            *range(a.dim() - 2),
            a.dim() - 1,
            a.dim() - 2,
        ]:
            return a._swapped()
        if func in (aten.detach.default, aten.alias.default):
            return a._like(a.shape)
        if func is aten.clone.default:
            return cls(tuple(part.clone() for part in a.parts), tuple(a.shape))
        if func in (aten.expand.default, aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default):
            shape = tuple(args[1])
            if shape[-2:] == tuple(a.shape[-2:]):
                return a._like(shape)
        if func is aten.unsqueeze.default and args[1] == 0:
            return a._like((1, *a.shape))
        if func is aten._to_copy.default:
            return a._as(kwargs.get("dtype") or a.dtype, kwargs.get("device"))
        raise StructureError(
            f"SparseMatrix does not do {func}; it is a constant, for products `A @ w` and `A @ W`. "
            "Use A.to_dense() for more."
        )
