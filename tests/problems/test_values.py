"""Do the problems compute the formulas of their docstrings, and do they learn something?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.data import Dataset, Split, digits
from pzobo.errors import OptionError
from pzobo.problems import deep_hr, logistic_ho, reweighting, two_layer_hr

DOUBLE = torch.float64


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def crossentropies(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([row.exp().sum().log() - row[label] for row, label in zip(logits, labels, strict=True)])


def test_two_layer_formula_and_ridge_solution() -> None:
    problem = two_layer_hr(3, 5, 4, 30, gamma=0.1, dtype=DOUBLE)
    (H1, H2), (X, Y) = problem.x0, problem.train
    z = 1 / (1 + (-(1 / (1 + (-X @ H1).exp())) @ H2).exp())
    assert torch.allclose(problem.prepare(problem.x0, problem.train), z)
    w = torch.linalg.solve(z.T @ z / 30 + 0.1 * torch.eye(4, dtype=DOUBLE), z.T @ Y / 30).requires_grad_()
    loss = problem.inner_loss(z, w, problem.train)
    assert loss.item() == pytest.approx(((z @ w - Y) ** 2).sum().item() / 60 + 0.05 * (w @ w).item())
    assert torch.autograd.grad(loss, w)[0].abs().max() < 1e-12


def test_two_layer_sizes_of_the_paper() -> None:
    problem = two_layer_hr()
    assert [tuple(t.shape) for t in (*problem.x0, problem.y0)] == [(256, 512), (512, 256), (256,)]
    assert [tuple(t.shape) for t in problem.val] == [(5000, 256), (5000,)]


def test_logistic_formula() -> None:
    problem = logistic_ho(dtype=DOUBLE, start=-1.0)
    x, y = normal(64, 10, seed=0), normal(64, 10, seed=1)
    A, labels = problem.train
    expected = crossentropies(A @ y, labels).mean() + (x.exp() * y**2).sum() / (2 * 640)
    assert problem.inner_loss(problem.prepare(x, problem.train), y, problem.train).item() == pytest.approx(
        expected.item()
    )
    A, labels = problem.val
    assert problem.outer_loss(x, y, problem.val).item() == pytest.approx(crossentropies(A @ y, labels).mean().item())
    assert problem.x0.unique().tolist() == [-1.0]


@pytest.mark.parametrize("jacobian", [pzobo.Unrolled(), pzobo.Unrolled(products="difference")])
def test_sparse_is_dense(jacobian: pzobo.Unrolled) -> None:
    """The digits as they are, and as sparse matrices: half of their pixels are 0."""
    flat = Dataset(*(Split(part.inputs.flatten(1).double(), part.labels) for part in digits(train=60, val=60)))
    sparse = Dataset(*(Split(pzobo.SparseMatrix.from_torch(part.inputs), part.labels) for part in flat))
    found = []
    for data in (flat, sparse):
        problem = logistic_ho(data, dtype=DOUBLE)
        argmin = problem.argmin(pzobo.HeavyBall(lr=0.1, momentum=0.9, steps=10), jacobian)
        x = problem.start()
        value = problem.objective(argmin, x)
        y = argmin(x, problem.y0, problem.train).detach()
        found.append((value.item(), problem.accuracy(x, y), torch.autograd.grad(value, x)[0]))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-12)
    assert found[0][1] > 0.3, "chance is 0.1"
    assert torch.allclose(found[0][2], found[1][2], rtol=1e-6, atol=1e-12)


def test_reweighting_formula_and_corruption() -> None:
    clean, problem = reweighting(corruption=0, dtype=DOUBLE), reweighting(corruption=0.25, dtype=DOUBLE)
    assert problem.corrupted.sum().item() == 150
    assert torch.equal(problem.train[1] != clean.train[1], problem.corrupted), "only these, and all of these"
    assert problem.train[1].min() == 0
    assert problem.train[1].max() == 9
    assert torch.equal(problem.val[1], clean.val[1])
    x, y = normal(600, seed=0), normal(64, 10, seed=1)
    rows = torch.tensor([5, 3, 599])
    batch = tuple(part[rows] for part in problem.train)
    weights = 1 / (1 + (-x[rows]).exp())
    expected = (weights * crossentropies(batch[0] @ y, batch[1])).mean() + 0.005 * (y**2).sum()
    assert problem.inner_loss(problem.prepare(x, batch), y, batch).item() == pytest.approx(expected.item())


def test_reweighting_finds_the_wrong_labels() -> None:
    problem = reweighting()
    argmin = problem.argmin(pzobo.GD(lr=0.3, steps=50), pzobo.Unrolled(products="difference"))
    x = problem.start()
    optimizer = torch.optim.Adam([x], lr=0.3)
    accuracy = []
    for _ in range(20):
        y = argmin(x, problem.y0, problem.train)
        accuracy.append(problem.accuracy(x, y.detach()))
        optimizer.zero_grad()
        problem.outer_loss(x, y, problem.val).backward()
        optimizer.step()
    wrong, right = (x.detach().sigmoid()[mask].mean().item() for mask in (problem.corrupted, ~problem.corrupted))
    assert wrong < 0.35 < 0.6 < right
    assert accuracy[-1] > accuracy[0] + 0.02


def test_deep_formula() -> None:
    problem = deep_hr(gamma=0.3)
    assert [len(part[1]) for part in (problem.train, problem.val, problem.test)] == [600, 600, 597]
    assert sum(p.numel() for p in problem.x0.values()) == 60856
    batch = tuple(part[:5] for part in problem.train)
    z = problem.prepare(problem.x0, batch)
    y = {"weight": normal(10, 84, seed=0).float(), "bias": normal(10, seed=1).float()}
    logits = z @ y["weight"].T + y["bias"]
    assert torch.allclose(problem.logits(problem.x0, y, batch[0]), logits, atol=1e-5)
    squares = sum(float((part**2).sum()) for part in y.values())
    expected = crossentropies(logits, batch[1]).mean().item()
    assert problem.outer_loss(problem.x0, y, batch).item() == pytest.approx(expected, rel=1e-5)
    assert problem.inner_loss(z, y, batch).item() == pytest.approx(expected + 0.15 * squares, rel=1e-5)


def test_accuracy_counts_right_answers() -> None:
    inputs = torch.eye(3)
    part = Split(inputs, torch.tensor([0, 1, 1]))
    problem = logistic_ho(Dataset(part, part, part))
    assert problem.accuracy(problem.x0, torch.eye(3)[:, :2]) == pytest.approx(2 / 3)
    assert problem.accuracy(problem.x0, torch.eye(3)[:, :2], (inputs[:2], torch.tensor([0, 1]))) == 1


@pytest.mark.parametrize("problem", [deep_hr, logistic_ho, reweighting])
def test_unknown_data_is_refused(problem: object) -> None:
    with pytest.raises(OptionError, match=r"data='cats' is not known here; expected 'digits'"):
        problem("cats")


@pytest.mark.parametrize("corruption", [-0.1, 1.1])
def test_impossible_corruption_is_refused(corruption: float) -> None:
    with pytest.raises(OptionError, match="between 0 and 1"):
        reweighting(corruption=corruption)
