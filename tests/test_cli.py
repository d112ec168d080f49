"""Does the command line find its commands, and answer errors of use with a sentence and exit code 2?"""

import pytest

from pzobo import cli
from pzobo.theory.sweep_records import Verification


def test_help_names_every_command(capsys):
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"pzobo {name}" in shown for name in cli.COMMANDS)


def test_an_unknown_command_is_a_sentence(capsys):
    assert cli.main(["train"]) == 2
    assert "no command 'train'" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_its_own_help(name, capsys):
    try:
        code = cli.main([name, "--help"])
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    assert f"usage: pzobo {name}" in capsys.readouterr().out


def test_theory_measures_and_writes_its_page(tmp_path, capsys):
    page = tmp_path / "theory.html"
    numbers = tmp_path / "runs" / "theory.json"
    assert cli.main(["theory", "--quick", "--only", "Q", "-o", str(page), "--json", str(numbers)]) == 0
    assert Verification.from_json(numbers.read_text()).ok
    assert "The theory, measured" in capsys.readouterr().out
    shown = page.read_text(encoding="utf-8")
    assert "Plotly.newPlot" in shown
    assert "Proposition 2" in shown
