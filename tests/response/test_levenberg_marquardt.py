"""Are the steps those of the measured J: at the optimum of what is linear, by the formula elsewhere?"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from torch import Tensor

from pzobo.errors import OptionError, RequirementError, StructureError
from pzobo.response.levenberg_marquardt import LevenbergMarquardt, Place, Terms
from tests.helpers import normal

A, B = normal(30, 5), normal(30, seed=1)
LOW, HIGH = torch.full((5,), -0.3).double(), torch.full((5,), 0.25).double()


def squares(x: Tensor, r: Tensor, c: Tensor) -> Tensor:
    return r.square().mean()


def curved(x: Tensor) -> Tensor:
    return (A @ x).tanh() + 0.1 * (A @ x) - B


def started(r: Any, prior: Any = None, **options: Any) -> LevenbergMarquardt:
    terms = Terms(squares, 30, "scale", prior)
    low, high = options.pop("low", LOW * 100), options.pop("high", HIGH * 100)
    x0 = torch.zeros(5, dtype=torch.float64)
    found = LevenbergMarquardt(terms, x0, low, high, options.pop("width", 1e-4), options.pop("renew", 5), **options)
    found.begin(found.x0, r(found.x0))
    return found


def measure(steps: LevenbergMarquardt, r: Any) -> list[int]:
    due = steps.due()
    for j in due:
        points = steps.probe(j)
        steps.measure(j, points, [r(x) for x in points])
    return due


def turn(steps: LevenbergMarquardt, r: Any) -> bool:
    measure(steps, r)
    x = steps.propose()
    return steps.judge(x, r(x))


def test_lands_on_the_bounded_optimum_of_least_squares() -> None:
    """A linear response, without damping: one step is the answer of scipy's bounded solver."""
    low, high = LOW / 3, HIGH / 3
    steps = started(lambda x: A @ x - B, low=low, high=high)
    measure(steps, lambda x: A @ x - B)
    assert torch.allclose(steps.J, A, atol=1e-10)
    steps.damping = 1e-12
    expected = lsq_linear(A.numpy(), B.numpy(), (low.numpy(), high.numpy()), method="bvls", tol=1e-14).x
    x = steps.propose()
    assert torch.allclose(x, torch.as_tensor(expected), atol=1e-6)
    assert 0 < int(((x == low) | (x == high)).sum()) < 5


def test_a_damped_step_with_a_prior_is_that_of_the_formula() -> None:
    """(w J^T J 2/n + (alpha + damping) I) s = -(w J^T r 2/n + alpha (x - x0)), with w = n / 2f."""
    steps = started(curved, prior=0.7)
    measure(steps, curved)
    steps.damping = 2.0
    r = curved(steps.x0)
    weight = 30 / (2 * float(r.square().mean())) * 2 / 30
    wanted = -torch.linalg.solve(weight * steps.J.T @ steps.J + 2.7 * torch.eye(5).double(), weight * steps.J.T @ r)
    assert torch.allclose(steps.propose(), wanted, atol=1e-7)


@pytest.mark.parametrize("central", [False, True])
def test_J_is_the_derivative(central: bool) -> None:
    steps = started(curved, width=1e-5, central=central)
    measure(steps, curved)
    exact = torch.func.jacfwd(curved)(steps.x0)
    assert torch.allclose(steps.J, exact, atol=1e-9 if central else 1e-4)
    wanted = torch.func.grad(lambda x: curved(x).square().mean())(steps.x0)
    assert torch.allclose(steps.gradient(), wanted, atol=1e-4)


def test_columns_are_measured_inside_of_the_box() -> None:
    steps = started(curved, low=-torch.ones(5).double(), high=torch.zeros(5).double(), width=0.1)
    for j in range(5):
        assert [float(x[j]) for x in steps.probe(j)] == [-0.1]


def test_the_oldest_columns_are_renewed_and_the_others_follow_by_broyden() -> None:
    steps = started(curved, renew=2)
    assert measure(steps, curved) == [0, 1, 2, 3, 4]
    x = steps.propose()
    before, at = steps.best, steps.J.clone()
    assert steps.judge(x, curved(x))
    s = x - before.x
    assert torch.allclose(steps.J @ s, curved(x) - before.r, atol=1e-12), "the secant equation"
    across = normal(5, seed=7)
    across -= s * (across @ s) / (s @ s)
    assert torch.allclose(steps.J @ across, at @ across, atol=1e-12), "no change across the step"
    assert measure(steps, curved) == [0, 1]
    assert turn(steps, curved)
    assert measure(steps, curved) == [4, 0], "2 and 3 were renewed for that step"


def test_steps_with_a_part_of_J_move_what_is_known() -> None:
    """A linear response, blocks of two columns: each step lands on the optimum of the columns so far."""
    steps = started(lambda x: A @ x - B, order=[3, 0, 4, 1, 2], block=2)
    for columns, known in (([3, 0], [0, 3]), ([4, 1], [0, 1, 3, 4]), ([2], [0, 1, 2, 3, 4])):
        assert measure(steps, lambda x: A @ x - B) == columns
        steps.damping = 1e-12
        x = steps.propose()
        wanted = torch.zeros(5, dtype=torch.float64)
        wanted[known] = torch.linalg.lstsq(A[:, known], B[:, None]).solution[:, 0]
        assert torch.allclose(x, wanted, atol=1e-6)
        assert steps.judge(x, A @ x - B)
        assert torch.equal(steps.J[:, steps.age < 0], torch.zeros(30, 5 - len(known)).double())


def test_a_variable_without_a_column_stays_whatever_f_says_of_x() -> None:
    """f has a slope of its own in x; without the response it is half of the truth."""
    terms = Terms(lambda x, r, c: r.square().mean() + x.sum(), 30, "nats", None)
    steps = LevenbergMarquardt(terms, torch.zeros(5).double(), 100 * LOW, 100 * HIGH, 1e-4, 5, order=range(5), block=2)
    steps.begin(steps.x0, curved(steps.x0))
    measure(steps, curved)
    moved = steps.propose() != 0
    assert moved.tolist() == [True, True, False, False, False]


def test_the_evidence_waits_for_all_of_J() -> None:
    steps = started(lambda x: 0.02 * A @ x - B, "evidence", order=range(5), block=2)
    seen = []
    for _ in range(5):
        turn(steps, lambda x: 0.02 * A @ x - B)
        seen.append(steps.alpha)
    assert seen[:2] == [1.0, 1.0]
    assert seen[-1] != 1.0


def test_descends_to_the_optimum() -> None:
    steps = started(curved, renew=2)
    values = [steps.best.value]
    for _ in range(25):
        turn(steps, curved)
        values.append(steps.best.value)
    assert values == sorted(values, reverse=True)
    least = minimize(lambda x: float(curved(torch.as_tensor(x)).square().mean()), steps.best.x.numpy(), tol=1e-12).fun
    assert steps.terms.nats(values[-1]) - steps.terms.nats(least) < 0.01, "less than what is worth an evaluation"
    steps.age.fill_(steps.step)
    steps.propose()
    assert steps.done()


def test_where_nothing_is_found_is_not_taken() -> None:
    steps = started(curved)
    measure(steps, curved)
    x, J, damping = steps.propose(), steps.J.clone(), steps.damping
    assert not steps.judge(x, torch.full((30,), math.nan, dtype=torch.float64))
    assert torch.equal(steps.J, J)
    assert torch.equal(steps.best.x, steps.x0)
    assert steps.damping > damping
    steps.measure(0, steps.probe(0), [torch.full((30,), math.nan, dtype=torch.float64)])
    assert float(steps.J[:, 0].abs().max()) == 0


def test_the_damping_grows_faster_with_each_failure_in_a_row_and_falls_to_a_floor() -> None:
    """4, 4^2, 4^3; a success begins anew; the floor is where LONGEST costs `enough`, 9/2 of the damping."""
    steps, nothing = started(curved, enough=0.09), torch.full((30,), math.nan, dtype=torch.float64)
    steps.damping, seen = 0.5, []
    measure(steps, curved)
    for _ in range(3):
        assert not steps.judge(steps.propose(), nothing)
        seen.append(steps.damping)
    assert seen == [2.0, 32.0, 2048.0]
    linear = started(lambda x: A @ x - B, enough=0.09)
    measure(linear, lambda x: A @ x - B)
    linear.damping, linear.failures = 0.021, 2
    x = linear.propose()
    assert linear.judge(x, A @ x - B)
    assert linear.damping == pytest.approx(0.02)
    assert not linear.judge(linear.propose(), nothing)
    assert linear.damping == pytest.approx(0.08)


def test_free_constants_follow() -> None:
    """f = min_c mean (c0 r + c1 - t)^2: value, gradient and curvature are those of the function of x alone."""
    t, X = normal(30, seed=4), normal(30, 3, seed=5)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def r(x: Tensor) -> Tensor:
        return (X @ x).tanh() + X[:, 0]

    def loss(x: Tensor, r: Tensor, c: Tensor) -> Tensor:
        return (c[0] * r + c[1] - t).square().mean()

    def profile(x: Tensor) -> Tensor:
        design = torch.stack([r(x), torch.ones(30).double()], 1)
        return (design @ torch.linalg.solve(design.T @ design, design.T @ t) - t).square().mean()

    bound = torch.full((3,), 9.0).double()
    steps = LevenbergMarquardt(Terms(loss, 30, "scale", None, start), torch.zeros(3).double(), -bound, bound, 1e-5, 3)
    steps.begin(steps.x0, r(steps.x0))
    measure(steps, r)
    assert steps.best.value == pytest.approx(float(profile(steps.x0)))
    assert torch.allclose(steps.gradient(), torch.func.grad(profile)(steps.x0), atol=1e-4)


def test_the_prior_falls_where_rows_are_many_and_holds_where_they_tell_nothing() -> None:
    """The optimum is two units away; then it is nowhere."""
    far = torch.full((5,), 2.0).double()
    tells = started(lambda x: A @ (x - far) + 0.1 * B, "evidence")
    silent = started(lambda x: 0.02 * A @ x - B, "evidence")
    for _ in range(12):
        turn(tells, lambda x: A @ (x - far) + 0.1 * B)
        turn(silent, lambda x: 0.02 * A @ x - B)
    assert torch.allclose(tells.best.x, far, atol=0.15)
    assert tells.alpha < 1
    assert float(silent.best.x.norm()) < 1
    assert silent.log_evidence() <= tells.log_evidence()


def test_a_prior_that_turns_back_settles() -> None:
    """The evidence at each of two places asks for the other's strength. One that asks for the same again is reached."""
    steps = started(curved, "evidence")
    taken = []
    for k in range(400):
        steps._strengthen(100.0 if k % 2 else 0.01)
        taken.append(steps.alpha)
    assert taken[:6] == pytest.approx([0.25, 1, 0.25, 1, 0.5, 0.5 * 4 ** (1 / 3)])
    assert abs(math.log(taken[-1] / taken[-2])) == pytest.approx(math.log(4) / 397, rel=0.01)
    for _ in range(3000):
        steps._strengthen(100.0)
    assert steps.alpha == pytest.approx(100)
    steps.begin(steps.x0, curved(steps.x0))
    steps._strengthen(100.0)
    assert steps.alpha == pytest.approx(4), "a new start knows nothing of the old turns"


def test_goes_on_from_a_state_in_the_same_bits() -> None:
    one, two = started(curved, "evidence", renew=2), started(curved, "evidence", renew=2)
    for _ in range(3):
        turn(one, curved)
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        assert turn(one, curved) == turn(two, curved)
    assert torch.equal(one.best.x, two.best.x)
    assert torch.equal(one.J, two.J)
    assert (one.alpha, one.damping) == (two.alpha, two.damping)
    other = LevenbergMarquardt(one.terms, torch.zeros(4).double(), LOW[:4], HIGH[:4], 0.1, 1)
    with pytest.raises(StructureError, match="5 outer variables, this 4"):
        other.load_state_dict(one.state_dict())


def test_a_scale_needs_a_loss_that_is_not_negative() -> None:
    with pytest.raises(OptionError, match=r"The loss is -1: .*must not be negative\. Add "):
        Terms(squares, 5, "scale").nats(-1.0)
    assert Terms(squares, 5, "scale").nats(math.e) == pytest.approx(2.5)
    assert Terms(squares, 5).nats(2.0) == 10
    assert Terms(squares, 5).nats(math.nan) == math.inf


def test_a_loss_that_shows_no_way_down_is_refused() -> None:
    """One of x alone has a slope; one that is zero needs none."""
    flat = [lambda x, r, c: (r.abs() > 0.1).double().mean(), lambda x, r, c: r.detach().square().mean()]
    for loss, told in [(flat[0], "gradient is zero"), (flat[1], "gradient is zero"), (lambda x, r, c: r.log(), "nan")]:
        terms = Terms(loss, 5)
        place = Place(torch.ones(2).double(), -torch.ones(1).double(), terms.extra, float(loss(0, -torch.ones(1), 0)))
        with pytest.raises(RequirementError, match=told):
            terms.check(place)
    for loss, value in [(lambda x, r, c: x.square().mean(), 1.0), (lambda x, r, c: r.clamp(min=0).mean(), 0.0)]:
        Terms(loss, 5).check(Place(place.x, place.r, place.extra, value))
