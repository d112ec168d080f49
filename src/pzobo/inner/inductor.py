"""What is told to Inductor otherwise? A sum that it compiles wrongly, and products that it compiles slowly.

Loaded when something is compiled: Inductor takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

SMALL = 2**16
"""Up to so many numbers in a matrix, Inductor's own loops are as fast as a library's product with a vector. Beyond,
they are slow: they read a transposed matrix column by column."""

NARROW = 10
"""Up to so many columns, a b is computed as (b^T a^T)^T, the same sums: MKL takes 2 to 7 times as long for a b."""


class WithoutAlpha(CustomGraphPass):
    """alpha of each sum, written out: torch 2.13 makes addmm of a + alpha (c @ d), and loses alpha.

    Here and not where we add, since the loss of a user may add so too, and the derivatives that autograd writes.
    """

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            alpha: Any = node.kwargs.get("alpha", 1)
            a, b = node.args
            if alpha == 1 or not isinstance(b, fx.Node):
                continue
            with graph.inserting_before(node):
                scaled = graph.call_function(torch.ops.aten.mul.Tensor, (b, alpha))
            scaled.meta["val"] = b.meta["val"] * alpha
            node.args, node.kwargs = (a, scaled), {}

    def uuid(self) -> str:
        """Part of the key of Inductor's cache on disk: to be changed with the pass."""
        return "pzobo: add without alpha, 1"


def decompositions() -> dict[Any, Any]:
    """How operations are made of simpler ones: as Inductor has it, but for some products of matrices on the CPU."""
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    aten = torch.ops.aten

    def mm(a: Tensor, b: Tensor) -> Any:
        return _transposed(a, b) if _narrow(a, b) else table[aten.mm.default](a, b)

    def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not _narrow(a, b):
            return table[aten.addmm.default](c, a, b, beta=beta, alpha=alpha)
        return beta * c + alpha * _transposed(a, b)

    def mv(a: Tensor, b: Tensor) -> Any:
        if a.device.type == "cpu" and a.is_floating_point() and a.numel() > SMALL:
            return torch.mm(a, b.unsqueeze(1)).squeeze(1)
        return table[aten.mv.default](a, b)

    return {**table, aten.mm.default: mm, aten.addmm.default: addmm, aten.mv.default: mv}


def _narrow(a: Tensor, b: Tensor) -> bool:
    """Whether a product has few columns, such as the classes of a softmax: a library may be slow there."""
    rows, columns = a.shape[0], b.shape[1]
    sizes = isinstance(rows, int) and isinstance(columns, int)  # and no symbols
    return sizes and a.device.type == "cpu" and a.is_floating_point() and 1 < columns <= NARROW < rows


def _transposed(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(b.T, a.T).T
