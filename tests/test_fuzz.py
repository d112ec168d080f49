"""Does every parser answer damaged input with a value or a sentence? Each target of `tests.fuzz`, for half a minute.

Processor time, that is, and nothing fails by slowness: on a slow machine fewer inputs are tried. The end of a test run
says how many there were.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.fuzz.targets import TARGETS, run

SECONDS = 30.0
SEED = 0 if os.environ.get("CI") else int(time.time())


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_a_value_or_an_error_of_ours(name: str, record_property: Callable[..., None]) -> None:
    try:
        run(name, SECONDS, SEED)
    finally:
        record_property("inputs tried", sum(TARGETS[name].tried.values()))
    assert TARGETS[name].tried.keys() & {"errors", "warnings"}, "some of it is refused"
