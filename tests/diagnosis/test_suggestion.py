"""`suggest` gives settings that reach their target, measured; and says why."""

import math

import pytest
import torch
from torch.nn import functional as F

import pzobo
from pzobo.diagnosis.exact_hypergradient import length, reference
from pzobo.diagnosis.flat import Flat
from pzobo.errors import OptionError
from pzobo.problems import linear_hr, quadratic
from pzobo.theory import logistic, suggest


def digits(per: str, dtype: torch.dtype) -> pzobo.Problem:
    """Logistic regression on scikit-learn's digits, with an l2 hyperparameter for each class, or for each pixel."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    X, t = torch.tensor(images / 16, dtype=dtype), torch.tensor(labels)

    def loss(x, y, batch):
        return F.cross_entropy(batch[0] @ y, batch[1]) + 0.5 * (x.exp() * y.square()).sum()

    def outer_loss(x, y, batch):
        return F.cross_entropy(batch[0] @ y, batch[1])

    x0 = torch.full((10,) if per == "class" else (64, 1), -3.0, dtype=dtype)
    y0 = torch.zeros(64, 10, dtype=dtype)
    return pzobo.Problem(loss, outer_loss, x0, y0, train=(X[:150], t[:150]), val=(X[150:300], t[150:300]))


def measured(problem, s, draws=6):
    """The root mean square relative error of what the suggested PZOBO gives."""
    flat = Flat(problem)
    truth, estimate = reference(flat), flat.estimator(s.solver(), s.jacobian())
    squares = [(length(estimate() - truth.gradient) / truth.norm) ** 2 for _ in range(draws)]
    return math.sqrt(sum(squares) / draws)


PROBLEMS = {
    "quadratic": lambda: quadratic(20, 10),
    "quadratic, float32": lambda: quadratic(20, 10, dtype=torch.float32),
    "linear HR": lambda: linear_hr(3, 9, 30),
    "linear HR, float64": lambda: linear_hr(3, 9, 30, dtype=torch.float64),
    "digits": lambda: digits("class", torch.float32),
}


@pytest.mark.parametrize(
    ("name", "target"), [(name, t) for name in PROBLEMS for t in (0.3, 0.05) if t < 0.1 or "float64" not in name]
)
def test_the_target_is_reached(name, target):
    problem = PROBLEMS[name]()
    torch.manual_seed(0)
    s = suggest(problem, target)
    assert s.predicted <= target
    assert measured(problem, s, draws=3) <= target
    assert len(s.reasons) == 5
    assert str(s.N) in str(s)


def test_a_hyperparameter_for_each_pixel():
    problem = digits("pixel", torch.float32)
    torch.manual_seed(0)
    s = suggest(problem, 0.3)
    assert s.Q < 64  # less than exact directions would take
    assert measured(problem, s, draws=3) <= 0.3


def test_the_prediction_is_the_error():
    """Not only above it: with Gaussian directions, whose error is all noise, within statistics."""
    problem = quadratic(8, 5)
    torch.manual_seed(0)
    s = suggest(problem, 0.5, sampler=pzobo.Gaussian())
    assert measured(problem, s, draws=100) == pytest.approx(s.predicted, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mu_knows_the_dtype(dtype):
    """For a target that float32 only reaches by central differences; the error that mu makes is the predicted one."""
    problem = logistic(3, 4, scale=4.0, dtype=dtype)
    s, flat = suggest(problem, 1e-3), Flat(problem)
    assert s.antithetic == (dtype is torch.float32)
    exact = flat.estimator(s.solver(), pzobo.Unrolled())()

    def off(mu):
        sampler = pzobo.Orthogonal(seed=0)
        jacobian = pzobo.PZOBO(mu=mu, directions=3, sampler=sampler, shrink=False, antithetic=s.antithetic, at="x")
        estimate = flat.estimator(s.solver(), jacobian, check=False)
        return math.sqrt(sum(length(estimate() - exact) ** 2 for _ in range(10)) / 10) / length(exact)

    assert s.mu_error / 3 < off(s.mu) < 1.5 * s.mu_error < 3e-4
    assert off(s.mu) < off(30 * s.mu)
    if dtype is torch.float32:
        assert off(s.mu) < off(s.mu / 30)


@pytest.mark.parametrize("problem", [quadratic(6, 5), logistic(3, 4, scale=3.0)], ids=["quadratic", "logistic"])
def test_the_outer_step_goes_down_and_is_not_timid(problem):
    s, flat = suggest(problem, 0.1), Flat(problem)

    def phi(x):
        return float(flat.f(x, reference(flat, x=x).y))

    down = reference(flat).gradient
    here, there = phi(flat.x), phi(flat.x - s.outer_lr * down)
    promised = 0.5 * s.outer_lr * length(down) ** 2  # the descent lemma, if L_Phi is right
    assert here - there >= 0.9 * promised


def test_a_known_curvature_gives_the_known_step():
    problem = quadratic(4, 4)
    A, B = problem.train
    J = torch.linalg.solve(A, B)
    L_Phi = float(torch.linalg.eigvalsh(0.1 * torch.eye(4) + J.T @ J)[-1])
    assert suggest(problem, 0.1).outer_lr == pytest.approx(1 / (L_Phi * 1.01), rel=1e-3)


def test_where_the_indirect_term_is_small_it_says_so():
    problem = pzobo.Problem(
        lambda x, y, b: 0.5 * (y - x).square().sum(),
        lambda x, y, b: 10 * x.sum() + 0.01 * y.sum(),
        torch.ones(4, dtype=torch.float64),
        torch.zeros(4, dtype=torch.float64),
    )
    s = suggest(problem, 0.1)
    assert s.Q == 1
    assert "Direct()" in str(s)


def test_what_cannot_be_reached_is_refused():
    with pytest.raises(OptionError, match="ill-conditioned"):
        suggest(quadratic(3, 3, mu_g=1e-4, L_g=1.0), 0.01, max_steps=64)
    with pytest.raises(OptionError, match="relative error"):
        suggest(quadratic(3, 3), 2.0)
    still = pzobo.Problem(
        lambda x, y, b: 0.5 * (y - x).square().sum(), lambda x, y, b: (y * 0).sum(), torch.ones(2), torch.zeros(2)
    )
    with pytest.raises(OptionError, match="stationary"):
        suggest(still)
