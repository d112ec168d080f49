"""Whose are the tensors that autograd saves inside of a solve? Ours: no hook of a caller hears of them.

A checkpoint around an argmin counts what is saved, and `save_on_cpu` moves it. Both mean the caller's own graph, not
the gradients of inner steps that come and go. And `torch.func` refuses to run where there are such hooks.
"""

from __future__ import annotations

from typing import Any

import torch


class no_saved_tensor_hooks:
    """The caller's hooks are put aside inside."""

    def __enter__(self) -> None:
        self._hooks, self._aside = _hooks(), list[Any]()
        while self._hooks is not None and (top := self._hooks._top_saved_tensors_default_hooks(False)) is not None:
            self._aside.append(top)
            self._hooks._pop_saved_tensors_default_hooks()

    def __exit__(self, *error: object) -> None:
        for pack, unpack in reversed(self._aside):
            self._hooks._push_saved_tensors_default_hooks(pack, unpack)


def graph_is_kept() -> bool:
    """Inside of a backward pass: whether there may be another through the same graph.

    There is no public way to ask; in a torch without this one what a pass needed lives as long as its graph.
    """
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else bool(asked())


def _hooks() -> Any:
    """Where torch keeps them. There is no public way; in a torch without this one they stay."""
    found = torch._C._autograd
    return found if hasattr(found, "_top_saved_tensors_default_hooks") else None
