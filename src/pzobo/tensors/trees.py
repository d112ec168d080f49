"""Which operations on trees of tensors does the library need? These; the trees themselves are optree's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import optree
import torch
from torch import Tensor

from pzobo.errors import StructureError
from pzobo.tensors.many import groups, many

Tree = Any
"""A tensor, or any nesting of dicts, lists, tuples and registered nodes with tensors (and constants) as leaves."""

Leaves = tuple[Tensor, ...]


class Plan:
    """The structure of a tree: `leaves` takes it apart, `build` puts leaves together.

    `build` can also be traced by torch.compile, which cannot look into optree's own structures, after `traceable()`.
    """

    def __init__(self, spec: optree.PyTreeSpec) -> None:
        self.spec = spec
        self._traceable: Callable[[Iterator[Any]], Tree] = next

    @classmethod
    def take(cls, tree: Tree) -> tuple[tuple[Any, ...], Plan]:
        """The leaves of a tree, and its plan."""
        leaves, spec = optree.tree_flatten(tree)
        return tuple(leaves), cls(spec)

    def traceable(self) -> Plan:
        self._traceable = _builder(self.spec.unflatten(range(self.spec.num_leaves)))
        return self

    def leaves(self, tree: Tree) -> tuple[Any, ...]:
        return tuple(self.spec.flatten_up_to(tree))

    def build(self, leaves: Iterable[Any]) -> Tree:
        if torch.compiler.is_compiling():
            return self._traceable(iter(leaves))
        return self.spec.unflatten(leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)


class Taken(NamedTuple):
    """A tree as it was when it was taken: containers that the user fills anew afterwards are not those in `tree`."""

    tree: Tree
    plan: Plan
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, tree: Tree) -> Taken:
        leaves, plan = Plan.take(tree)
        return cls(plan.build(leaves), plan, leaves)


def _builder(tree: Tree) -> Callable[[Iterator[Any]], Tree]:
    if optree.tree_is_leaf(tree):
        return next
    if tree is None:
        return lambda leaves: None
    children, metadata, entries, unflatten = optree.tree_flatten_one_level(tree)
    parts = [_builder(child) for child in children]
    kind = type(tree)
    if kind is dict:
        named, order = list(zip(entries, parts, strict=True)), list(tree)

        def build(leaves: Iterator[Any]) -> Tree:
            made = {key: part(leaves) for key, part in named}
            return {key: made[key] for key in order}

        return build
    if kind in (list, tuple):
        return lambda leaves: kind([part(leaves) for part in parts])
    if optree.is_namedtuple(tree):
        return lambda leaves: kind(*[part(leaves) for part in parts])
    return lambda leaves: unflatten(metadata, [part(leaves) for part in parts])


def is_variable(leaf: Any) -> bool:
    """Whether a derivative with respect to this leaf is asked for."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return False
    refuse_complex(leaf)
    if leaf.layout != torch.strided:
        raise StructureError(
            f"A sparse tensor ({leaf.layout}) of shape {tuple(leaf.shape)} in x, or in the answer of prepare(), "
            "requires a gradient, but variables must be dense. Give its values, t.values(), and make the matrix in the "
            "loss."
        )
    return leaf.is_floating_point()


def refuse_complex(leaf: Tensor) -> None:
    """Derivatives with respect to complex numbers are not taken, and must not be left out in silence."""
    if leaf.is_complex():
        raise StructureError(
            f"A complex tensor of shape {tuple(leaf.shape)} in x, or in the answer of prepare(), requires a gradient. "
            "Give its real and imaginary parts: torch.view_as_real(t), and torch.view_as_complex in the loss."
        )


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in: float32 for the half precisions, else the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def accumulator(leaves: Sequence[Tensor]) -> torch.dtype:
    """The widest dtype to accumulate in over several leaves."""
    return torch.float64 if any(leaf.dtype == torch.float64 for leaf in leaves) else torch.float32


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """<a, b>, half precisions accumulated in float32."""
    terms = [_dot(s.reshape(-1), t.reshape(-1)) for s, t in zip(a, b, strict=True)]
    if len(terms) == 1:
        return terms[0]
    return torch.stack([term.to(terms[0].device, accumulator(terms)) for term in terms]).sum()


def _dot(s: Tensor, t: Tensor) -> Tensor:
    dtype = torch.promote_types(wide(s.dtype), wide(t.dtype))
    return torch.dot(s if s.dtype == dtype else s.to(dtype), t if t.dtype == dtype else t.to(dtype))


def norm(leaves: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """The Euclidean norm of all leaves together; without a dtype half precisions are accumulated in float32."""
    norms: list[Tensor] = [torch.linalg.vector_norm(leaf, dtype=dtype or wide(leaf.dtype)) for leaf in leaves]
    if len(norms) == 1:
        return norms[0]
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device, accumulator(norms)) for n in norms]))
    return total


def largest(leaves: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of all leaves together."""
    found = [leaf.abs().max() for leaf in leaves if leaf.numel()]
    dtype = accumulator(found)
    return functools.reduce(torch.maximum, [t.to(found[0].device, dtype) for t in found])


def power_of_two(leaves: Sequence[Tensor]) -> Tensor:
    """The size of all leaves together, to a power of two, which rounds nothing; 1 where they are zero or not finite."""
    size = largest(leaves)
    least = math.frexp(torch.finfo(size.dtype).tiny)[1] + 5  # so that 1 / power is a number too
    power = torch.ldexp(torch.ones_like(size), torch.frexp(size)[1].clamp(min=least))
    found: Tensor = torch.where((size > 0) & size.isfinite(), power, 1.0)
    return found


def is_finite(leaves: Sequence[Tensor]) -> bool:
    """Whether every number of every leaf is finite. Their sum tells, fast; only if it is not are they all looked at."""
    if not leaves:
        return True
    sums = [leaf.sum(dtype=wide(leaf.dtype)) for leaf in leaves]
    if len(sums) <= 4:
        total = functools.reduce(lambda a, b: a + b.to(a.device), sums)
    else:
        total = torch.stack([s.to(sums[0].device, torch.float32) for s in sums]).sum()
    return math.isfinite(total) or all(bool(leaf.isfinite().all()) for leaf in leaves)


def add(
    a: Sequence[Tensor], b: Sequence[Tensor], scale: float | Tensor = 1.0, into: Sequence[Tensor] | None = None
) -> Leaves:
    """a + scale * b, leaf by leaf; written into `into` where that is given."""
    if into is not None:
        for k, leaf in enumerate(into):
            if isinstance(scale, Tensor) and wide(leaf.dtype) == leaf.dtype:
                torch.addcmul(a[k], b[k].to(leaf.dtype), scale.to(leaf.device, leaf.dtype), out=leaf)
            else:
                leaf.copy_(add(a[k : k + 1], b[k : k + 1], scale)[0])
        return tuple(into)
    if isinstance(scale, Tensor):
        # A tensor without dimensions does not widen what it is multiplied with.
        return tuple(
            (s + scale.to(s.device, wide(s.dtype)) * t.to(wide(s.dtype))).to(s.dtype) for s, t in zip(a, b, strict=True)
        )
    return tuple([torch.add(s, t, alpha=scale) for s, t in zip(a, b, strict=True)])


def add_(a: Sequence[Tensor], b: Sequence[Tensor], scale: float | Tensor = 1.0) -> None:
    """a + scale * b, written into a: few launches on a device, however many leaves there are; no half precisions."""
    if isinstance(scale, Tensor):
        for part in groups(a):
            many("add_", a[part], scaled(b[part], scale))
    else:
        many("add_", a, list(b), alpha=scale)


def added(a: Sequence[Tensor], b: Sequence[Tensor], scale: float | Tensor) -> Leaves:
    """a + scale * b, as `add_`, in memory of its own."""
    if isinstance(scale, Tensor):
        return tuple(many("add_", scaled(b, scale), list(a)))
    return tuple(many("add", a, list(b), alpha=scale))


def scaled(a: Sequence[Tensor], scale: float | Tensor, name: str = "mul") -> list[Tensor]:
    """scale * a, as `add_`; by "mul_" it is written into a."""
    if isinstance(scale, Tensor):
        return [t for part in groups(a) for t in many(name, a[part], scale.to(a[part][0]))]
    return many(name, a, scale)


def add_to(a: list[Tensor], b: Sequence[Tensor], scale: Tensor) -> Leaves:
    """a + scale * b, leaf by leaf; the list is emptied on the way, so that two copies are never there."""
    return tuple([add((a.pop(0),), (t,), scale)[0] for t in b])


def mul(a: Sequence[Tensor], scale: float | Tensor, into: Sequence[Tensor] | None = None) -> Leaves:
    """scale * a, leaf by leaf; written into `into` where that is given."""
    if into is not None:
        for k, leaf in enumerate(into):
            leaf.copy_(mul(a[k : k + 1], scale)[0])
        return tuple(into)
    if isinstance(scale, Tensor):
        return tuple((s.to(wide(s.dtype)) * scale.to(s.device, wide(s.dtype))).to(s.dtype) for s in a)
    return tuple(s * scale for s in a)


def slope(up: Tensor, down: Tensor, scale: Tensor) -> Tensor:
    """scale * (up - down) of one leaf, half precisions in float32."""
    return ((up.to(wide(up.dtype)) - down) * scale.to(up.device, wide(up.dtype))).to(up.dtype)


def copy(leaves: Iterable[Tensor]) -> Leaves:
    """A copy of each leaf, to be written into."""
    return tuple(leaf.clone() for leaf in leaves)


def zeros(leaves: Iterable[Tensor]) -> Leaves:
    """A zero for each leaf."""
    return tuple(torch.zeros_like(leaf) for leaf in leaves)


def detach(leaf: Any) -> Any:
    """A leaf cut from its graph, if it has one."""
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def copied(leaf: Any) -> Any:
    """A leaf that can be written into: tensors are copied, with what they say of gradients."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach().clone()
    return copy.requires_grad_() if leaf.requires_grad else copy


def signature(leaves: Iterable[Any]) -> tuple[Any, ...]:
    """What tells two lists of leaves apart but for their values."""
    return tuple(
        (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad) if isinstance(leaf, Tensor) else type(leaf)
        for leaf in leaves
    )


def normal(tree: Tree) -> Tree:
    """The same tree with inference tensors, which autograd refuses, replaced by ordinary copies."""
    return optree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf, tree
    )


def unique(leaves: Sequence[Any]) -> Leaves:
    """The variables among the leaves, tied ones once."""
    return tuple({id(leaf): leaf for leaf in leaves if is_variable(leaf)}.values())


def substitute(leaves: Sequence[Any], variables: Leaves, values: Leaves) -> list[Any]:
    """The leaves with new values for the variables (tied ones alike); the other tensors are cut from their graphs."""
    by_id = {id(variable): value for variable, value in zip(variables, values, strict=True)}
    return [by_id.get(id(leaf), detach(leaf)) for leaf in leaves]


def copy_into(tree: Tree, targets: Tree, who: str) -> None:
    """Write the tensors of a tree into those of another one of the same structure, in place, or nothing at all."""
    plans: list[Any] = [optree.tree_flatten(t, none_is_leaf=True) for t in (tree, targets)]
    (leaves, structure, *_), (into, found, *_) = plans
    if structure != found:
        raise StructureError(
            f"{who} got a tree of the structure {found}, and x has {structure}; for a module give "
            "dict(module.named_parameters())."
        )
    pairs: list[tuple[Any, Any]] = [p for p in zip(into, leaves, strict=True) if isinstance(p[1], Tensor)]
    for target, leaf in pairs:
        if not isinstance(target, Tensor) or (target.shape, target.dtype) != (leaf.shape, leaf.dtype):
            raise StructureError(f"{who} got {_kind(target)}, and x has {_kind(leaf)} there.")
    with torch.no_grad():
        for target, leaf in pairs:
            target.copy_(leaf)


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype} of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
