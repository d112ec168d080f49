"""Are the oracles right? Gradients, products and two points beside the problem's own matrices; and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.algorithms import Decay, Vector
from pzobo.algorithms.blocks import Blocks, Table
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.series import Hessians, drawn, summed
from pzobo.errors import DivergenceError, NonFiniteError, OptionError, RequirementError, StructureError, TooLargeError
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Logistic, Quadratic
from tests.helpers import normal

A = pzobo.algorithms
PRODUCTS = ["autodiff", "forward", "difference"]


def oracles(case: Any, products: Any = "autodiff", sizes: tuple[int | None, int | None] = (None, None)) -> Oracles:
    problem = case.problem()
    return Oracles(problem, problem.start(), sizes, products, 0)


def vector(array: np.ndarray) -> Vector:
    return Vector((torch.from_numpy(array),))


def close(found: Vector, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(found.leaves[0].numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("case", [Quadratic(), Logistic()], ids=["quadratic", "logistic"])
def test_derivatives_are_those_of_the_problem(case: Any, products: Any) -> None:
    at = oracles(case, products)
    x, y, v = case.x0, case.y0, normal(case.d, seed=5).numpy()
    rows, val = np.arange(case.rows), np.arange(case.val_rows)
    data = at.problem.train, at.problem.val
    f, g = at.f(vector(x), vector(y), data[1]), at.g(vector(x), vector(y), data[0])
    assert float(f.value) == pytest.approx(case.f(x, y, val), rel=1e-13)
    assert float(g.value) == pytest.approx(case.g(x, y, rows), rel=1e-13)
    close(f.y, case.f_y(x, y, val))
    close(f.x, case.f_x(x, y, val))
    close(g.y, case.g_y(x, y, rows))
    close(g.x, case.g_x(x, y, rows))
    close(at.f_y(vector(x), vector(y), data[1]), case.f_y(x, y, val))
    tolerance = 1e-8 if products == "difference" else 1e-12
    curved = at.curved(vector(x), vector(y), data[0], vector(v))
    close(curved.y, case.g_y(x, y, rows))
    close(curved.hv, case.h(x, y, rows) @ v, tolerance)
    close(curved.jv, case.j(x, y, rows) @ v, tolerance)
    close(at.hessian(vector(x), vector(y), data[0])(vector(v)), case.h(x, y, rows) @ v, tolerance)
    close(at.mixed(vector(x), vector(y), data[0], vector(v)), case.j(x, y, rows) @ v, tolerance)
    e = normal(case.p, seed=6).numpy()
    along = at.along(vector(x), vector(y), data[0], vector(e), vector(v))
    close(along, case.j(x, y, rows).T @ e + case.h(x, y, rows) @ v, tolerance)


@pytest.mark.parametrize("name", ["SOBA", "FSLA", "AmIGO", "BSA", "SUSTAIN", "MRBO", "VRBO", "STABLE", "IAPTT", "SAMA"])
def test_every_product_gives_the_same_steps(name: str) -> None:
    problem, found = Logistic().problem(), []
    for products in PRODUCTS:
        objective = make(name, products=products, batch_size=5).start(problem, 0)
        for _ in range(3):
            objective.x.grad = None
            objective.outer_loss().backward()
        found.append(objective.x.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=1e-7)


# What a step costs: the numbers of the docstrings

COSTS = {
    "SOBA": {"f": 1, "g": 1, "products": 1},
    "MASOBA": {"f": 1, "g": 1, "products": 1},
    "SABA": {"f": 1, "g": 1, "products": 1},
    "SRBA": {"f": 2, "g": 2, "products": 2},
    "FSLA": {"f": 3, "g": 1, "products": 3},
    "FdeHBO": {"f": 2, "g": 2, "products": 2},
    "AmIGO": {"f": 1, "g": 2, "products": 3},
    "MRBO": {"f": 2, "g": 2, "products": 8},
    "VRBO": {"f": 6, "g": 6, "products": 24},
    "STABLE": {"f": 1, "g": 1, "products": 8},
    "F2SA": {"f": 3, "g": 6, "products": 0},
    "BOME": {"f": 1, "g": 4, "products": 0},
    "MEHA": {"f": 2, "g": 4, "products": 0},
    "STN": {"f": 1, "g": 2, "products": 0},
    "SAMA": {"f": 1, "g": 2, "products": 1},
}


@pytest.mark.parametrize("name", COSTS)
def test_a_step_costs_what_the_docstring_says(name: str) -> None:
    objective = make(name, batch_size=5, outer_batch_size=4).start(Quadratic().problem(), 0)
    objective.outer_loss()
    before = dict(objective.at.calls)
    objective.outer_loss()
    assert {key: n - before[key] for key, n in objective.at.calls.items()} == COSTS[name]


RANGES = {
    "BSA": {"f": (1, 1), "g": (2, 2), "products": (1, 3)},
    "TTSA": {"f": (1, 1), "g": (1, 1), "products": (1, 3)},
    "SUSTAIN": {"f": (2, 2), "g": (2, 2), "products": (2, 6)},
    "IAPTT": {"f": (1, 1), "g": (3, 3), "products": (1, 3)},
    "BVFIM": {"f": (3, 3), "g": (6, 9), "products": (0, 0)},
    "DeltaSTN": {"f": (1, 2), "g": (2, 2), "products": (2, 2)},
}


def test_every_cost_is_counted() -> None:
    assert COSTS.keys() | RANGES.keys() == NUMBERS.keys()


@pytest.mark.parametrize("name", RANGES)
def test_a_random_step_costs_what_the_docstring_says(name: str) -> None:
    objective = make(name, batch_size=5, outer_batch_size=4).start(Quadratic().problem(), 0)
    objective.outer_loss()  # momenta start at the first step, which has no point before it
    for _ in range(10):
        before = dict(objective.at.calls)
        objective.outer_loss()
        for key, (low, high) in RANGES[name].items():
            assert low <= objective.at.calls[key] - before[key] <= high


# Series, tables and two points


def test_the_random_product_has_the_mean_of_the_series() -> None:
    case, terms, lr = Quadratic(), 6, 0.3
    at = oracles(case)
    h, q = case.a.mean(0), normal(case.d, seed=7).numpy()
    hessians = Hessians(at, at.x, at.y0)
    inverse = drawn(lr, terms)
    found = [inverse(hessians, [(at.problem.train, None)] * p, vector(q)).leaves[0].numpy() for p in range(terms)]
    factor = np.eye(case.d) - lr * h
    series = lr * sum(np.linalg.matrix_power(factor, j) for j in range(terms)) @ q
    np.testing.assert_allclose(np.mean(found, 0), series, rtol=1e-12)
    close(summed(lr)(hessians, [(at.problem.train, None)] * (terms - 1), vector(q)), series)
    close(summed(lr)(hessians, [(at.problem.train, None)] * 200, vector(q)), np.linalg.solve(h, q), 1e-10)


def test_every_number_of_factors_is_drawn_as_often() -> None:
    at = oracles(Quadratic())
    counts = np.bincount([at.draw(5) for _ in range(2000)], minlength=5)
    assert counts.min() > 400 - 5 * np.sqrt(2000 * 0.2 * 0.8)  # five standard deviations
    assert len(counts) == 5


def test_saga_is_unbiased_and_exact_where_the_memory_is() -> None:
    """Rows that do not fill the last block count as often as the others."""
    data = normal(11, 3)
    blocks = Blocks((data,), 4)
    assert blocks.count == 3
    assert sum(blocks.weight(b) for b in range(3)) == pytest.approx(1)
    means = [Vector((blocks.batch(b)[0].mean(0),)) for b in range(3)]
    table = Table.zeros(means[0], 3)
    stale = [normal(3, seed=b + 1) for b in range(3)]
    for b in range(3):
        table = table.put(b, Vector((stale[b],)), blocks.weight(b))
    expected = sum(blocks.weight(b) * table.direction(b, means[b]).leaves[0] for b in range(3))
    torch.testing.assert_close(expected, data.mean(0))
    for b in range(3):
        table = table.put(b, means[b], blocks.weight(b))
    for b in range(3):
        torch.testing.assert_close(table.direction(b, means[b]).leaves[0], data.mean(0))
    at = oracles(Quadratic())
    drawn_ = np.bincount([blocks.draw(at) for _ in range(2000)], minlength=3) / 2000
    np.testing.assert_allclose(drawn_, [4 / 11, 4 / 11, 3 / 11], atol=5 * np.sqrt(0.25 / 2000))


def test_two_points_see_the_same_dropout() -> None:
    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (nn.functional.dropout(y, 0.5) * x).square().sum()

    x0 = torch.ones(40, dtype=torch.float64)
    problem = pzobo.Problem(loss, loss, x0, x0)
    at = Oracles(problem, problem.start(), (None, None), "autodiff", 0)
    torch.manual_seed(0)
    first, second = at.twice(at.g_y, (at.x, at.y0, None), (at.x, at.y0, None))
    assert torch.equal(first.leaves[0], second.leaves[0])
    assert not torch.equal(first.leaves[0], at.g_y(at.x, at.y0, None).leaves[0])


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_product_under_dropout_is_that_of_one_mask(products: Any) -> None:
    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return (nn.functional.dropout(y, 0.5) * x).pow(4).sum() / 12

    x0 = torch.ones(40, dtype=torch.float64)
    problem = pzobo.Problem(loss, loss, x0, 2 * x0)
    at = Oracles(problem, problem.start(), (None, None), products, 0)
    torch.manual_seed(0)
    curved = at.curved(at.x, at.y0, None, at.y0)
    kept = curved.y.leaves[0] > 0  # dg/dy = (2 y)^3 2 / 3 where the mask keeps y, H v = (2 y)^2 4 v
    torch.testing.assert_close(curved.hv.leaves[0], 128.0 * kept.double(), rtol=1e-7, atol=1e-7)
    assert 5 < int(kept.sum()) < 35


# Vectors and rates


def test_vectors_add_up() -> None:
    a, b = (Vector((normal(2, 3, seed=s), normal(4, seed=s + 9))) for s in (0, 1))
    flat_a, flat_b = a.flat(), b.flat()
    assert torch.equal((2.0 * a - b / 4).flat(), 2 * flat_a - 0.25 * flat_b)
    assert torch.equal((-a).flat(), -flat_a)
    torch.testing.assert_close(a @ b, flat_a @ flat_b)
    torch.testing.assert_close(a.within(0.5).norm(), torch.tensor(0.5, dtype=torch.float64))
    assert torch.equal(a.within(100.0).flat(), flat_a)
    assert torch.equal(a.zeros().within(1.0).flat(), 0 * flat_a)
    assert all(torch.equal(s, t) for s, t in zip(a.shaped(flat_a).leaves, a.leaves, strict=True))


def test_decays() -> None:
    assert [Decay(2.0, 0.5)(k) for k in (0, 3)] == [2.0, 1.0]
    assert Decay(2.0, 1.0, delay=10)(10) == 1.0
    assert Decay(1.0, -0.25)(15) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("SOBA", {"lr": lambda k: 0.1 - 0.05 * k}, r"gives -0\.05\d* at outer step 3, .* a number, at least 0"),
        ("SOBA", {"lr": lambda k: float("nan")}, "gives nan at outer step 0"),
        ("SOBA", {"lr": lambda k: "0.1"[:k]}, "gives '' at outer step 0"),
        ("F2SA", {"growth": lambda k: -0.1}, "gives -0.1 at outer step 0"),
        ("MASOBA", {"average": lambda k: 2 / (k + 1)}, "gives 2.0 at outer step 0, .* a number, from 0 to 1"),
        ("FSLA", {"momentum": lambda k: 4 / (k + 1)}, "gives 2.0 at outer step 1, .* a number, from 0 to 1"),
        ("BSA", {"lr": lambda k: -1.0}, "gives -1.0 at outer step 0"),
    ],
)
def test_a_function_that_gives_no_rate_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        pzobo.fit(Quadratic().problem(), make(name, **options), 5, lr=0.01, evaluate_every=0)


def test_a_rate_may_end_at_zero() -> None:
    method = make("SOBA", lr=lambda k: 0.1 * (1 - k / 5))
    assert pzobo.fit(Quadratic().problem(), method, 5, lr=0.01, evaluate_every=0).steps == 5


# What is refused


def test_numbers_that_make_no_sense_are_refused() -> None:
    for wrong in (
        lambda: A.SOBA(lr=0),
        lambda: A.SOBA(lr=-1.0),
        lambda: A.SOBA(products="exact"),
        lambda: A.SOBA(batch_size=0),
        lambda: A.AmIGO(steps=0),
        lambda: A.MASOBA(average=1.5),
        lambda: A.F2SA(penalty=0),
        lambda: A.F2SA(growth=-1),
        lambda: A.BOME(barrier="log"),
        lambda: A.SABA(memory="some"),
        lambda: A.STABLE(least=0),
        lambda: A.SAMA(solver=pzobo.ClosedForm(lambda z, batch: z)),
        lambda: A.SRBA(period=0),
        lambda: A.STN(scale=0),
        lambda: Decay(0.1, 0.5, delay=0),
    ):
        with pytest.raises(OptionError):
            wrong()


def test_what_is_too_large_is_refused_with_a_sentence() -> None:
    x0, y0 = torch.zeros(3), torch.zeros(5000)
    problem = pzobo.Problem(lambda x, y, _: y.square().sum(), lambda x, y, _: x.sum() + y.sum(), x0, y0)
    with pytest.raises(TooLargeError, match="y has 5000 numbers"):
        A.STABLE().start(problem)
    many = pzobo.Problem(problem.inner_loss, problem.outer_loss, torch.zeros(100_000), y0)
    for name in ("STN", "DeltaSTN"):
        with pytest.raises(TooLargeError, match="5000 inner times 100000 outer"):
            make(name).start(many)


def test_what_an_algorithm_cannot_start_from_is_refused() -> None:
    case = Quadratic().problem()
    nothing: Any = None
    with pytest.raises(RequirementError, match="inner loss"):
        A.SOBA().start(pzobo.Problem(nothing, case.outer_loss, case.x0, case.y0))
    with pytest.raises(StructureError, match="no tensors"):
        A.SOBA().start(pzobo.Problem(case.inner_loss, case.outer_loss, case.x0, ()))
    with pytest.raises(StructureError, match="int64"):
        A.SOBA().start(pzobo.Problem(case.inner_loss, case.outer_loss, case.x0, torch.arange(3)))


def test_an_x_that_is_lost_is_said() -> None:
    """The first D is zero, and Adam's eps is too in float16: y follows x, and its own steps are not to blame."""
    case = Quadratic().problem()
    problem = replace(
        case,
        inner_loss=lambda x, y, batch: case.inner_loss(x.double(), y, batch),
        outer_loss=lambda x, y, batch: case.outer_loss(case.x0, y, batch),
        x0=case.x0.half(),
    )
    with pytest.raises(NonFiniteError, match="x holds NaN or infinity"):
        pzobo.fit(problem, make("SOBA"), 5, lr=0.1, evaluate_every=0)


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - {"SAMA", "BVFIM"}))
def test_steps_that_are_too_long_are_said(name: str) -> None:
    objective = make(name, lr=1e200).start(Quadratic().problem())

    def go() -> None:
        for _ in range(4):
            objective.outer_loss()

    with pytest.raises(DivergenceError, match="smaller lr"):
        go()


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("SOBA", {"v_lr": 1e200}, r"SOBA carries what is not finite: v\. .*try a smaller lr or v_lr"),
        ("F2SA", {"lr": 1e200, "y_lr": 0.01}, r"carries what is not finite: z\. .*smaller lr or y_lr"),
        ("BSA", {"v_lr": 1e200}, "outer loss does not: .* Or the own steps of BSA are too long: .*lr or v_lr"),
    ],
)
def test_what_left_the_finite_numbers_is_named(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(NonFiniteError, match=told):
        pzobo.fit(Quadratic().problem(), make(name, **options), 20, lr=0.01, evaluate_every=0)
