"""`doctor` on problems made to be ill in one way each."""

import io
import math

import pytest
import torch

import pzobo
from pzobo.diagnosis.examination import doctor
from pzobo.errors import OptionError, RequirementError
from pzobo.problems import quadratic
from pzobo.theory import logistic

SOLVED = pzobo.GD(lr=0.25, steps=30)


def exact(p, mu=1e-3):
    """As many orthogonal directions as there are outer variables: no noise for a linear response."""
    return pzobo.PZOBO(mu=mu, directions=p, sampler=pzobo.Orthogonal(), at="x")


def toy(loss, outer_loss, p=3, d=4):
    return pzobo.Problem(loss, outer_loss, torch.full((p,), 0.3).double(), torch.zeros(d).double())


def ills(report):
    return {f.name for f in report.findings if f.level in ("problem", "warning")}


def test_nothing_wrong():
    problem = quadratic(4, 5)
    report = doctor(problem, solver=SOLVED, jacobian=exact(4), draws=2)
    assert report.healthy
    assert ills(report) == set()
    assert report.cosine == pytest.approx(1, abs=1e-3)
    assert report.error < 1e-3
    assert report.curvature == pytest.approx((1.0, 4.0))
    A, B = problem.train
    x = problem.x0
    v = torch.linalg.solve(A, B @ x) - problem.val
    whole = problem.hypergradient(x).norm()
    assert report.direct == pytest.approx(float((0.1 * x).norm() / whole))
    assert report.indirect == pytest.approx(float((B.T @ torch.linalg.solve(A, v)).norm() / whole))
    assert report.steps_needed == 30
    assert report.suggestion is not None
    assert "other estimates" in report
    assert "Implicit(CG(20))" in str(report)


def test_too_few_inner_steps():
    problem = quadratic(4, 5)
    report = doctor(problem, solver=pzobo.GD(lr=0.05, steps=3), jacobian=exact(4), draws=2)
    assert "too few inner steps" in ills(report)
    assert report.path_error > 0.3
    again = doctor(problem, solver=pzobo.GD(lr=0.05, steps=report.steps_needed), jacobian=exact(4), draws=2)
    assert again.healthy  # its own advice works
    # The same number of steps is enough from a warm start.
    y = torch.linalg.solve(problem.train[0], problem.train[1] @ problem.x0)
    warm = doctor(problem, y0=y * 0.99, solver=pzobo.GD(lr=0.05, steps=3), jacobian=pzobo.Implicit(pzobo.CG(20)))
    assert warm.error < 0.1


def test_a_diverging_path():
    report = doctor(quadratic(4, 5), solver=pzobo.GD(lr=0.7, steps=200), jacobian=exact(4))
    assert ills(report) == {"inner path diverges"}
    assert "below 0.5" in str(report)
    assert report.suggestion.inner_lr < 0.5
    assert math.isnan(report.error)


def test_a_flat_inner_problem():
    problem = toy(lambda x, y, b: 0.5 * (y[:2] - x[:2]).square().sum(), lambda x, y, b: (y - 1).square().sum())
    report = doctor(problem, solver=pzobo.GD(lr=0.5, steps=30), jacobian=exact(3), draws=2)
    assert ills(report) == {"inner problem flat"}
    assert report.curvature[0] == pytest.approx(0, abs=1e-12)
    assert report.error < 1e-3  # compared with the path's own hypergradient
    assert report.suggestion is None


def test_a_problem_that_is_not_convex():
    problem = toy(lambda x, y, b: (y - x.sum()).cos().sum(), lambda x, y, b: x.square().sum() + y.sum())
    report = doctor(problem, solver=pzobo.GD(lr=0.01, steps=2), jacobian=exact(3), draws=2)
    assert "inner problem not convex" in ills(report)
    assert report.curvature[0] < 0


@pytest.mark.parametrize("mu", [1e-9, 3e-6])
def test_mu_too_small(mu):
    report = doctor(quadratic(4, 5, dtype=torch.float32), solver=SOLVED, jacobian=exact(4, mu), draws=2, target=0.01)
    assert "mu too small" in ills(report)
    assert "mu too large" not in report
    assert report.mu_error > 0.005


def test_mu_too_large():
    problem = logistic(2, 2, 40, gamma=0.2, scale=6.0)
    solver = pzobo.GD(lr=0.2, steps=30)
    report = doctor(problem, solver=solver, jacobian=exact(2, 5.0), draws=3)
    assert "mu too large" in ills(report)
    assert "mu too small" not in report
    good = doctor(problem, solver=solver, jacobian=exact(2, report.suggestion.mu), draws=3)
    assert good.mu_error < 0.1
    assert good.healthy


def test_too_few_directions():
    report = doctor(
        quadratic(40, 5), solver=SOLVED, jacobian=pzobo.PZOBO(mu=1e-3, directions=1, shrink=False), draws=12
    )
    assert ills(report) == {"too few directions", "estimate", "audit"}
    # (p + 1) / Q of the indirect term's square is the law; twelve draws are within a factor of two of it.
    law = report.indirect * math.sqrt(41)
    assert law / 2 < report.direction_error < 2 * law
    assert report.signal_to_noise < 1
    assert report.mu_error < 1e-6


def test_enough_directions():
    jacobian = pzobo.PZOBO(mu=1e-3, directions=400, at="x")
    report = doctor(quadratic(8, 5), solver=SOLVED, jacobian=jacobian, draws=2)
    assert report.healthy
    assert report.direction_error < 0.3


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (toy(lambda x, y, b: 0.5 * (y - 1).square().sum(), lambda x, y, b: y.sum() + x.square().sum()), "depend on x"),
        (toy(lambda x, y, b: 0.5 * (y - x.sum()).square().sum(), lambda x, y, b: x.square().sum()), "depend on y"),
    ],
    ids=["g without x", "f without y"],
)
def test_no_indirect_term(problem, reason):
    report = doctor(problem, solver=pzobo.GD(lr=0.5, steps=30), jacobian=exact(3), draws=2)
    assert "no indirect term" in report
    assert reason in str(report)
    assert "Take Direct()" in str(report)
    assert report.indirect == 0
    assert report.healthy


def test_estimates_without_noise():
    report = doctor(quadratic(4, 5), solver=SOLVED, jacobian=pzobo.Implicit(pzobo.CG(20)))
    assert report.healthy
    assert math.isinf(report.signal_to_noise)
    control = doctor(quadratic(4, 5), solver=SOLVED, jacobian=pzobo.Direct())
    assert ills(control) == {"estimate"}
    assert control.error == pytest.approx(control.indirect, rel=1e-4)


def test_a_black_box():
    problem = quadratic(4, 5)
    A, B = problem.train
    box = pzobo.BlackBox(lambda x, y0, batch: torch.linalg.solve(A, B @ x))
    report = doctor(problem, solver=box, jacobian=exact(4), draws=2)
    assert report.healthy
    assert report.error < 1e-3


def test_defaults_and_rendering():
    rich = pytest.importorskip("rich.console")
    report = doctor(quadratic(3, 3), draws=2)
    console = rich.Console(record=True, width=120, file=io.StringIO())
    console.print(report)
    text = console.export_text()
    assert "strongly convex" in text
    assert "suggestion" in text


def test_what_is_refused():
    with pytest.raises(OptionError, match="target"):
        doctor(quadratic(3, 3), target=3.0)
    with pytest.raises(RequirementError):
        doctor(quadratic(3, 3), solver=pzobo.BlackBox(lambda x, y0, b: y0), jacobian=pzobo.Unrolled())


def examined(g, f=lambda x, y, b: y.square().sum(), x0=1.0, y0=0.3, **options):
    x, y = (torch.full((3,), value, dtype=torch.float64) for value in (x0, y0))
    return pzobo.doctor(pzobo.Problem(g, f, x, y), **options)


@pytest.mark.parametrize("options", [{}, {"solver": pzobo.GD(0.1, 20)}], ids=["by default", "with a solver"])
def test_a_loss_that_is_not_finite_at_the_start_is_no_divergence(options):
    found = examined(lambda x, y, b: (y.log() - x).square().sum(), y0=-1.0, **options)
    assert [f.name for f in found.findings] == ["inner loss not finite"]
    assert not found.healthy


KINKS = {
    "distance": lambda x, y, b: (y - x).abs().sum(),
    "beside a square": lambda x, y, b: (x * y).abs().sum() + 0.5 * (y - 1).square().sum(),
    "rounded": lambda x, y, b: ((y - x).square() + 1e-8).sqrt().sum(),
}


@pytest.mark.parametrize("loss", KINKS.values(), ids=KINKS)
def test_it_comes_to_an_end_where_g_has_kinks(loss):
    """Gradient descent does not settle there, however many steps it makes: the search for enough of them must end."""
    calls = 0

    def counted(x, y, b):
        nonlocal calls
        calls += 1
        return loss(x, y, b)

    found = examined(counted, solver=pzobo.GD(0.1, 20))
    assert calls < 60_000
    assert not found.healthy


def test_a_path_without_derivative_is_not_called_stationary():
    found = examined(KINKS["distance"], solver=pzobo.GD(0.1, 20))
    assert "no derivative" in found
    assert "no hypergradient" not in found


def test_a_stationary_point_is_one():
    found = examined(lambda x, y, b: 0.5 * (y - x).square().sum(), lambda x, y, b: (y - 1).square().sum())
    assert "no hypergradient" in found


@pytest.mark.parametrize("solver", [pzobo.GD(lambda x: x.exp(), 3), pzobo.GD(0.1, 3, weight_decay=0.1)])
def test_a_solver_with_numbers_of_its_own_is_refused(solver):
    with pytest.raises(OptionError, match=r"minimum of g.*weight decay into the inner loss"):
        doctor(quadratic(4, 5), solver=solver)
