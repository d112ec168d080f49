"""Do the operations on trees compute what they say, and does a plan put together what it took apart?"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import optree
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pzobo.tensors import trees
from pzobo.tensors.trees import Plan
from tests.helpers import normal

GLOBAL = getattr(optree.registry, "__GLOBAL_NAMESPACE")  # optree registers for everybody only under this object


class Pair(NamedTuple):
    first: Any
    second: Any


class Box:
    """A container of a user's own."""

    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


optree.register_pytree_node(
    Box,
    lambda box: ((box.content,), box.label, None),
    lambda label, children: Box(*children, label),
    namespace=GLOBAL,
)

TREES = {
    "tensor": 0,
    "list": [0, 1],
    "tuple": (0, (1, 2)),
    "dict, unsorted": {"w": 0, "b": 1, "a": {"z": 2, "y": 3}},
    "dict, keys of two kinds": {"a": 0, 1: [1, 2], "b": 3},
    "dict of numbers": {10: 0, 9: 1, 2: 2},
    "ordered": OrderedDict([("z", 0), ("a", [1])]),
    "named": Pair(0, {"b": 1, "a": 2}),
    "none": [None, 0, {"a": None, "b": 1}],
    "empty": [(), 0, {}, [], 1],
    "box": [Box({"q": 0, "p": 1}, "mine"), 2],
    "deque": deque([0, 1]),
    "default": defaultdict(list, {"b": [0], "a": [1, 2]}),
}


def described(tree: Any) -> Any:
    """A tree with its types, keys in their order, and leaves, for comparison."""
    if isinstance(tree, Box):
        return ("Box", tree.label, described(tree.content))
    if isinstance(tree, dict):
        return (type(tree), [(key, described(value)) for key, value in tree.items()])
    if isinstance(tree, (list, tuple, deque)):
        return (type(tree), [described(part) for part in tree])
    return float(tree) if isinstance(tree, Tensor) else tree


def filled(tree: Any) -> Any:
    return optree.tree_map(lambda i: torch.tensor(float(i)), tree)


@pytest.mark.parametrize("name", TREES)
def test_a_plan_takes_apart_and_builds(name: str) -> None:
    tree = filled(TREES[name])
    leaves, plan = Plan.take(tree)
    assert all(isinstance(t, Tensor) for t in leaves)
    assert described(plan.build(leaves)) == described(tree)
    assert [id(t) for t in plan.leaves(tree)] == [id(t) for t in leaves]
    assert described(plan.build(t + 1 for t in leaves)) == described(optree.tree_map(lambda t: t + 1, tree))


@pytest.mark.parametrize("name", TREES)
def test_a_traceable_plan_builds_the_same(name: str) -> None:
    """What runs under torch.compile: the same tree as eager code gets, with its keys in the same order."""
    leaves, plan = Plan.take(filled(TREES[name]))
    plan.traceable()
    assert described(plan._traceable(iter(leaves))) == described(plan.build(leaves))


def test_a_plan_under_torch_compile() -> None:
    tree = filled([TREES["dict, unsorted"], TREES["named"], TREES["none"], TREES["ordered"], TREES["tuple"]])
    leaves, plan = Plan.take(tree)
    plan.traceable()

    def weigh(leaves: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        built = plan.build(leaves)
        first = [*built[0].values()]
        return 10 * first[0] + built[1].second["b"] + 100 * built[0]["a"]["z"], built

    compiled = torch.compile(weigh, fullgraph=True, backend="eager")
    value, built = compiled(tuple(t + 1 for t in leaves))
    expected_value, expected = weigh(tuple(t + 1 for t in leaves))
    assert float(value) == float(expected_value)
    assert described(built) == described(expected)


def test_plans_are_equal_when_their_structures_are() -> None:
    a, b, c = (Plan.take(tree)[1] for tree in ({"a": 1, "b": [2]}, {"b": [3], "a": 4}, {"a": 1, "b": 2}))
    assert a == b
    assert hash(a) == hash(b)
    assert a != c
    assert a != "a plan"


structures = st.recursive(
    st.just(0),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text("abc", min_size=1, max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.none(),
    ),
    max_leaves=8,
)


@given(structure=structures)
@settings(max_examples=150, deadline=None)
def test_any_tree_round_trips_both_ways(structure: Any) -> None:
    count = iter(range(100))
    tree = optree.tree_map(lambda _: float(next(count)), structure)
    leaves, plan = Plan.take(tree)
    assert described(plan.build(leaves)) == described(tree)
    assert described(plan.traceable()._traceable(iter(leaves))) == described(tree)


# Arithmetic

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
leaf_lists = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=4,
)


@given(spec=leaf_lists, seed=st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_dot_norm_and_add_of_mixed_leaves(spec: Any, seed: int) -> None:
    a = [normal(*shape, seed=seed + i, dtype=one) for i, (shape, one, _) in enumerate(spec)]
    b = [normal(*shape, seed=seed + 50 + i, dtype=two) for i, (shape, _, two) in enumerate(spec)]
    flat_a, flat_b = (torch.cat([t.reshape(-1).double() for t in leaves]) for leaves in (a, b))
    wide = all(torch.promote_types(one, two) == torch.float64 for _, one, two in spec)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if wide else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(trees.dot(a, b).double(), flat_a @ flat_b, **tolerance)
    alone = all(one == torch.float64 for _, one, _ in spec)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if alone else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(trees.norm(a).double(), flat_a.norm(), **tolerance)
    same = [t.to(s.dtype) for s, t in zip(a, b, strict=True)]
    for scale in (0.5, torch.tensor(0.5, dtype=torch.float64)):
        for found, s, t in zip(trees.add(a, same, scale), a, same, strict=True):
            assert found.dtype == s.dtype
            torch.testing.assert_close(found, s + 0.5 * t)
        for found, s in zip(trees.mul(a, scale), a, strict=True):
            assert found.dtype == s.dtype
            torch.testing.assert_close(found, 0.5 * s)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    ones = [torch.full((300, 300), 0.01, dtype=dtype), torch.ones(70000, dtype=dtype)]
    exact = sum(float(t.double().square().sum()) for t in ones)
    assert float(trees.dot(ones, ones)) == pytest.approx(exact, rel=1e-5)
    assert float(trees.norm(ones)) == pytest.approx(exact**0.5, rel=1e-5)
    assert trees.dot(ones, ones).dtype == trees.norm(ones[:1]).dtype == torch.float32


def test_which_leaves_are_variables() -> None:
    w = torch.ones(2, requires_grad=True)
    assert [trees.is_variable(t) for t in (w, w * 2, w.detach(), torch.ones(2), torch.arange(2), 1.0, None, "w")] == [
        True,
        True,
        *[False] * 6,
    ]


def test_signatures_tell_apart_what_must_be_looked_at_again() -> None:
    base = torch.ones(2)
    others = [torch.ones(3), base.double(), base.clone().requires_grad_(), torch.ones(2, dtype=torch.long), 1.0]
    assert trees.signature([base]) == trees.signature([base * 2])
    assert len({trees.signature([t]) for t in (base, *others)}) == 6
