"""Which tensors that ask for a gradient does a value depend on? Those that it was given, and strangers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor


def reached(values: Iterable[Tensor], known: Iterable[Tensor] = ()) -> list[Tensor]:
    """The leaves that the graphs of these values reach without passing one of the known tensors.

    Args:
        values: tensors, with their graphs.
        known: what they were computed from: leaves, or tensors with a graph of their own, which is not followed.
    """
    seen = {t.grad_fn for t in known if t.grad_fn is not None}
    todo = [t.grad_fn for t in values if t.grad_fn is not None]
    found: list[Tensor] = []
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions if following is not None]
        leaf = getattr(node, "variable", None) if not node.next_functions else None
        if isinstance(leaf, Tensor):
            found.append(leaf)
    return found


def strangers(values: Iterable[Tensor], known: Sequence[Tensor]) -> list[Tensor]:
    """Those of the leaves that are none of the known tensors themselves."""
    leaves = {id(t) for t in known}
    return [t for t in reached(values, known) if id(t) not in leaves]
