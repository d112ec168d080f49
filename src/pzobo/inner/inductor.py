"""What is told to Inductor otherwise? A sum that it compiles wrongly, and a product that it compiles slowly.

Loaded when something is compiled: Inductor takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

SMALL = 2**16
"""Up to so many numbers in a matrix, Inductor's own loops are as fast as a library's product with a vector."""


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
    """How operations are made of simpler ones: as Inductor has it, but for matrix times vector."""
    from torch._inductor.decomposition import select_decomp_table

    return {**select_decomp_table(), torch.ops.aten.mv.default: _matrix_times_vector}


def _matrix_times_vector(matrix: Tensor, vector: Tensor) -> Any:
    """A library's product, on the CPU: Inductor's loops read a transposed matrix column by column."""
    if matrix.device.type == "cpu" and matrix.is_floating_point() and matrix.numel() > SMALL:
        return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)
    return torch._decomp.decompositions.mv(matrix, vector)
