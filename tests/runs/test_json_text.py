"""Is every text read as a value that can be shown and computed with, or refused by one sentence?"""

from __future__ import annotations

import math

import pytest

from pzobo.errors import DamagedFileError
from pzobo.runs.json_text import DEEPEST, parse


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a": ', "}")])
def test_lists_and_dicts_in_each_other(begin: str, end: str) -> None:
    assert parse(begin * DEEPEST + "1" + end * DEEPEST)
    for depth in (DEEPEST + 1, 500, 900, 5_000, 100_000):
        with pytest.raises(DamagedFileError, match=r"nested deeper than 50|not JSON"):
            parse(begin * depth + "1" + end * depth)


def test_every_number_is_a_float_too() -> None:
    assert parse("[1" + "0" * 307 + "]") == [10**307]
    assert parse("[1" + "0" * 400 + ", -1" + "0" * 5_000 + "]") == [math.inf, -math.inf]


def test_every_string_can_be_written() -> None:
    found = parse('{"a\\ud800": "\\udfffb \\ud83d\\ude00"}')
    assert found == {"a\N{REPLACEMENT CHARACTER}": "\N{REPLACEMENT CHARACTER}b \N{GRINNING FACE}"}
