"""Where do the algorithms end? At the optimum, where theory says, or far off without variance reduction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.algorithms import Algorithm
from tests.algorithms.problems import Quadratic

A = pzobo.algorithms
CASE = Quadratic(ridge=2.0)
OPTIMUM = CASE.optimum()
EVERY, VAL = np.arange(CASE.rows), np.arange(CASE.val_rows)


def run(method: Algorithm[Any], steps: int, lr: float) -> Any:
    """The objective after some steps of plain SGD."""
    objective = method.start(CASE.problem(), 0)
    optimizer = torch.optim.SGD([objective.x], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        objective.outer_loss().backward()
        optimizer.step()
    return objective


def distance(objective: Any, to: np.ndarray = OPTIMUM) -> float:
    return float(np.linalg.norm(objective.x.detach().numpy() - to) / np.linalg.norm(to))


def test_the_optimum_is_one() -> None:
    assert np.linalg.norm(CASE.hypergradient(OPTIMUM)) < 1e-12
    assert np.linalg.norm(OPTIMUM - CASE.x0) > 0.5


EXACT: dict[str, tuple[Algorithm[Any], int]] = {
    "SOBA": (A.SOBA(0.6), 60),
    "SOBA, difference": (A.SOBA(0.6, products="difference"), 60),
    "MASOBA": (A.MASOBA(0.6, average=0.6), 80),
    "SABA": (A.SABA(0.6), 60),
    "SRBA": (A.SRBA(0.6), 60),
    "FSLA": (A.FSLA(0.6), 60),
    "FdeHBO": (A.FdeHBO(0.6), 60),
    "AmIGO": (A.AmIGO(0.6, steps=3, v_steps=3), 30),
    "MRBO": (A.MRBO(0.6, terms=15, v_lr=0.7), 40),
    "VRBO": (A.VRBO(0.6, steps=1, terms=15, v_lr=0.7), 30),
    "STABLE": (A.STABLE(0.6), 30),
    "DeltaSTN": (A.DeltaSTN(0.6, steps=3, t_lr=0.25), 90),
}


@pytest.mark.parametrize("name", EXACT)
def test_full_batches_lead_to_the_optimum(name: str) -> None:
    method, steps = EXACT[name]
    assert distance(run(method, steps, 0.25)) < 1e-6


def test_at_the_full_batch_variance_reduction_is_soba() -> None:
    plain = run(A.SOBA(0.3), 7, 0.1).x.detach()
    for method in (A.SABA(0.3), A.SABA(0.3, memory="zero"), A.SRBA(0.3, period=3), A.FdeHBO(0.3, products="autodiff")):
        torch.testing.assert_close(run(method, 7, 0.1).x.detach(), plain, rtol=1e-12, atol=1e-12)


# Biased ones


def linear(equations: Any, sizes: list[int]) -> list[np.ndarray]:
    """The root of affine equations in several vectors."""

    def at(flat: np.ndarray) -> np.ndarray:
        return np.concatenate(equations(*np.split(flat, np.cumsum(sizes)[:-1])))

    zero = at(np.zeros(sum(sizes)))
    slope = np.stack([at(u) - zero for u in np.eye(sum(sizes))], 1)
    return np.split(np.linalg.solve(slope, -zero), np.cumsum(sizes)[:-1])


def penalised(weight: float) -> np.ndarray:
    """argmin_x min_y f + weight (g - min g)."""

    def equations(x: Any, y: Any, z: Any) -> list[np.ndarray]:
        return [
            CASE.f_x(x, y, VAL) + weight * (CASE.g_x(x, y, EVERY) - CASE.g_x(x, z, EVERY)),
            CASE.f_y(x, y, VAL) + weight * CASE.g_y(x, y, EVERY),
            CASE.g_y(x, z, EVERY),
        ]

    return linear(equations, [CASE.p, CASE.d, CASE.d])[0]


def test_f2sa_at_a_fixed_penalty_ends_at_the_penalised_optimum() -> None:
    found = run(A.F2SA(0.8, penalty=5.0, growth=0.0, steps=8), 50, 0.2)
    assert distance(found, penalised(5.0)) < 1e-6
    assert distance(found) > 5e-3
    biases = [np.linalg.norm(penalised(w) - OPTIMUM) for w in (50, 100, 200)]
    assert biases[0] / biases[1] == pytest.approx(2, rel=0.05)  # O(1 / penalty)
    assert biases[1] / biases[2] == pytest.approx(2, rel=0.05)


def test_f2sa_with_a_growing_penalty_comes_nearer() -> None:
    fixed = run(A.F2SA(0.8, penalty=2.0, growth=0.0, steps=8), 40, 0.2)
    grown = run(A.F2SA(0.8, penalty=2.0, growth=1.0, steps=8), 40, 0.2)
    assert distance(grown) < distance(fixed) / 5


def test_meha_at_a_fixed_penalty_ends_at_its_stationary_point() -> None:
    s, r = 4.0, 2.0

    def equations(x: Any, y: Any, w: Any) -> list[np.ndarray]:
        return [
            CASE.f_x(x, y, VAL) / s + CASE.g_x(x, y, EVERY) - CASE.g_x(x, w, EVERY),
            CASE.f_y(x, y, VAL) / s + CASE.g_y(x, y, EVERY) - (y - w) / r,
            CASE.g_y(x, w, EVERY) + (w - y) / r,
        ]

    stationary = linear(equations, [CASE.p, CASE.d, CASE.d])[0]
    found = run(A.MEHA(0.6, penalty=s, r=r), 120, 1.0)
    assert distance(found, stationary) < 1e-6
    assert distance(found) > 1e-2


def test_bome_comes_as_near_as_its_steps_are_short() -> None:
    """Its flow keeps q falling and ends at the optimum; what is left comes from the length of a step."""
    near, nearer = (distance(run(A.BOME(0.6, steps=4, y_lr=h), int(12 / h), h)) for h in (0.1, 0.05))
    assert nearer < near / 2
    assert near < 0.02


def test_iaptt_comes_near() -> None:
    """Only as the number of its steps grows does the truncated path tell the whole response."""
    assert distance(run(A.IAPTT(0.7, steps=8, start_lr=0.5), 50, 0.25)) < 1e-3


def test_bvfim_at_fixed_numbers_ends_at_its_stationary_point() -> None:
    reg, barrier = 0.02, 0.02
    found = run(A.BVFIM(0.7, steps=3, y_lr=0.1, y_steps=5, reg=reg, barrier=barrier), 60, 0.2)
    x, y, z = found.x.detach().numpy(), found.carried.y.leaves[0].numpy(), found.carried.z.leaves[0].numpy()
    gap = CASE.g(x, z, EVERY) + reg * z @ z / 2 + reg - CASE.g(x, y, EVERY)
    assert gap > 0
    by_x = CASE.f_x(x, y, VAL) + barrier / gap * (CASE.g_x(x, y, EVERY) - CASE.g_x(x, z, EVERY))
    by_y = CASE.f_y(x, y, VAL) + barrier / gap * CASE.g_y(x, y, EVERY)
    by_z = CASE.g_y(x, z, EVERY) + reg * z
    assert max(np.abs(v).max() for v in (by_x, by_y, by_z)) < 1e-6


def test_bvfim_of_a_large_g() -> None:
    """A constant in g changes nothing, though float32 rounds reg away beside it."""
    case = Quadratic().problem()

    def inner_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return case.inner_loss(x.double(), y.double(), batch).float() + 1e7

    def outer_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return case.outer_loss(x.double(), y.double(), batch).float()

    x0, y0 = case.x0.float(), case.y0.float()
    problem = replace(case, inner_loss=inner_loss, outer_loss=outer_loss, x0=x0, y0=y0)
    found = pzobo.fit(problem, A.BVFIM(0.3), 20, optimizer=torch.optim.SGD, lr=0.1, evaluate_every=0)
    assert found.history[-1]["outer_loss"] < found.history[0]["outer_loss"]


def test_stn_learns_the_response() -> None:
    """The solution of the quadratic is affine in x, so w + T x can be it everywhere; x itself stays here."""
    found = run(A.STN(0.12, steps=50, scale=0.7), 20, 0.0)
    w, t = (v.leaves[0].numpy() for v in (found.carried.w, found.carried.t))
    for x in (0 * CASE.x0, CASE.x0, CASE.x0 + 1):
        np.testing.assert_allclose(w + x @ t, CASE.solution(x), atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [A.BSA(0.6, steps=2, terms=8, v_lr=0.5), A.TTSA(0.6, terms=8, v_lr=0.5), A.SUSTAIN(0.6, 1.0, terms=8, v_lr=0.5)],
    ids=["BSA", "TTSA", "SUSTAIN"],
)
def test_random_products_are_right_in_the_mean(method: Algorithm[Any]) -> None:
    """All data, and the number of factors drawn. The hypergradient is affine in x, so that the mean of the iterates is
    near the optimum, however far each of them is."""
    objective = method.start(CASE.problem(), 0)
    optimizer = torch.optim.SGD([objective.x], lr=0.1)
    found = []
    for _ in range(400):
        optimizer.zero_grad()
        objective.outer_loss().backward()
        optimizer.step()
        found.append(objective.x.detach().numpy().copy())
    mean = np.mean(found[50:], 0)
    each = [np.linalg.norm(x - OPTIMUM) for x in found[50:]]
    assert np.mean(each) > 0.03 * np.linalg.norm(OPTIMUM), "nothing was drawn at random"
    assert np.linalg.norm(mean - OPTIMUM) < 0.02 * np.linalg.norm(OPTIMUM)


def test_sama_ends_where_h_is_taken_for_the_identity() -> None:
    """At the root of df/dx - lr J^T df/dy, y solved: not at the optimum."""
    lr = 0.4

    def slope(x: np.ndarray) -> np.ndarray:
        y = CASE.solution(x)
        return CASE.f_x(x, y, VAL) - CASE.j(x, y, EVERY) @ (lr * CASE.f_y(x, y, VAL))

    zero = slope(0 * CASE.x0)
    root = np.linalg.solve(np.stack([slope(u) - zero for u in np.eye(CASE.p)], 1), -zero)
    found = run(A.SAMA(pzobo.GD(lr, 2), products="autodiff"), 80, 0.25)
    assert distance(found, root) < 1e-6
    assert distance(found) > 1e-2


# Variance reduction


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (A.SABA(0.4, batch_size=5, outer_batch_size=4), 250),
        (A.SRBA(0.4, period=5, batch_size=5, outer_batch_size=4), 100),
        (A.VRBO(0.5, steps=1, period=2, terms=12, v_lr=0.6, batch_size=5, outer_batch_size=4), 40),
    ],
    ids=["SABA", "SRBA", "VRBO"],
)
def test_variance_reduction_reaches_the_optimum_on_batches(method: Algorithm[Any], steps: int) -> None:
    assert distance(run(method, steps, 0.15)) < 1e-6


def test_without_variance_reduction_constant_steps_do_not() -> None:
    assert distance(run(A.SOBA(0.4, batch_size=5, outer_batch_size=4), 250, 0.15)) > 1e-2


def test_storm_with_weights_1_over_k_is_the_mean_of_the_directions() -> None:
    """At a point that does not move: so its variance falls as 1/k, and with weight 1 it does not."""
    method = A.FdeHBO(1e-30, momentum=A.Decay(1.0, 1.0), products="autodiff", batch_size=5, outer_batch_size=4)
    plain = A.FdeHBO(1e-30, momentum=1.0, products="autodiff", batch_size=5, outer_batch_size=4)
    averaged, alone = run(method, 12, 0.0), run(plain, 1, 0.0)
    directions = []
    single = plain.start(CASE.problem(), 0)
    for _ in range(12):
        single.outer_loss().backward()
        assert single.x.grad is not None
        directions.append(single.x.grad.numpy().copy())
        single.x.grad = None
    # x.grad of the last step of the averaged run is the mean of all twelve
    np.testing.assert_allclose(averaged.carried.m_x.leaves[0], np.mean(directions, 0), rtol=1e-12)
    np.testing.assert_allclose(alone.carried.m_x.leaves[0], directions[0], rtol=1e-12)
    assert np.std(directions) > 1e-3
