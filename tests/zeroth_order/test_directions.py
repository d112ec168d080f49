"""Are the directions what the samplers say: isotropic, orthogonal, independent, repeatable, and as noisy as derived?"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.errors import OptionError
from pzobo.zeroth_order.directions import Sampler, Space
from pzobo.zeroth_order.estimate import estimate
from tests.helpers import bowl, leaf, normal, relative_error

ISOTROPIC = [pzobo.Gaussian, pzobo.Sphere, pzobo.Rademacher, pzobo.Orthogonal, pzobo.Coordinate]
KINDS = [*ISOTROPIC, pzobo.UnitPerTensor]
BASES = [pzobo.Orthogonal, pzobo.Coordinate]


def space(*sizes: int, dtype: torch.dtype = torch.float64) -> Space:
    return Space(sizes, torch.device("cpu"), dtype)


def draws(sampler: Sampler, count: int, within: Space, key: int | None = None) -> Tensor:
    key = sampler.key() if key is None else key
    return torch.stack([sampler.draw(key, j, count, within) for j in range(count)])


# Second moments


@pytest.mark.parametrize("kind", ISOTROPIC)
def test_the_second_moment_is_the_identity(kind: Any) -> None:
    """E[u u^T] = I, each entry within 4.5 of its own standard errors; one direction from each of 3000 calls."""
    sampler, within = kind(seed=0), space(2, 3)
    outer = torch.stack([torch.outer(u, u) for u in (draws(sampler, 1, within)[0] for _ in range(3000))])
    mean, error = outer.mean(0), outer.std(0) / math.sqrt(len(outer))
    assert ((mean - torch.eye(5, dtype=mean.dtype)).abs() <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_zero_or_the_estimate_does_not_see_it(kind: Any) -> None:
    """Coordinates have no random sign: an estimate has u twice, and does not need one."""
    u = torch.stack([draws(kind(seed=j), 1, space(4))[0] for j in range(400)])
    if kind is pzobo.Coordinate:
        assert (u >= 0).all()
    else:
        assert (u.mean(0).abs() <= 4.5 * u.std(0) / math.sqrt(len(u))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind: Any) -> None:
    """`length` is the root mean square; all but the Gaussian's are exact."""
    sampler, within = kind(seed=0), space(3, 4, 5)
    squares = draws(sampler, 600, within).square().sum(1)
    expected = sampler.length(within.sizes) ** 2
    if kind is pzobo.Gaussian:
        assert float(squares.mean()) == pytest.approx(expected, abs=4 * float(squares.std()) / math.sqrt(600))
    else:
        torch.testing.assert_close(squares, torch.full_like(squares, expected))


def test_values_of_each_kind() -> None:
    within = space(3, 4)
    assert set(draws(pzobo.Rademacher(seed=0), 50, within).unique().tolist()) == {-1.0, 1.0}
    coordinate = draws(pzobo.Coordinate(seed=0), 7, within)
    assert sorted(coordinate.argmax(1).tolist()) == list(range(7))
    torch.testing.assert_close(coordinate @ coordinate.T, 7 * torch.eye(7, dtype=torch.float64))
    for u in draws(pzobo.UnitPerTensor(seed=0), 5, within):
        assert [float(part.norm()) for part in u.split([3, 4])] == pytest.approx([1.0, 1.0])
    gaussian = draws(pzobo.Gaussian(seed=0), 2000, within).reshape(-1)
    assert float(gaussian.pow(4).mean()) == pytest.approx(3.0, abs=0.4)
    assert float(gaussian.abs().max()) > 3


# Bases


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 2, 3, 7, 8, 97, 100])
@pytest.mark.parametrize("kind", BASES)
def test_p_directions_are_an_orthogonal_basis(kind: Any, p: int, dtype: torch.dtype) -> None:
    u = draws(kind(seed=p), p, space(p, dtype=dtype))
    assert u.dtype == dtype
    tolerance = 50 * p**0.5 * torch.finfo(dtype).eps
    torch.testing.assert_close(u @ u.T / p, torch.eye(p, dtype=dtype), rtol=0, atol=tolerance)


@given(p=st.integers(1, 40), count=st.integers(1, 90), key=st.integers(0, 2**62), kind=st.sampled_from(BASES))
@settings(max_examples=60, deadline=None)
def test_every_p_directions_are_a_new_basis(p: int, count: int, key: int, kind: Any) -> None:
    u = draws(kind(seed=0), count, space(p), key)
    for first in range(0, count, p):
        part = u[first : first + p]
        torch.testing.assert_close(part @ part.T / p, torch.eye(len(part), dtype=u.dtype), rtol=0, atol=1e-12)
    if count >= 2 * p and p >= 8:
        assert not torch.equal(u[:p], u[p : 2 * p])


def test_a_large_orthogonal_row_is_precise_in_float32() -> None:
    """The phase of a cosine with p = 200,003 is exact, not float32's of a number in the billions."""
    sampler, p = pzobo.Orthogonal(seed=1), 200_003
    single, double = (draws(sampler, 2, space(p, dtype=t), key=9) for t in (torch.float32, torch.float64))
    assert abs(float(double[0] @ double[1])) / p < 1e-12
    assert float(single[0].double().square().sum()) / p == pytest.approx(1.0, abs=1e-5)
    assert abs(float(single[0].double() @ single[1].double())) / p < 1e-5


# Streams


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits_and_calls_go_on(kind: Any) -> None:
    one, two, within = kind(seed=4), kind(seed=4), space(3, 4)
    first = draws(one, 3, within)
    assert torch.equal(first, draws(two, 3, within))
    second = draws(one, 3, within)
    assert not torch.equal(first, second)
    assert torch.equal(second, draws(two, 3, within))
    assert not torch.equal(first, draws(kind(seed=5), 3, within))


@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_is_a_function_of_key_and_number_alone(kind: Any) -> None:
    """In any order, with any other draw between, and without touching the global random state."""
    sampler, within = kind(seed=0), space(5, 3)
    state = torch.get_rng_state()
    forward = [sampler.draw(77, j, 6, within) for j in range(6)]
    sampler.key()
    backward = [sampler.draw(77, j, 6, within) for j in reversed(range(6))]
    assert all(torch.equal(u, w) for u, w in zip(forward, reversed(backward), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", [pzobo.Gaussian, pzobo.Sphere, pzobo.Rademacher, pzobo.UnitPerTensor])
@pytest.mark.parametrize("by", ["number", "key"])
def test_neighbours_are_uncorrelated(kind: Any, by: str) -> None:
    """Directions of neighbouring numbers, and of neighbouring keys, at p = 20,000: their cosine is about 1/sqrt(p)."""
    sampler, within = kind(), space(20_000)
    u = torch.stack([sampler.draw(j if by == "key" else 5, 0 if by == "key" else j, 8, within) for j in range(8)])
    cosines = (u @ u.T / u.square().sum(1)[0]).fill_diagonal_(0)
    assert float(cosines.abs().max()) < 5 / math.sqrt(20_000)


def test_without_a_seed_the_stream_is_torchs_own() -> None:
    within = space(4)
    torch.manual_seed(1)
    first = draws(pzobo.Gaussian(), 2, within), draws(pzobo.Gaussian(), 2, within)
    torch.manual_seed(1)
    sampler = pzobo.Gaussian()
    second = draws(sampler, 2, within), draws(sampler, 2, within)
    assert all(torch.equal(u, w) for u, w in zip(first, second, strict=True))
    assert not torch.equal(*first)


def test_a_seeded_sampler_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    pzobo.Gaussian(seed=0).key()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_is_shared_with_its_owner() -> None:
    mine = torch.Generator().manual_seed(3)
    one, two = pzobo.Gaussian(generator=mine), pzobo.Rademacher(generator=mine)
    keys = [one.key(), two.key(), one.key()]
    mine.manual_seed(3)
    assert [one.key() for _ in range(3)] == keys
    assert pzobo.Gaussian(seed=3).key() == keys[0]


def test_seed_and_generator_together_are_refused() -> None:
    with pytest.raises(OptionError, match=r"Sphere.*both seed= and generator="):
        pzobo.Sphere(seed=1, generator=torch.Generator())


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_continues_the_stream(kind: Any) -> None:
    sampler = kind(seed=0)
    sampler.key()
    state = sampler.state_dict()
    rest = [sampler.key() for _ in range(3)]
    other = kind(seed=99)
    other.load_state_dict(state)
    assert [other.key() for _ in range(3)] == rest
    other.load_state_dict(state)  # the state is a value, not a view of the stream
    assert [other.key() for _ in range(3)] == rest


def test_a_checkpoint_of_an_argmin_continues_its_directions(tmp_path: Any) -> None:
    def fresh(seed: int) -> pzobo.Argmin:
        jacobian = pzobo.PZOBO(1e-4, 2, pzobo.Gaussian(seed=seed))
        return pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 2), jacobian=jacobian)

    def gradient(argmin: pzobo.Argmin) -> Tensor:
        x = leaf(3)
        return torch.autograd.grad(argmin(x, torch.zeros(3, dtype=torch.float64)).sum(), x)[0]

    argmin, other = fresh(0), fresh(1)
    gradient(argmin)
    torch.save(argmin.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for _ in range(2):
        assert torch.equal(gradient(argmin), gradient(other))


def test_checkpoints_with_and_without_a_stream_do_not_mix() -> None:
    seeded, free = pzobo.Gaussian(seed=0), pzobo.Gaussian()
    assert free.state_dict() == {}
    free.load_state_dict({})
    for sampler, state in ((seeded, {}), (free, seeded.state_dict())):
        with pytest.raises(OptionError, match="seed= or generator="):
            sampler.load_state_dict(state)
    argmin = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 2), jacobian=pzobo.PZOBO(sampler=pzobo.Gaussian(seed=0)))
    direct = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 2), jacobian=pzobo.Direct())
    with pytest.raises(OptionError):
        argmin.load_state_dict(direct.state_dict())


# Batching


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 5, 12])
def test_the_directions_do_not_depend_on_the_batching(kind: Any, count: int) -> None:
    """Which are drawn can be seen from a linear map: its estimate, at any chunk size."""
    x, v, A = (normal(2, 3), normal(seed=1)), (normal(4, seed=2),), normal(4, 7, seed=3)

    def delta(u: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (A @ torch.cat([t.reshape(-1) for t in u]),)

    results = [
        estimate(delta, 1.0, v, x, sampler=kind(), key=3, directions=count, shrink=False, chunk=chunk)
        for chunk in (1, 2, 5, 64)
    ]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-12, atol=1e-12)


# How noisy


def errors(kind: Any, sizes: tuple[int, ...], count: int, shrink: bool, repeats: int) -> Tensor:
    """Relative squared errors of the estimate of A^T v, for one linear map."""
    p = sum(sizes)
    A, v = normal(4, p, seed=3), (normal(4, seed=2),)
    x = tuple(torch.zeros(size, dtype=torch.float64) for size in sizes)
    sampler, exact = kind(seed=1), A.T @ v[0]
    found = []
    for _ in range(repeats):
        answer = estimate(
            lambda u: (A @ torch.cat(u),),
            1.0,
            v,
            x,
            sampler=sampler,
            key=sampler.key(),
            directions=count,
            shrink=shrink,
            chunk=1,
        )
        found.append(relative_error(torch.cat(answer), exact) ** 2)
    return torch.tensor(found, dtype=torch.float64)


def agrees(sample: Tensor, expected: float) -> bool:
    return abs(float(sample.mean()) - expected) <= 4.5 * float(sample.std()) / math.sqrt(len(sample)) + 1e-9


@pytest.mark.parametrize("count", [1, 3, 6, 8, 12])
@pytest.mark.parametrize("kind", [*ISOTROPIC, pzobo.UnitPerTensor])
def test_the_formula_for_the_relative_error(kind: Any, count: int) -> None:
    """p = 6: also past p, where a basis is exact at its multiples."""
    sample = errors(kind, (6,), count, False, 500)
    expected = kind().relative_error(6, count)
    assert agrees(sample, expected), (float(sample.mean()), expected)


@pytest.mark.parametrize("count", [1, 3, 6, 8])
@pytest.mark.parametrize("kind", ISOTROPIC)
def test_shrinking_gives_the_least_mean_squared_error(kind: Any, count: int) -> None:
    """With relative error r and s = 1/(1 + r): the mean squared error is 1 - s, and at no other s is it less."""
    sampler = kind()
    r, s = sampler.relative_error(6, count), sampler.shrinkage(6, count)
    assert s == pytest.approx(1 / (1 + r))
    assert agrees(errors(kind, (6,), count, True, 500), 1 - s)
    for other in (0.9 * s, 1.1 * s):
        assert (1 - other) ** 2 + other**2 * r >= 1 - s


def test_formulas_of_the_design() -> None:
    for p, count in ((5, 1), (100, 7), (30, 30)):
        assert pzobo.Gaussian().relative_error(p, count) == pytest.approx((p + 1) / count)
        assert pzobo.Gaussian().shrinkage(p, count) == pytest.approx(count / (count + p + 1))
        assert pzobo.Sphere().relative_error(p, count) == pytest.approx((p - 1) / count)
        assert pzobo.Rademacher().relative_error(p, count) == pytest.approx((p - 1) / count)
        for kind in BASES:
            assert kind().relative_error(p, count) == pytest.approx(p / count - 1)
            assert kind().shrinkage(p, count) == pytest.approx(count / p)
        assert pzobo.UnitPerTensor().shrinkage(p, count) == 1


def test_unit_per_tensor_shrinks_each_tensor_by_its_size() -> None:
    A, v, sampler = normal(4, 8, seed=3), (normal(4, seed=2),), pzobo.UnitPerTensor(seed=0)
    x = (torch.zeros(2, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))
    found = torch.cat(
        estimate(
            lambda u: (A @ torch.cat(u),),
            1.0,
            v,
            x,
            sampler=sampler,
            key=0,
            directions=8000,
            shrink=True,
            chunk=8000,
        )
    )
    expected = (A.T @ v[0]) / torch.tensor([2.0] * 2 + [6.0] * 6)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05 * float(expected.norm()))
