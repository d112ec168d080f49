"""Are the problems of the field's benchmark what they say? Formulas, known optima, and what their metrics mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pzobo
from pzobo.data import Dataset, Split, digits
from pzobo.errors import OptionError
from pzobo.problems import data_cleaning, simulated_quadratics, source_weights

DOUBLE = torch.float64


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_data_cleaning_formula() -> None:
    problem = data_cleaning(corruption=0.5, dtype=DOUBLE)
    inputs, labels, index = problem.train
    assert inputs.mean(0).abs().max() < 1e-12
    assert set(inputs.std(0, correction=0).round(decimals=9).unique().tolist()) == {0.0, 1.0}, "some pixels are empty"
    assert problem.x0.unique().tolist() == [-2.0]
    assert not problem.y0.any()
    x, y = normal(600, seed=0), 0.1 * normal(64, 10, seed=1)
    rows = torch.tensor([3, 5, 8])
    batch = inputs[rows], labels[rows], index[rows]
    each = torch.stack([row.logsumexp(0) - row[label] for row, label in zip(batch[0] @ y, batch[1], strict=True)])
    expected = (x[rows].sigmoid() * each).mean() + 0.2 * y.square().sum()
    assert problem.prepare is not None
    assert problem.inner_loss(problem.prepare(x, batch), y, batch).item() == pytest.approx(expected.item())
    clean = data_cleaning(corruption=0.0, dtype=DOUBLE)
    assert torch.equal(problem.corrupted, labels != clean.train[1])
    # Half of the labels are drawn from ten classes, so 45 % are wrong: five standard deviations.
    assert abs(problem.corrupted.double().mean() - 0.45) < 5 * (0.45 * 0.55 / 600) ** 0.5


def test_data_cleaning_learns_which_labels_are_wrong() -> None:
    problem = data_cleaning(corruption=0.5)
    method = pzobo.algorithms.SOBA(lr=0.1, batch_size=64, outer_batch_size=64)
    found = pzobo.fit(problem, method, 300, lr=0.1, evaluate_every=0)
    right, wrong = found.x.detach()[~problem.corrupted], found.x.detach()[problem.corrupted]
    assert right.mean() > wrong.mean() + 0.2
    assert found.history[-1]["val_loss"] < float(problem.outer_loss(None, problem.y0, problem.val)) / 1.5


def test_simulated_quadratics_know_their_value_function() -> None:
    problem = simulated_quadratics(4, 5, 200)
    x = normal(4, seed=2).requires_grad_()
    assert problem.solution is not None
    y = problem.solution(x, problem.train)
    torch.testing.assert_close(y, problem.inner_solution(x))
    slope = torch.autograd.grad(problem.inner_loss(x, y.detach().requires_grad_(), problem.train), x)
    assert len(slope) == 1
    inner = y.detach().requires_grad_()
    assert torch.autograd.grad(problem.inner_loss(x.detach(), inner, problem.train), inner)[0].abs().max() < 1e-12
    value = problem.outer_loss(x, y, problem.val)
    torch.testing.assert_close(value, problem.value(x))
    exact = torch.autograd.grad(value, x)[0]
    assert problem.hypergradient is not None
    torch.testing.assert_close(problem.hypergradient(x), exact)
    optimum = problem.optimum()
    assert problem.hypergradient(optimum).abs().max() < 1e-10
    assert problem.value(optimum) < problem.value(optimum + 0.1 * normal(4, seed=3))
    metrics = problem.metrics(optimum, problem.inner_solution(optimum) + 1)
    assert metrics["squared_gradient"] < 1e-18
    assert metrics["inner_distance"] == pytest.approx(5**0.5)


def test_simulated_quadratics_have_the_spectra_they_say() -> None:
    problem = simulated_quadratics(20, 30, 40_000, smallest=0.1, cross=0.2)
    values = np.linalg.eigvalsh(problem.inner.yy.numpy())
    assert values[0] == pytest.approx(0.1, rel=0.1)
    assert values[-1] == pytest.approx(1.0, rel=0.1)
    assert np.linalg.eigvalsh(problem.outer.xx.numpy())[:2] == pytest.approx([0.0, 0.1], abs=0.02)
    singular = np.linalg.svd(problem.inner.xy.numpy(), compute_uv=False)
    assert singular[0] == pytest.approx(0.2, rel=0.25)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(OptionError, match="more rows"):
        simulated_quadratics(5, 8, 3)
    with pytest.raises(OptionError, match="corruption"):
        data_cleaning(corruption=1.5)
    with pytest.raises(OptionError, match="'digits', 'mnist'"):
        data_cleaning("letters")


def test_sources_have_ever_more_wrong_labels() -> None:
    problem = source_weights(sources=5, size=40, dtype=DOUBLE)
    clean = digits(train=1200, val=60).train.labels[:200]
    inputs, labels, source = problem.train
    shares = [(labels != clean)[source == k].double().mean().item() for k in range(5)]
    assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert problem.wrong.tolist() == pytest.approx(shares)
    assert problem.x0.shape == (5,)
    x = normal(5, seed=0)
    y = problem.y0
    rows = torch.tensor([0, 50, 199])
    batch = inputs[rows], labels[rows], source[rows]
    logits = torch.tanh(batch[0] @ y["first"] + y["bias"]) @ y["last"]
    each = torch.stack([row.logsumexp(0) - row[label] for row, label in zip(logits, batch[1], strict=True)])
    squares = sum(t.square().sum() for t in y.values())
    expected = (x.sigmoid()[source[rows]] * each).mean() + 0.0005 * squares
    assert problem.prepare is not None
    assert problem.inner_loss(problem.prepare(x, batch), y, batch).item() == pytest.approx(float(expected))


def test_the_weights_of_good_sources_grow() -> None:
    problem = source_weights(sources=3, size=100, hidden=8)
    method = pzobo.Method(pzobo.Adam(0.02, 40), pzobo.Unrolled())
    objective = method.start(problem)
    objective.outer_loss().backward()
    gradient = objective.x.grad
    assert gradient[0] < 0 < gradient[2], "more of the clean source, less of the wrong one"


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(OptionError, match="fewer"):
        source_weights(sources=8, size=1000)
    part = Split(torch.zeros(4, 3), torch.arange(4))
    with pytest.raises(OptionError, match="0 images"):
        source_weights(Dataset(part, part, part), sources=5)


def test_the_fast_way_round_is_the_same_and_compiles() -> None:
    """`linear` is inputs @ y with its derivatives, also inside of a compiled path."""
    problem = data_cleaning(dtype=torch.float64)
    inputs, y = problem.train[0], torch.randn_like(problem.y0)
    torch.testing.assert_close(problem.logits(problem.x0, y, inputs), inputs @ y)
    ends = [
        problem.argmin(pzobo.GD(0.1, 3), pzobo.Direct(), compile=compile, audit=False)(problem.x0, y, problem.train)
        for compile in (False, True)
    ]
    torch.testing.assert_close(*ends)
