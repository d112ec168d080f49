"""Is each named method what its name says? Values against Argmin by hand, and the exact one against the closed form."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import pzobo
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.experiments.global_l2 import GlobalL2, solve
from pzobo.bench.methods import METHODS, STOCHASTIC, Setup
from pzobo.problems import deep_hr, linear_hr, logistic_ho, quadratic

SETUP = Setup(pzobo.GD(0.1, 7), mu=0.01, directions=2, iterations=5, rate=0.1)

BY_HAND = {
    "direct": pzobo.Direct(),
    "pzobo": pzobo.PZOBO(0.01, 2),
    "pzobo-authors": pzobo.PZOBO(0.01, 2, sampler=pzobo.UnitPerTensor(), at="x"),
    "pzobo-paper": pzobo.PZOBO(0.01, 2, shrink=False, at="x"),
    "aid-cg": pzobo.Implicit(pzobo.CG(5)),
    "aid-fp": pzobo.Implicit(pzobo.FixedPoint(5)),
    "itd-r": pzobo.Unrolled(),
    "aid-cg-difference": pzobo.Implicit(pzobo.CG(5), "difference"),
    "aid-fp-difference": pzobo.Implicit(pzobo.FixedPoint(5), "difference"),
    "itd-r-difference": pzobo.Unrolled(products="difference"),
    "nudged": pzobo.Nudged(),
    "forward": pzobo.ForwardMode(2),
}


def gradient(method: pzobo.Method, problem: pzobo.Problem) -> torch.Tensor:
    torch.manual_seed(3)
    objective = method.start(problem)
    objective.outer_loss().backward()
    return objective.x.grad


@pytest.mark.parametrize("name", list(BY_HAND))
def test_a_name_is_its_jacobian(name):
    problem = quadratic()
    torch.manual_seed(3)
    x = problem.start()
    problem.objective(problem.argmin(SETUP.solver, BY_HAND[name]), x).backward()
    assert torch.equal(gradient(METHODS[name].build(SETUP, problem), problem), x.grad)


def test_every_method_is_checked():
    assert set(METHODS) == {*BY_HAND, "hozog", "exact"}
    assert {"pzobo-s", "stocbio", "aid-cg-s", "aid-fp-s", "direct"} <= set(STOCHASTIC)


def test_hozog_smooths_the_whole_objective():
    problem = quadratic()
    torch.manual_seed(3)
    x = problem.start()
    argmin = problem.argmin(SETUP.solver, pzobo.Direct())
    pzobo.smooth(lambda x: problem.objective(argmin, x), x, mu=0.01, directions=2).backward()
    assert torch.equal(gradient(METHODS["hozog"].build(SETUP, problem), problem), x.grad)


def test_exact_is_the_closed_form():
    problem = quadratic()
    found = gradient(METHODS["exact"].build(SETUP, problem), problem)
    assert torch.allclose(found, problem.hypergradient(problem.x0), rtol=1e-10)


def test_exact_is_the_limit_of_long_paths():
    problem = linear_hr(m=4, d=3, n=20, dtype=torch.float64)
    long = problem.argmin(pzobo.GD(0.05, 5000), pzobo.Unrolled())
    x = problem.start()
    problem.objective(long, x).backward()
    found = gradient(METHODS["exact"].build(SETUP, problem), problem)
    assert torch.allclose(found, x.grad, rtol=1e-7)


def test_exact_solves_where_there_is_no_formula():
    problem = logistic_ho(dtype=torch.float64)
    experiment = EXPERIMENTS["ho-logistic"](N=(5,), compile=False)
    setup = experiment.setup()
    assert setup.converged is not None
    problem = experiment.problem(0)
    method = METHODS["exact"].build(setup, problem)
    objective = method.start(problem)
    for _ in range(5):
        loss = objective.outer_loss()
    loss.backward()
    y = objective.y.detach().requires_grad_()
    slope = torch.autograd.grad(problem.inner_loss(problem.prepare(objective.x.detach(), None), y, problem.train), y)[0]
    assert slope.norm() < 1e-3
    assert objective.x.grad.norm() > 0


def test_exact_says_where_it_cannot_be_had():
    with pytest.raises(pzobo.errors.OptionError, match="no formula"):
        METHODS["exact"].build(SETUP, logistic_ho())


@pytest.mark.parametrize("name", [name for name in STOCHASTIC if name != "forward"])
def test_stochastic_methods_draw_batches(name):
    problem = deep_hr()
    setup = Setup(pzobo.GD(0.1, 2), mu=0.1, directions=1, iterations=2, rate=0.1, warm_start=True, batch_size=16)
    method = STOCHASTIC[name].build(setup, problem)
    assert method.batch_size == method.outer_batch_size == 16
    objective = method.start(problem)
    first = objective.outer_loss()
    first.backward()
    second = objective.outer_loss()
    assert first.item() == pytest.approx(math.log(10), rel=0.2)
    assert second.item() != first.item()
    norms = [t.grad.norm() for t in objective.x.values()]
    assert all(norm > 0 for norm in norms)


def test_a_strange_name_is_a_sentence():
    experiment = EXPERIMENTS["hr-linear"](methods=("pzobo-s",))
    with pytest.raises(pzobo.errors.OptionError, match="has no method 'pzobo-s'"):
        experiment.chosen()


def test_one_global_strength_is_the_best_of_the_grid():
    problem = logistic_ho()
    method = GlobalL2((1e-1, 1e-3, 1e-6), iterations=2000)
    found = pzobo.fit(problem, method, method.outer_steps, evaluate_every=1)
    values = []
    for strength in method.strengths:
        y = solve(problem, strength, 2000).requires_grad_()
        total = cross_entropy(problem.train[0] @ y, problem.train[1]) + 0.5 * strength * y.square().sum()
        assert torch.autograd.grad(total, y)[0].norm() < 1e-3
        values.append(float(problem.outer_loss(None, y, problem.val)))
    last = found.history[-1]
    assert last["outer_loss"] == pytest.approx(min(values), rel=1e-2)
    assert last["strength"] == method.strengths[values.index(min(values))]
    assert last["test_accuracy"] > 0.9


def test_scikit_learn_sees_the_same_sparse_rows():
    dense = logistic_ho()
    sparse = replace(dense, train=(pzobo.SparseMatrix.from_torch(dense.train[0]), dense.train[1]))
    assert torch.allclose(solve(dense, 1e-2, 500), solve(sparse, 1e-2, 500), atol=1e-4)
