"""Is the table of all methods that of the pages it is read off?"""

from pathlib import Path

import pytest

from benchmarks.all_methods import COLUMNS, CONTROLS, HEADING, made, names, read, tables, value

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def test_it_is_what_the_pages_say() -> None:
    """`python -m benchmarks.all_methods docs/results` makes it anew."""
    assert f"\n{made(RESULTS)}\n" in (RESULTS / "README.md").read_text().partition(HEADING)[2]


def test_every_column_has_its_control_and_more() -> None:
    for column in COLUMNS:
        found = read(column, RESULTS)
        assert CONTROLS[0] in found, column.head
        assert len(found) > 5, column.head


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("SOBA", ["SOBA"]),
        ("AID-CG, differences", ["AID-CG, differences"]),
        ("PZOBO-S, default here", ["PZOBO, default here"]),
        ("AID-FP-S", ["AID-FP"]),
        ("SOBA, SABA, SRBA, FdeHBO", ["SOBA", "SABA", "SRBA", "FdeHBO"]),
        ("MRBO (2 did not get to the end)", ["MRBO"]),
        ("Direct", ["Direct (no Jacobian)"]),
        ("fitted again", []),
        ("N = 10", []),
    ],
)
def test_methods_of_a_row(label: str, wanted: list[str]) -> None:
    assert names(label) == wanted


@pytest.mark.parametrize(
    ("cell", "apart", "wanted"),
    [
        ("0.7189 / 13.5", False, (0.7189, "0.7189 / 13.5")),
        ("**0.926** (0.885 to 0.950)", False, (0.926, "0.926")),
        ("0.1: 1.8e-09", True, (1.8e-9, "1.8e-09")),
        ("**0.982 0.986 0.985**", False, (0.985, "0.985")),
        ("0.0009773", False, (0.0009773, "0.000977")),
        ("not reached", False, None),
        ("", False, None),
    ],
)
def test_the_number_of_a_cell(cell: str, apart: bool, wanted: tuple[float, str] | None) -> None:
    assert value(cell, apart) == wanted


def test_tables_of_some_parts_alone() -> None:
    text = (
        "# A\n\n## One\n\n| m | loss |\n| --- | --- |\n| a | 1 |\n\n## Two\n\n| m | loss |\n| --- | --- |\n| b | 2 |\n"
    )
    assert list(tables(text, ("Two",))) == [(["m", "loss"], [["b", "2"]])]


def test_the_best_row_of_a_method_counts(tmp_path: Path) -> None:
    page = "## Part\n\n| method | error |\n| --- | --- |\n| SOBA | 0.3 |\n| SOBA | 0.2 |\n| SABA | 0.25 |\n"
    (tmp_path / "hr-linear.md").write_text(page)
    least, most = (
        read(type(COLUMNS[0])("", "hr-linear", ("Part",), ("error",), least=wanted), tmp_path)
        for wanted in (True, False)
    )
    assert least == {"SOBA": (0.2, "0.2"), "SABA": (0.25, "0.25")}
    assert most["SOBA"] == (0.3, "0.3")
