"""Is the model at the found x fitted again on all data, and by whom?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import OptionError, RequirementError
from pzobo.problems import data_cleaning, logistic_ho, reweighting, source_weights
from pzobo.tensors.sparse import SparseMatrix


def ridge() -> pzobo.Problem:
    """Ridge regression with exp(x) |y|^2 / 2, whose solution is a formula."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (20, 15))
    y = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def inner(z: Any, y: Any, batch: Any) -> Any:
        return (batch[0] @ y - batch[1]).square().mean() / 2 + z * y.square().sum() / 2

    return pzobo.Problem(
        inner,
        lambda x, y, batch: (batch[0] @ y - batch[1]).square().mean(),
        torch.zeros((), dtype=torch.float64),
        torch.zeros(3, dtype=torch.float64),
        (a, a @ y + 0.1),
        (b, b @ y - 0.1),
        prepare=lambda x, batch: x.exp(),
        all_data=lambda x, train, val: (x.exp(), tuple(torch.cat(pair) for pair in zip(train, val, strict=True))),
    )


def formula(problem: pzobo.Problem, x: torch.Tensor) -> torch.Tensor:
    a, t = (torch.cat(pair) for pair in zip(problem.train, problem.val, strict=True))
    return torch.linalg.solve(a.T @ a / len(t) + x.exp() * torch.eye(3, dtype=x.dtype), a.T @ t / len(t))


@pytest.mark.parametrize("refit", [True, pzobo.GD(0.3, 500)])
def test_the_last_fit_is_on_all_data(refit: Any) -> None:
    problem = ridge()
    method = pzobo.Method(pzobo.GD(0.3, 400), pzobo.Implicit(pzobo.CG(10)))
    found = pzobo.fit(problem, method, 4, lr=0.5, refit=refit)
    torch.testing.assert_close(found.refit, formula(problem, found.x.detach()), rtol=1e-8, atol=1e-8)
    assert not torch.allclose(found.refit, found.y, atol=1e-4), "y itself has seen the training data alone"
    plain = pzobo.fit(problem, method, 4, lr=0.5)
    assert plain.refit is None
    assert torch.equal(plain.x, found.x)


def test_who_cannot_is_told_before_the_run() -> None:
    soba = pzobo.algorithms.SOBA(0.1)
    with pytest.raises(OptionError, match="SOBA has no solver of its own"):
        pzobo.fit(ridge(), soba, 4, refit=True)
    found = pzobo.fit(ridge(), soba, 4, refit=pzobo.GD(0.3, 500))
    torch.testing.assert_close(found.refit, formula(ridge(), found.x.detach()), rtol=1e-8, atol=1e-8)
    bare = ridge()
    bare = pzobo.Problem(bare.inner_loss, bare.outer_loss, bare.x0, bare.y0, bare.train, bare.val)
    with pytest.raises(RequirementError, match="all_data"):
        pzobo.fit(bare, soba, 4, refit=pzobo.GD(0.3, 5))


@pytest.mark.parametrize(
    "method",
    [
        pzobo.Method(pzobo.GD(0.3, 2), warm_start=True),
        pzobo.Method(pzobo.GD(0.3, 2), warm_start="state"),
        pzobo.HOZOG(pzobo.GD(0.3, 2), mu=0.1, warm_start=True),
        pzobo.algorithms.SAMA(pzobo.GD(0.3, 2)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_steps_that_go_on_from_the_last_y_are_too_few_from_y0(method: Any) -> None:
    """Two steps from y0 are no fit, though y itself has had two at each outer step."""
    with pytest.raises(OptionError, match="goes on at each outer step from where y was"):
        pzobo.fit(ridge(), method, 4, lr=0.1, refit=True)
    found = pzobo.fit(ridge(), method, 4, lr=0.1, refit=pzobo.GD(0.3, 500))
    torch.testing.assert_close(found.refit, formula(ridge(), found.x.detach()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("make", [data_cleaning, reweighting, logistic_ho, source_weights])
def test_practical_problems_say_what_all_data_is(make: Any) -> None:
    """g on all data is the weighted mean of g on the training data and of the loss of the validation data."""
    problem = make(dtype=torch.float64)
    x = torch.randn(problem.x0.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = {k: v + 0.1 for k, v in problem.y0.items()} if isinstance(problem.y0, dict) else problem.y0 + 0.1
    z, batch = problem.all_data(x, problem.train, problem.val)
    n, m = len(problem.train[1]), len(problem.val[1])
    train = problem.inner_loss(problem.prepare(x, problem.train), y, problem.train)
    zero = problem.prepare(x * 0 - 1e9, problem.train)
    if make is logistic_ho:
        strength = problem.inner_loss(x.exp(), y, problem.train) - problem.inner_loss(x * 0, y, problem.train)
    else:
        strength = problem.inner_loss(zero, y, problem.train)
    expected = (n * (train - strength) + m * problem.outer_loss(x, y, problem.val)) / (n + m) + strength
    torch.testing.assert_close(problem.inner_loss(z, y, batch), expected)


def test_sparse_rows_go_on_top_of_each_other() -> None:
    a, b = torch.eye(3), torch.ones(2, 3)
    both = SparseMatrix.from_torch(a).above(SparseMatrix.from_torch(b))
    assert torch.equal(both.to_dense(), torch.cat([a, b]))
