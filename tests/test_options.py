"""Is every option that makes no sense refused before anything runs, with a sentence?"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pzobo
from pzobo.errors import (
    DirectionsError,
    OptionError,
)
from tests.helpers import bowl

ZERO = torch.zeros(3, dtype=torch.float64)


def make(loss: Any = bowl, jacobian: Any = None, solver: Any = None, **options: Any) -> pzobo.Argmin:
    return pzobo.Argmin(loss, solver=solver or pzobo.GD(0.1, 4), jacobian=jacobian or pzobo.Unrolled(), **options)


# Directions and other options


@given(directions=st.one_of(st.integers(max_value=0), st.floats(), st.text(max_size=3), st.none(), st.booleans()))
@settings(max_examples=60, deadline=None)
def test_a_number_of_directions_that_is_none(directions: Any) -> None:
    for kind in (lambda q: pzobo.PZOBO(directions=q), lambda q: pzobo.ForwardMode(directions=q)):
        with pytest.raises(DirectionsError, match=r"directions=.*at least 1"):
            kind(directions)


not_positive = st.one_of(
    st.floats(max_value=0), st.just(math.nan), st.just(math.inf), st.none(), st.text(max_size=3), st.just([1.0])
)
not_a_count = st.one_of(
    st.integers(max_value=0), st.floats(), st.text(max_size=3), st.just([1]), st.just(True), st.just(math.inf)
)
not_a_momentum = st.one_of(
    st.floats(max_value=0, exclude_max=True), st.floats(min_value=1), st.just(math.nan), st.none(), st.text(max_size=2)
)
not_betas = st.one_of(
    st.just((0.9,)),
    st.just((0.9, 0.9, 0.9)),
    st.tuples(not_a_momentum, st.just(0.9)),
    st.tuples(st.just(0.9), not_a_momentum),
    st.just(0.9),
)
words = st.text(max_size=5)
WRONG: dict[str, tuple[Any, Any]] = {
    "GD.lr": (lambda w: pzobo.GD(w, 3), not_positive),
    "GD.steps": (lambda w: pzobo.GD(0.1, w), st.one_of(not_a_count, st.none())),
    "HeavyBall.lr": (lambda w: pzobo.HeavyBall(w, 0.9, 3), not_positive),
    "HeavyBall.momentum": (lambda w: pzobo.HeavyBall(0.1, w, 3), not_a_momentum),
    "HeavyBall.steps": (lambda w: pzobo.HeavyBall(0.1, 0.9, w), st.one_of(not_a_count, st.none())),
    "Adam.lr": (lambda w: pzobo.Adam(w, 3), not_positive),
    "Adam.eps": (lambda w: pzobo.Adam(0.1, 3, eps=w), not_positive),
    "Adam.betas": (lambda w: pzobo.Adam(0.1, 3, betas=w), not_betas),
    "PZOBO.at": (lambda w: pzobo.PZOBO(at=w), words.filter(lambda w: w not in ("x", "z", "auto"))),
    "PZOBO.batching": (
        lambda w: pzobo.PZOBO(batching=w),
        st.one_of(words.filter(lambda w: w not in ("auto", "vmap", "loop")), not_a_count),
    ),
    "PZOBO.shrink": (lambda w: pzobo.PZOBO(shrink=w), not_positive),
    "PZOBO.sampler": (lambda w: pzobo.PZOBO(sampler=w), st.one_of(words, st.none(), st.just(pzobo.Gaussian))),
    "ForwardMode.shrink": (lambda w: pzobo.ForwardMode(shrink=w), not_positive),
    "CG.steps": (lambda w: pzobo.CG(w), st.one_of(not_a_count, st.none())),
    "CG.tol": (
        lambda w: pzobo.CG(tol=w),
        st.one_of(st.floats(max_value=0, exclude_max=True), st.just(math.nan), st.none(), words),
    ),
    "CG.damping": (
        lambda w: pzobo.CG(damping=w),
        st.one_of(st.floats(max_value=0, exclude_max=True), st.just(math.nan), st.none(), words),
    ),
    "FixedPoint.steps": (lambda w: pzobo.FixedPoint(w), st.one_of(not_a_count, st.none())),
    "FixedPoint.lr": (lambda w: pzobo.FixedPoint(3, lr=w), not_positive.filter(lambda w: w is not None)),
    "Neumann.step": (lambda w: pzobo.Neumann(w), not_positive),
    "Neumann.terms": (lambda w: pzobo.Neumann(0.1, w), st.one_of(not_a_count, st.none())),
    "Nudged.eps": (lambda w: pzobo.Nudged(w), not_positive.filter(lambda w: w is not None)),
    "Nudged.steps": (lambda w: pzobo.Nudged(steps=w), not_a_count),
    "Unrolled.last": (lambda w: pzobo.Unrolled(last=w), not_a_count),
    "Unrolled.products": (
        lambda w: pzobo.Unrolled(products=w),
        words.filter(lambda w: w not in ("autodiff", "difference")),
    ),
    "Implicit.products": (
        lambda w: pzobo.Implicit(pzobo.CG(), products=w),
        words.filter(lambda w: w not in ("autodiff", "difference")),
    ),
    "Implicit.inverse": (lambda w: pzobo.Implicit(w), st.one_of(words, st.none(), st.just(pzobo.CG))),
}


@pytest.mark.parametrize("option", WRONG)
def test_options_that_make_no_sense(option: str) -> None:
    construct, values = WRONG[option]

    @given(value=values)
    @settings(max_examples=25, deadline=None)
    def refuses(value: Any) -> None:
        with pytest.raises(OptionError) as caught:
            construct(value)
        assert option.split(".")[1] in str(caught.value) or option == "Implicit.inverse"

    refuses()


def test_whole_numbers_of_other_libraries_are_whole_numbers() -> None:
    """What comes out of np.arange, a sweep or a file of settings."""
    import numpy as np

    assert pzobo.GD(np.float64(0.1), np.int64(3)).steps == 3
    assert pzobo.PZOBO(np.float32(0.1), np.int32(2)).directions == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": bowl, "solver": "GD", "jacobian": pzobo.PZOBO()}, "solver='GD'.*GD"),
        ({"loss": bowl, "solver": pzobo.GD, "jacobian": pzobo.PZOBO()}, "solver=.*GD"),
        ({"loss": bowl, "solver": pzobo.GD(0.1, 3), "jacobian": pzobo.CG()}, r"jacobian=CG.*Implicit"),
        ({"loss": None, "solver": pzobo.GD(0.1, 3), "jacobian": pzobo.PZOBO()}, "GD needs a loss.*BlackBox"),
        (
            {"loss": None, "solver": pzobo.ClosedForm(lambda z, b: z), "jacobian": pzobo.Implicit(pzobo.CG())},
            "Implicit needs a loss.*ClosedForm with Unrolled",
        ),
    ],
    ids=range(5),
)
def test_an_argmin_of_parts_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pzobo.Argmin(options.pop("loss"), **options)
