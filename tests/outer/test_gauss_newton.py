"""Does GaussNewton step to the optimum, measure J, go on from a checkpoint, and refuse what it cannot do?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor
from torch.nn.functional import cross_entropy

import pzobo
from pzobo.errors import (
    AuditWarning,
    DivergenceError,
    NoResponseWarning,
    OptionError,
    RequirementError,
    ScalarLossError,
    StructureError,
)
from pzobo.problems import source_weights
from tests.helpers import normal
from tests.outer.resumed import assert_same

A, B = normal(20, 4), normal(20, seed=1)


def squares(x: Tensor, y: Tensor, val: Tensor) -> Tensor:
    return (y - val).square().mean()


def linear(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    return A @ x


def bent(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    return (A @ x).tanh() + 0.1 * A @ x


def problem(f: Any = squares, x0: Any = None) -> pzobo.Problem:
    return pzobo.Problem(None, f, torch.zeros(4).double() if x0 is None else x0, 0 * B, None, B)


def method(fn: Any, directions: int = 4, mu: float = 1e-3, **options: Any) -> pzobo.GaussNewton:
    jacobian = pzobo.PZOBO(mu=mu, directions=directions)
    return pzobo.GaussNewton(pzobo.BlackBox(fn), jacobian, **{"prior": None, **options})


def test_lands_on_the_bounded_optimum_of_least_squares() -> None:
    found = pzobo.fit(problem(), method(linear, low=-0.1, high=0.2), 8)
    expected = lsq_linear(A.numpy(), B.numpy(), (-0.1, 0.2), method="bvls", tol=1e-14).x
    assert np.allclose(found.x.detach().numpy(), expected, atol=1e-6)
    assert float(squares(found.x, A @ found.x, B)) == pytest.approx(
        float(np.mean((A.numpy() @ expected - B.numpy()) ** 2))
    )
    assert 0 < int(((found.x == -0.1) | (found.x == 0.2)).sum()) < 4


def test_a_start_on_a_bound_that_float32_rounds() -> None:
    task = pzobo.Problem(None, squares, torch.full((4,), 0.1), (0 * B).float(), None, B.float())
    found = pzobo.fit(task, method(lambda x, y0, batch: A.float() @ x, mu=0.01, low=-0.1, high=0.1), 4)
    assert bool(((found.x >= -0.1) & (found.x <= 0.1)).all())
    assert bool((found.x == 0.1).any())
    with pytest.raises(OptionError, match=r"x0 is not between low=0\.2 and high=1"):
        pzobo.fit(task, method(linear, low=0.2, high=1), 2)


def test_its_hypergradient_is_that_of_pzobo_with_all_directions() -> None:
    """And both are the derivative, up to mu."""
    exact = pzobo.PZOBO(1e-3, 4, pzobo.Coordinate(), shrink=False)
    slopes = []
    for which in (method(bent), pzobo.Method(pzobo.BlackBox(bent), exact, audit=False)):
        objective = which.start(problem())
        objective.outer_loss().backward()
        slopes.append(objective.x.grad)
    assert torch.allclose(*slopes, atol=1e-9)
    true = torch.func.grad(lambda x: squares(x, bent(x, None, None), B))(torch.zeros(4).double())
    assert torch.allclose(slopes[0], true, atol=2e-3)


def test_differences_are_as_wide_as_x_can_hold_them() -> None:
    """In float32 1000 and 1000.001 are .00098 apart: J by .001 would be wrong by 2 %."""
    x0 = torch.full((4,), 1e3)
    objective = method(lambda x, y0, batch: A @ (x.double() - 1e3)).start(problem(x0=x0))
    objective.outer_loss().backward()
    assert torch.allclose(objective.steps.J, A, rtol=1e-9)
    assert torch.allclose(objective.x.grad, (-0.1 * A.T @ B).float(), rtol=1e-5)


@pytest.mark.parametrize(
    ("x0", "near"),
    [
        ({"a": torch.zeros(3), "b": torch.zeros(1, dtype=torch.float64)}, 1e-6),
        ({"a": torch.zeros(3, dtype=torch.float16), "b": torch.zeros(1, dtype=torch.float16)}, 1e-3),
    ],
)
def test_variables_of_any_precision(x0: dict[str, Tensor], near: float) -> None:
    """Each tensor of x rounds what is proposed, and a bound, as its dtype does."""
    found = pzobo.fit(
        problem(squares, x0),
        method(lambda x, y0, batch: A @ torch.cat([x["a"].double(), x["b"].double()]), mu=0.05, low=-0.1, high=0.2),
        8,
    )
    expected = lsq_linear(A.numpy(), B.numpy(), (-0.1, 0.2), method="bvls", tol=1e-14).x
    assert np.allclose(torch.cat([found.x["a"].double(), found.x["b"].double()]).detach().numpy(), expected, atol=near)


def test_x_is_always_the_best_and_trainings_are_counted() -> None:
    objective = method(bent, directions=2).start(problem())
    values = []
    for _ in range(6):
        values.append(float(objective.outer_loss().detach()))
        objective.outer_loss().backward()
        objective.move([])
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.9 * values[0]
    # x0, 4 columns, 2 for the smoothness, 6 steps, at least 2 columns before each of the last 5
    assert objective.trainings >= 1 + 4 + 2 + 6 + 2 * 5
    y = bent(objective.x.detach(), None, None)
    assert torch.equal(objective.y, y)
    assert objective.evaluate()["trainings"] == objective.trainings


def test_no_optimizer_moves_x() -> None:
    runs = [pzobo.fit(problem(), method(bent), 4, lr=lr) for lr in (1e-3, 10.0)]
    assert torch.equal(runs[0].x, runs[1].x)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(RequirementError, match="own steps"):
        pzobo.fit(problem(), method(bent), 4, lr=0.1, scheduler=plateau)


@pytest.mark.parametrize("prior", [None, "evidence"])
def test_resumed_in_the_same_bits(prior: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate_every": 1, "checkpoint_every": 1, "lr": 0.1}
    which = method(bent, directions=1, prior=prior)
    whole = pzobo.fit(problem(), which, 7, out=tmp_path / "whole", **options)
    for steps in (2, 3, 6, 7):
        parts = pzobo.fit(problem(), which, steps, out=tmp_path / "parts", resume=True, **options)
    assert torch.equal(whole.x, parts.x)
    assert [row["outer_loss"] for row in whole.history] == [row["outer_loss"] for row in parts.history]
    states = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=False) for name in ("whole", "parts")]
    assert_same(*(state["objective"] for state in states))


def test_a_network_inside_and_what_f_sees_of_it() -> None:
    """Source weights: steps on the logits, and on the weights of the network; the problem's own f is what is shown."""
    task = source_weights("digits", sources=4, size=40, hidden=8, seed=0)
    adam, jacobian = pzobo.Adam(0.02, 30), pzobo.PZOBO(mu=0.1, directions=4)
    seen = {
        "outputs": lambda x, y, val: task.logits(x, y, val[0]),
        "loss": lambda logits, val: cross_entropy(logits, val[1]),
    }
    for options in (seen, {}):
        found = pzobo.fit(task, pzobo.GaussNewton(adam, jacobian, low=-5, high=5, **options), 5, evaluate_every=1)
        losses = [row["val_loss"] for row in found.history]
        assert losses[-1] < 0.95 * losses[0]
        assert found.history[-1]["outer_loss"] == pytest.approx(losses[-1], rel=1e-5)
        assert found.x[0] > found.x[-1], "the last source has no right label"
        assert found.history[0]["audit_roughness"] < 0.5
    several = {**seen, "outputs": lambda x, y, val: (task.logits(x, y, val[0]), x)}
    with pytest.raises(OptionError, match="returned tuple: it must be one tensor"):
        pzobo.fit(task, pzobo.GaussNewton(adam, jacobian, **several), 2)
    wrong = {**seen, "loss": lambda logits, val: 2 * cross_entropy(logits, val[1])}
    with pytest.raises(OptionError, match="make them one"):
        pzobo.fit(task, pzobo.GaussNewton(adam, jacobian, **wrong), 2)


def test_what_f_has_of_x_alone_cannot_be_left_out() -> None:
    """At x0 = 0 a penalty of x is nothing: both losses are one there, and nowhere else."""

    def penalised(x: Tensor, y: Tensor, val: Tensor) -> Tensor:
        return squares(x, y, val) + 0.3 * x.square().sum()

    seen = {"outputs": lambda x, y, val: y, "loss": lambda y, val: (y - val).square().mean()}
    with pytest.raises(OptionError, match=r"make them one\. What f has of x alone cannot be in `loss`"):
        pzobo.fit(problem(penalised), method(linear, **seen), 8)
    found = pzobo.fit(problem(penalised), method(linear), 8)
    expected = torch.linalg.solve(A.T @ A / 20 + 0.3 * torch.eye(4).double(), A.T @ B / 20)
    assert torch.allclose(found.x, expected, atol=1e-6)


def test_an_f_that_falls_to_its_rounding_stops_no_run(tmp_path: Path) -> None:
    """Both losses are one but for 1e-8, which is all that is left of f where y meets its target; after a stop too."""
    target = A @ torch.full((4,), 0.5).double()
    near = pzobo.Problem(None, squares, torch.zeros(4), (0 * B).float(), None, target.float())
    seen = {"outputs": lambda x, y, val: y, "loss": lambda y, val: (y - val).square().mean() + 1e-8}
    steps = method(lambda x, y0, batch: A.float() @ x, mu=1e-2, **seen)
    found = pzobo.fit(near, steps, 8)
    assert found.history[-1]["outer_loss"] < 1e-7
    assert torch.allclose(found.x, torch.full((4,), 0.5), atol=1e-4)
    pzobo.fit(near, steps, 2, out=tmp_path)
    assert torch.equal(pzobo.fit(near, steps, 8, out=tmp_path, resume=True).x, found.x)


def test_a_prior_asks_for_rows_that_the_data_do_not_tell() -> None:
    """With one row instead of twenty it holds x to x0: f is a mean over what the loss has from elsewhere."""
    for val in (None, {"a": torch.ones(3), "b": B}):
        task = pzobo.Problem(None, lambda x, y, _: squares(x, y, B), torch.zeros(4).double(), 0 * B, None, val)
        with pytest.raises(OptionError, match=r"has (no tensor with|tensors of 3, 20) rows, so.*rows=\.\.\."):
            pzobo.fit(task, method(linear, prior="evidence"), 2)
        found = pzobo.fit(task, method(linear, prior="evidence", rows=20), 4)
        wanted = pzobo.fit(problem(), method(linear, prior="evidence"), 4)
        assert torch.equal(found.x, wanted.x)
        assert pzobo.fit(task, method(linear), 4).history[-1]["outer_loss"] == pytest.approx(
            pzobo.fit(problem(), method(linear), 4).history[-1]["outer_loss"], rel=1e-3
        )


def test_trees_of_variables_and_random_training() -> None:
    """Two tensors in x, and a training that draws: every one draws the same."""

    def noisy(x: dict[str, Tensor], y0: Tensor, batch: Any) -> Tensor:
        return A[:, :3] @ x["a"] + A[:, 3] * x["b"] + 0.1 * torch.randn(20, dtype=torch.float64)

    def f(x: Any, y: Tensor, val: Tensor) -> Tensor:
        return squares(x, y, val) + 0.1 * x["b"] ** 2

    x0 = {"a": torch.zeros(3).double(), "b": torch.zeros(()).double()}
    found = pzobo.fit(problem(f, x0), method(noisy), 8, seed=3)
    torch.manual_seed(3)
    r = B - 0.1 * torch.randn(20, dtype=torch.float64)
    D = torch.diag(torch.tensor([0, 0, 0, 0.1 * 20]).double())
    expected = torch.linalg.solve(A.T @ A + D, A.T @ r)
    assert torch.allclose(torch.cat([found.x["a"], found.x["b"][None]]), expected, atol=1e-6)


def test_black_boxes_side_by_side_have_the_same_bits() -> None:
    pytest.importorskip("joblib")
    one, two = (pzobo.GaussNewton(pzobo.BlackBox(bent, jobs=jobs), pzobo.PZOBO(1e-3, 4)) for jobs in (1, 2))
    runs = [pzobo.fit(problem(), which, 3, evaluate_every=1) for which in (one, two)]
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].history[-1]["trainings"] == runs[1].history[-1]["trainings"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_training_that_diverges_is_stepped_back_from(jobs: int) -> None:
    """The optimum is where there is no y: x stays on this side, and near the edge."""
    which = pzobo.GaussNewton(pzobo.BlackBox(half, jobs=jobs), pzobo.PZOBO(1e-2, 4), prior=None)
    with pytest.raises(DivergenceError, match="NaN"):
        pzobo.fit(problem(x0=torch.full((4,), -0.5).double()), which, 2)
    found = pzobo.fit(problem(), which, 14, evaluate_every=1)
    assert lsq_linear(A.numpy(), B.numpy()).x[3] > 0.5
    assert 0.05 < found.x[3] <= 0.1
    assert found.history[-1]["outer_loss"] < 0.97 * found.history[0]["outer_loss"]


def half(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    return A @ x if -0.4 < x[3] <= 0.1 else torch.full((20,), torch.nan).double()


def in_float64(x: Tensor, y0: Tensor, batch: Any) -> Any:
    return np.tanh(A.numpy() @ x.double().numpy())


def two_shapes(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    return (A @ x)[: 10 if x[1] > 0 else 20]


def test_answers_of_jobs_are_looked_at_as_others_are() -> None:
    """They are turned into what y0 is, and must have its shape."""
    pytest.importorskip("joblib")
    single = pzobo.Problem(None, squares, torch.zeros(4), torch.zeros(20), None, B.float())
    J = []
    for jobs in (1, 2):
        which = pzobo.GaussNewton(pzobo.BlackBox(in_float64, jobs=jobs), pzobo.PZOBO(1e-3, 4), prior=None)
        objective = which.start(single)
        objective.outer_loss().backward()
        J.append(objective.steps.J)
    assert torch.equal(*J)
    which = pzobo.GaussNewton(pzobo.BlackBox(two_shapes, jobs=2), pzobo.PZOBO(1e-3, 4), prior=None)
    with pytest.raises(StructureError, match=r"shape \(10,\) where y0 has \(20,\)"):
        pzobo.fit(problem(), which, 2)


def test_a_rough_response_is_told() -> None:
    def steps(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        return (torch.floor(1e5 * x.sum()) * torch.arange(1, 21).double() ** 2).sin()

    with pytest.warns(AuditWarning, match="kappa"):
        pzobo.fit(problem(), method(steps), 2)
    with pytest.warns(AuditWarning, match="diverges 0.4 or less away from x0.*smaller mu"):
        pzobo.fit(problem(), method(half, mu=0.2), 2)


def test_what_tells_no_step_is_told() -> None:
    """A y that does not respond, differences that are lost in the rounding of x, and losses that have no slope."""
    far = pzobo.Problem(None, squares, torch.full((4,), 1e7), (0 * B).float(), None, B.float())
    for task, fn in [
        (problem(), lambda x, y0, batch: A @ (0 * x)),
        (far, lambda x, y0, batch: A.float() @ (x - 1e7)),
    ]:
        with pytest.warns(NoResponseWarning, match="y does not change with x at all.*mu=0.001"):
            assert torch.equal(pzobo.fit(task, method(fn), 2).x, task.x0)
    for f, kind, told in [
        (lambda x, y, val: squares(x, y.detach(), val), RequirementError, "gradient is zero in every output"),
        (lambda x, y, val: (y - val).square(), ScalarLossError, r"outer loss returned .* shape \(20,\)"),
    ]:
        with pytest.raises(kind, match=told):
            pzobo.fit(problem(f), method(linear), 2)


def test_options() -> None:
    box = pzobo.BlackBox(linear)
    for options, told in (
        ({"jacobian": pzobo.Direct()}, "PZOBO"),
        ({"jacobian": pzobo.PZOBO(sampler=pzobo.Orthogonal())}, "coordinates"),
        ({"jacobian": pzobo.PZOBO(at="z")}, "coordinates"),
        ({"outputs": lambda x, y, val: y}, "together"),
        ({"prior": "strong"}, "evidence"),
        ({"prior": -1.0}, "evidence"),
        ({"rows": 0}, "rows"),
        ({"low": 1.0, "high": 0.0}, "below"),
    ):
        with pytest.raises(OptionError, match=told):
            pzobo.GaussNewton(box, **{"jacobian": pzobo.PZOBO(), **options})
    with pytest.raises(OptionError, match="not between"):
        pzobo.fit(problem(), method(linear, low=1.0, high=2.0), 1)
    with pytest.raises(OptionError, match="four times"):
        pzobo.fit(problem(), method(linear, mu=1.0, low=-1.0, high=1.0), 1)


def test_two_strengths_of_the_prior_do_not_take_turns_for_ever() -> None:
    """The evidence at each of two places asks for the strength of the other: f was .380, .427, .380, ..."""
    drawn = torch.Generator().manual_seed(0)
    w, X, V, noise, more = (torch.randn(*shape, generator=drawn) for shape in ((6,), (60, 6), (60, 6), (60,), (60,)))
    w[3:] = 0
    train, val = (X, X @ w + 0.5 * noise), (V, V @ w + 0.5 * more)

    def inner(x: Any, y: Tensor, batch: Any) -> Tensor:
        return (batch[0] @ y - batch[1]).square().mean() + (x["decay"].exp() * y.square()).sum() + 0 * x["shift"]

    def outer(x: Any, y: Tensor, batch: Any) -> Tensor:
        return (batch[0] @ y + x["shift"] - batch[1]).square().mean()

    start = {"decay": torch.full((6,), -2.0), "shift": torch.tensor(0.0)}
    ridge = pzobo.Problem(inner, outer, start, torch.zeros(6), train, val)
    steps = pzobo.GaussNewton(pzobo.GD(0.1, 100), pzobo.PZOBO(mu=0.05, directions=7), compile=False)
    losses = [row["outer_loss"] for row in pzobo.fit(ridge, steps, 16).history]
    assert abs(losses[-1] - losses[-2]) < 0.005
