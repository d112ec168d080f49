"""Does every parser answer damaged input with a value or a sentence? A few inputs of each target of `tests.fuzz`."""

from __future__ import annotations

import pytest

from tests import fuzz


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_input_is_a_value_or_an_error_of_ours(name: str) -> None:
    fuzz.run(name, fuzz.TARGETS[name].examples)
    assert fuzz.TARGETS[name].tried.keys() & {"errors", "warnings"}, "some of it is refused"
