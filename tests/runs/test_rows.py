"""Is a row of metrics what its line in the file says, and the other way round?"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pzobo.runs.rows import Row

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
METRICS = st.dictionaries(st.text().filter(lambda key: key not in {*Row.OWN, "metrics"}), NUMBERS | st.none())


@given(
    st.builds(
        Row,
        step=st.integers(0, 10**9),
        seconds=NUMBERS,
        outer_loss=NUMBERS,
        hypergradient_norm=NUMBERS | st.none(),
        memory=NUMBERS | st.none(),
        last=st.booleans(),
        evaluated=st.just(True),
        inner_loss=NUMBERS | st.none(),
        metrics=METRICS,
    )
)
def test_a_line_brings_the_row_back(row: Row) -> None:
    assert Row.of(json.loads(json.dumps(dict(row)))) == row


def test_as_a_mapping() -> None:
    row = Row(3, 1.5, 0.25, 2.0)
    assert dict(row) == {
        "step": 3,
        "seconds": 1.5,
        "outer_loss": 0.25,
        "hypergradient_norm": 2.0,
        "memory": None,
        "last": False,
        "evaluated": False,
    }
    with pytest.raises(KeyError):
        row["inner_loss"]
    evaluated = Row(3, 1.5, 0.25, evaluated=True, inner_loss=0.5, metrics={"accuracy": 0.9})
    assert (evaluated["inner_loss"], evaluated["accuracy"], len(evaluated)) == (0.5, 0.9, 9)


def test_what_json_does_not_have_is_nothing() -> None:
    row = Row(0, 0.0, math.inf, metrics={"a": math.nan})
    assert (row.outer_loss, row.metrics["a"]) == (None, None)


@pytest.mark.parametrize("norm", [1.0, None])
def test_lines_of_version_0_1(norm: float | None) -> None:
    line = {"step": 1, "seconds": 2.0, "outer_loss": 3.0, "hypergradient_norm": norm, "memory": 4.0}
    assert Row.of(line).last == (norm is None)
    assert not Row.of(line).evaluated
    assert Row.of({**line, "inner_loss": None, "cosine": 0.5}).evaluated
