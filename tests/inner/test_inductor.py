"""Are the products that Inductor is told to make otherwise the same products?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import pzobo
from pzobo.inner.compiled import Compiled
from pzobo.inner.inductor import NARROW, SMALL, decompositions
from tests.helpers import normal, relative_error


def products(function: Callable[..., Tensor], *args: Tensor) -> list[tuple[int, ...]]:
    """The shapes of the products that a function becomes, whose values must not change."""
    graph = make_fx(function, decomposition_table=decompositions())(*args)
    torch.testing.assert_close(graph(*args), function(*args))
    made = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    return [tuple(node.meta["val"].shape) for node in made]


def test_a_large_matrix_times_a_vector_is_a_product_of_a_library_and_a_small_one_is_loops() -> None:
    large, small = normal(300, 260), normal(5, 260)
    assert small.numel() < SMALL < large.numel()
    assert products(torch.mv, large, normal(260)) == [(300, 1)]
    assert products(torch.mv, large.T, normal(300)) == [(260, 1)]
    assert products(torch.mv, small, normal(260)) == []
    assert products(torch.addmv, normal(300), large, normal(260)) == [(300, 1)]


@pytest.mark.parametrize("columns", [1, 2, NARROW, NARROW + 1])
def test_a_product_with_few_columns_is_made_the_other_way_around(columns: int) -> None:
    expected = [(columns, 40)] if 1 < columns <= NARROW else [(40, columns)]
    a, b = normal(40, 7), normal(7, columns)
    assert products(torch.mm, a, b) == expected
    assert products(torch.mm, normal(7, 40).T, normal(columns, 7).T) == expected


def test_few_rows_and_few_columns_stay_as_they_are() -> None:
    assert products(torch.mm, normal(NARROW, 7), normal(7, 3)) == [(NARROW, 3)]


def test_a_linear_layer_with_few_outputs_keeps_its_bias_and_its_numbers() -> None:
    c, a, b = normal(3), normal(40, 7), normal(7, 3)
    assert products(torch.addmm, c, a, b) == [(3, 40)]
    assert products(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2.0), c, a, b) == [(3, 40)]
    assert products(lambda x, w, c: F.linear(x, w, c), a, b.T, c) == [(3, 40)]


def test_whole_numbers_are_left_alone() -> None:
    a, b = torch.arange(80).reshape(40, 2), torch.arange(6).reshape(2, 3)
    assert products(torch.mm, a, b) == [(40, 3)]


def test_its_own_cuda_graphs_are_off_whatever_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def compile_fx(graph: Any, inputs: Any, **_: Any) -> Any:
        seen.append(torch._inductor.config.triton.cudagraphs)
        return graph

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        found = Compiled(lambda t: t + 1)(torch.ones(2))
        assert torch._inductor.config.triton.cudagraphs
    assert seen == [False]
    assert torch.equal(found, torch.full((2,), 2.0))


@pytest.mark.machine_code
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_machine_code_with_such_products_has_the_values_of_eager_code(dtype: torch.dtype) -> None:
    wide = normal(300, 260).to(dtype)
    labels = torch.arange(300) % 4

    def loss(x: Tensor, y: dict[str, Tensor], batch: Any) -> Tensor:
        entropy = F.cross_entropy(F.linear(wide, y["weight"], y["bias"]), labels)
        return entropy + (wide @ y["vector"] - x).square().mean()

    y0 = {"weight": normal(4, 260, seed=1), "bias": normal(4, seed=2), "vector": normal(260, seed=3)}
    y0 = {name: t.to(dtype) for name, t in y0.items()}
    x = normal(300, seed=4).to(dtype)
    expected, found = (
        pzobo.Argmin(loss, solver=pzobo.GD(0.01, 5), jacobian=pzobo.Direct(), compile=c)(x, y0) for c in (False, True)
    )
    for name in y0:
        assert relative_error(found[name], expected[name]) < (1e-5 if dtype == torch.float32 else 1e-12)
