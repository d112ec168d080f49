"""Is the length of a difference the best one, and the error that is expected of it true?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.inner.probe import Probe, expected_errors
from tests.helpers import relative_error

LADDER = [4.0**k for k in range(-4, 6)]


@settings(deadline=None)
@given(
    rounding=st.floats(-8, -3),
    truncation=st.floats(-8, -3),
    luck=st.lists(st.floats(0.3, 3), min_size=len(LADDER), max_size=len(LADDER)),
)
def test_the_laws_are_found_again(rounding: float, truncation: float, luck: list[float]) -> None:
    """Differences that err by r/e + t e^2, rounding with luck: the length found errs hardly more than the best one."""
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    signs = [direction.roll(k) * (-1) ** k / direction.norm() for k in range(len(LADDER))]
    errors = [10**rounding / e for e in LADDER]
    ladder = [
        (direction + 10**truncation * e**2 * direction + r * chance * sign,)
        for e, r, chance, sign in zip(LADDER, errors, luck, signs, strict=True)
    ]
    found = expected_errors(ladder)
    true = [10**rounding / e + 10**truncation * e**2 for e in LADDER]
    chosen = true[found.index(min(found))]
    assert chosen < 30 * min(true)


def gradient(
    inner_loss: Callable[..., Tensor], x: Tensor, y0: Tensor, solver: Any, products: Any
) -> tuple[Tensor, Any]:
    x = x.clone().requires_grad_()
    argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled(products=products))
    argmin(x, y0)[0].backward()
    assert x.grad is not None
    return x.grad, argmin


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-2), (torch.float64, 1e-5)], ids=str)
@pytest.mark.parametrize("solver", [pzobo.GD(0.2, 10), pzobo.HeavyBall(0.1, 0.8, 10)], ids=["GD", "HeavyBall"])
@pytest.mark.parametrize("p", ["one", "all"])
@pytest.mark.parametrize("d", [10**2, 10**4, 10**6])
def test_one_of_many_variables(d: int, p: str, solver: Any, dtype: torch.dtype, bound: float) -> None:
    """dg/dx by one x is a sum of d numbers, in which the change of one is lost unless the probe is long."""
    x = torch.ones((), dtype=dtype) if p == "one" else torch.ones(d, dtype=dtype)
    g = lambda x, y, batch: (0.5 * (y - x).square() + 0.1 * y.pow(4)).sum()  # noqa: E731
    exact, _ = gradient(g, x, torch.ones(d, dtype=dtype), solver, "forward")
    found, argmin = gradient(g, x, torch.ones(d, dtype=dtype), solver, "difference")
    assert relative_error(found, exact) < bound
    assert argmin.last.audit.numbers["differences"] < 0.1


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-2), (torch.float64, 1e-5)], ids=str)
@pytest.mark.parametrize("large", [30.0, 1e3, 1e5])
@pytest.mark.parametrize("seen", [0, 1])
def test_variables_of_different_size(seen: int, large: float, dtype: torch.dtype, bound: float) -> None:
    """Coupled by a Hessian that is full."""
    sizes = torch.tensor([large, 0.01], dtype=dtype)
    coupled = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=dtype)

    def g(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return 0.5 * y @ (coupled @ y) - (x * sizes * y).sum()

    def run(products: Any) -> Tensor:
        x = torch.ones(2, dtype=dtype, requires_grad=True)
        argmin = pzobo.Argmin(g, solver=pzobo.GD(0.1, 10), jacobian=pzobo.Unrolled(products=products))
        argmin(x, 0.8 * sizes)[seen].backward()
        assert x.grad is not None
        return x.grad

    assert relative_error(run("difference"), run("autodiff")) < bound


def test_what_rounding_hides_is_said() -> None:
    """d2g/dy0 dy1 is 1e-6 beside a gradient of 1e4: no difference in float32 shows it, and the answer hangs on it."""
    sizes = torch.tensor([1e5, 0.01])

    def g(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return 0.5 * (y - x * sizes).square().sum() + 0.1 * (y[0] / 1e5).sin() * y[1]

    x = torch.ones(2, requires_grad=True)
    argmin = pzobo.Argmin(g, solver=pzobo.GD(0.1, 10), jacobian=pzobo.Unrolled(products="difference"))
    with pytest.warns(pzobo.errors.AuditWarning, match="lacks a part"):
        argmin(x, 0.8 * sizes)[1].backward()


def test_lengths_are_looked_for_at_first_and_kept_where_they_are_good() -> None:
    probe, made = Probe(), []

    def difference(length: float) -> Any:
        made.append(length)
        return (torch.tensor([1.0 + length**2 + 1e-7 / length], dtype=torch.float64),), ()

    probe.adjust(1, 1e-7, difference)
    first = len(made)
    assert first > 6
    assert probe.error < 1e-3
    probe.adjust(1, 1e-7, difference)
    assert len(made) == first  # once a pass
    probe.adjust(2, 1e-7, difference)
    assert len(made) == first + 3  # a look around
    other = Probe()
    other.load_state_dict(probe.state_dict())
    assert (other.factors, other.error) == (probe.factors, probe.error)


def test_one_length_serves_both_products_unless_it_serves_one_badly() -> None:
    def difference(by_y: float, by_z: float) -> Callable[[float], Any]:
        def of(length: float) -> Any:
            y = torch.tensor([1.0 + length**2 + by_y / length], dtype=torch.float64)
            return (y,), (torch.tensor([1.0 + 1e-9 * length**2 + by_z / length], dtype=torch.float64),)

        return of

    alike, apart = Probe(), Probe()
    alike.adjust(1, 1e-7, difference(1e-7, 1e-7))
    apart.adjust(1, 1e-7, difference(1e-7, 1e-2))
    assert not alike.split
    assert apart.split
    assert apart.factors[1] > 10 * apart.factors[0]
    assert math.isfinite(apart.error)
