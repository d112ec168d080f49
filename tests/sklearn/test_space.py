"""Are hyperparameters put into one box and back, and is refused what is no number?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pzobo.errors import OptionError
from pzobo.sklearn import Linear, Log
from pzobo.sklearn.space import Space


def test_start_and_values() -> None:
    own = {"C": 10.0, "shift": np.array([0.0, -1.0]), "gamma": "scale", "other": 3}
    space = Space({"C": Log(0.1, 1000), "shift": Linear(-5, 5, size=2), "gamma": Log(0.01, 1)}, own)
    assert np.allclose(space.start.numpy(), [5, 5, 4, 5])
    assert space.names() == ["C", "shift[0]", "shift[1]", "gamma"]
    values = space.values(torch.tensor([0.0, 0.0, 10.0, 5.0], dtype=torch.float64))
    assert values["C"] == pytest.approx(0.1)
    assert isinstance(values["C"], float)
    assert values["shift"].tolist() == [-5, 5]
    assert values["gamma"] == pytest.approx(0.1)
    assert np.allclose(Space({"C": Linear(0, 4, size=3, start=1.0)}, own).start.numpy(), [2.5] * 3)


@given(st.floats(-3, 3), st.floats(0.1, 5), st.floats(0, 10))
def test_there_and_back(low: float, width: float, units: float) -> None:
    for part in (Linear(low, low + width), Log(np.exp(low), np.exp(low + width))):
        value = part.value(np.array([units]))
        assert part.low <= value <= part.high
        assert float(part.at_start("a", value)[0]) == pytest.approx(units, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Log(0, 1), "positive bounds"),
        (lambda: Linear(2, 1), "below the upper"),
        (lambda: Linear(0, float("inf")), "finite"),
        (lambda: Linear("a", 1), "finite"),
        (lambda: Linear(0, 1, size=0), "size=0"),
        (lambda: Space({"C": Log(1, 2)}, {"C": 5.0}), r"5\.0 is not between 1 and 2"),
        (lambda: Space({"C": Log(1, 2)}, {"C": True}), "expected one number.*Optuna"),
        (lambda: Space({"C": Log(1, 2, size=3)}, {"C": [1.0, 1.0]}), "expected 3 numbers"),
        (lambda: Space({"C": [1, 2]}, {"C": 1.0}), "neither Log.*Optuna"),
        (lambda: Space({"D": Log(1, 2)}, {"C": 1.0}), "no parameter 'D'; it has C"),
        (lambda: Space({}, {"C": 1.0}), "give a dict"),
        (lambda: Space(None, {"C": 1.0}), "give a dict"),
    ],
)
def test_refused(make: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make()
