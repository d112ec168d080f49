"""Is the unrolled hypergradient of each problem the derivative of its outer loss along the path?"""

from __future__ import annotations

import optree
import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.data import Dataset, Split
from pzobo.problems import deep_hr, linear_hr, logistic_ho, reweighting, two_layer_hr

DOUBLE = torch.float64


def data(*shape: int, n: int = 6, classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def split() -> Split:
        inputs = torch.randn(n, *shape, generator=generator, dtype=DOUBLE)
        return Split(inputs, torch.arange(n) % classes)

    return Dataset(split(), split(), split())


PROBLEMS = {
    "linear_hr": lambda: linear_hr(3, 4, 8, dtype=DOUBLE),
    "two_layer_hr": lambda: two_layer_hr(3, 5, 4, 8, dtype=DOUBLE),
    "deep_hr": lambda: deep_hr(data(1, 32, 32), dtype=DOUBLE),
    "logistic_ho": lambda: logistic_ho(data(4), dtype=DOUBLE),
    "reweighting": lambda: reweighting(data(4), dtype=DOUBLE),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_unrolled_is_the_finite_difference(name: str) -> None:
    problem = PROBLEMS[name]()
    argmin = problem.argmin(pzobo.GD(lr=0.3, steps=4), pzobo.Unrolled())
    x = problem.start()
    leaves = optree.tree_leaves(x)
    gradients = torch.autograd.grad(problem.objective(argmin, x), leaves)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        u = [torch.randn(leaf.shape, generator=generator, dtype=DOUBLE) for leaf in leaves]
        length = torch.cat([part.flatten() for part in u]).norm()
        u = [part / length for part in u]
        exact = sum(float((g * part).sum()) for g, part in zip(gradients, u, strict=True))

        def value(step: float, u: list[Tensor] = u) -> float:
            moved = iter([(leaf + step * part).detach() for leaf, part in zip(leaves, u, strict=True)])
            return problem.objective(argmin, optree.tree_map(lambda _: next(moved), x)).item()

        difference = (value(1e-5) - value(-1e-5)) / 2e-5
        assert exact == pytest.approx(difference, rel=1e-5, abs=1e-9)
        assert abs(exact) > 1e-6, "the check must be able to fail"


@pytest.mark.parametrize("name", ["deep_hr", "logistic_ho", "reweighting"])
def test_first_outer_loss_is_that_of_guessing(name: str) -> None:
    problem = PROBLEMS[name]()
    value = problem.outer_loss(problem.x0, problem.y0, problem.val)
    assert value.item() == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_seed_same_problem(name: str) -> None:
    first, again = (optree.tree_leaves((p.x0, p.y0, p.train, p.val)) for p in (PROBLEMS[name](), PROBLEMS[name]()))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert {leaf.dtype for leaf in first} <= {DOUBLE, torch.int64}
