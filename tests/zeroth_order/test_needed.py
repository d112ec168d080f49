"""Is the error of each sampler for a linear response what the law says, and Q the least that reaches an error?"""

import itertools
import math

import pytest
import torch

import pzobo
from pzobo.theory import sharp
from pzobo.zeroth_order.needed import directions_needed, linear_error


def test_signs_and_coordinates_by_enumeration():
    p, a = 4, torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def error(sets):
        values = [((us @ a) @ us / len(us) - a).square().sum() for us in sets]
        return float(torch.stack(values).mean() / a.square().sum())

    signs = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1.0, 1.0), repeat=p)]
    pairs = [torch.stack(pair) for pair in itertools.product(signs, repeat=2)]
    assert linear_error(pzobo.Rademacher(), p, 2) == pytest.approx(error(pairs), rel=1e-12)
    axes = math.sqrt(p) * torch.eye(p, dtype=torch.float64)
    for Q in range(1, p + 1):
        sets = [axes[list(c)] for c in itertools.combinations(range(p), Q)]
        assert linear_error(pzobo.Coordinate(), p, Q) == pytest.approx(error(sets), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("sampler", "shrink"),
    [(s, shrink) for s in (pzobo.Gaussian, pzobo.Sphere, pzobo.Orthogonal) for shrink in (False, True, 0.3)]
    + [(pzobo.UnitPerTensor, False), (pzobo.UnitPerTensor, True)],  # biased: no law for another scale
)
def test_every_sampler_by_monte_carlo(sampler, shrink):
    """The library's own backward on a linear function, against the law, within four standard errors."""
    p, Q = 6, 4
    a = torch.linspace(-1, 2, p, dtype=torch.float64)
    x = torch.zeros(p, dtype=torch.float64, requires_grad=True)
    stream = sampler(seed=0)
    errors = []
    for _ in range(400):
        loss = pzobo.smooth(lambda x: a @ x, x, mu=1.0, directions=Q, sampler=stream, shrink=shrink)
        (estimate,) = torch.autograd.grad(loss, x)
        errors.append((estimate - a).square().sum() / a.square().sum())
    errors = torch.stack(errors)
    law = linear_error(sampler(), p, Q, shrink=shrink)
    assert float(errors.mean()) == pytest.approx(law, abs=4 * float(errors.std()) / 20 + 1e-12)


@pytest.mark.parametrize("sampler", [pzobo.Gaussian(), pzobo.Rademacher(), pzobo.Orthogonal()])
def test_the_default_shrinkage_is_the_best(sampler):
    best = linear_error(sampler, 20, 5, shrink=True)
    grid = torch.linspace(0.001, 1, 1000).tolist()
    assert best == pytest.approx(min(linear_error(sampler, 20, 5, shrink=s) for s in grid), rel=1e-4)
    assert best < 1


@pytest.mark.parametrize("sampler", [pzobo.Gaussian(), pzobo.Sphere(), pzobo.Orthogonal()])
@pytest.mark.parametrize("error", [0.5, 0.1, 0.01])
def test_the_least_number_of_directions(sampler, error):
    Q = directions_needed(sampler, 50, error)
    assert linear_error(sampler, 50, Q, shrink=True) <= error
    assert Q == 1 or linear_error(sampler, 50, Q - 1, shrink=True) > error


def test_the_theory_offers_them_too():
    assert sharp.linear_error is linear_error
    assert sharp.directions_needed is directions_needed
