"""Does kappa tell lines, curves and steps apart, and is what cannot be measured refused?"""

from __future__ import annotations

import math

import pytest
import torch

from pzobo.errors import NoResponseWarning, RoughResponseError
from pzobo.response.roughness import Smoothness, kappa
from tests.helpers import normal


def test_kappa_of_known_functions() -> None:
    a, b = normal(20), normal(20, seed=1)
    assert kappa(a, a + b, a + 2 * b) < 1e-15
    # r = t^2 b: (4 - 2) / 4
    assert kappa(0 * b, b, 4 * b) == pytest.approx(0.5)
    # one step, between x and x + h
    assert kappa(a, b, b) == pytest.approx(1.0)
    assert kappa(a, b, a) == math.inf
    assert math.isnan(kappa(a, a, a))
    assert kappa(a, a, math.nan * a) == math.inf
    many = [normal(2000, seed=s) for s in (2, 3, 4)]
    assert kappa(*many) == pytest.approx(math.sqrt(3), rel=0.1)  # three unrelated values


def test_what_is_refused() -> None:
    Smoothness({0.1: 0.05}).check()
    Smoothness({0.1: 1.3, 0.2: 0.5}).check()
    with pytest.raises(RoughResponseError, match=r"kappa = 0\.98.*Optuna"):
        Smoothness({0.1: 1.3, 0.2: 0.98}).check()
    with pytest.warns(NoResponseWarning, match="do not change"):
        Smoothness({0.1: math.nan}).check()


def test_noise_is_smoother_with_wider_differences() -> None:
    assert Smoothness({0.1: 0.9, 0.2: 0.6, 0.4: 0.4}).noisy
    assert Smoothness({0.1: 0.9, 0.2: 0.4, 0.4: 0.6}).noisy
    assert not Smoothness({0.1: 0.9, 0.05: 0.5, 0.2: 1.2}).noisy
    assert not Smoothness({0.1: 0.2}).noisy
    assert Smoothness({0.1: 0.9, 0.2: 0.6}).width == 0.2
    assert torch.isfinite(torch.tensor(Smoothness({0.1: math.nan, 0.2: 0.5}).kappa))
