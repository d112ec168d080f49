"""Which sum does Inductor compile wrongly, and how is it written instead? a + alpha (c @ d), as a + (alpha * (c @ d)).

Loaded when something is compiled: Inductor takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass


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
