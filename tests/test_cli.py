"""Does the command line find its commands, and answer errors of use with a sentence and exit code 2?"""

import subprocess
import sys

import pytest

import pzobo
from pzobo import cli
from pzobo.bench import commands
from pzobo.errors import OptionError
from pzobo.extras import advice
from pzobo.theory.measurements import Verification


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]], ids=["nothing", "short", "long"])
def test_help_has_a_sentence_for_every_command(arguments, capsys):
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (_, sentence) in cli.COMMANDS.items():
        (line,) = (line for line in lines if line.startswith(f"  pzobo {name} "))
        assert line.endswith(sentence)
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pzobo {pzobo.__version__}\n"


def test_an_unknown_command_is_a_sentence(capsys):
    assert cli.main(["train"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("pzobo: there is no command 'train'.\n")
    assert said.out == ""


def test_the_shell_gets_the_exit_code():
    command = [sys.executable, "-m", "pzobo.cli", "train"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (OptionError("mu is wrong."), 2, "pzobo run: mu is wrong.\n"),
        (KeyboardInterrupt(), 130, "Stopped.\n"),
        (KeyboardInterrupt("Stopped. It is saved."), 130, "Stopped. It is saved.\n"),
        (
            ModuleNotFoundError("No module named 'tyro'", name="tyro"),
            2,
            f"pzobo run needs tyro, which is not installed. {advice()}\n",
        ),
    ],
    ids=["use", "stop", "saved", "extra"],
)
def test_what_goes_wrong_is_a_sentence(error, code, sentence, capsys, monkeypatch):
    def fail(arguments):
        raise error

    monkeypatch.setattr(commands, "run", fail)
    assert cli.main(["run", "hr-linear"]) == code
    assert capsys.readouterr().err == sentence


def test_our_own_missing_module_is_no_missing_extra(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "run", ("pzobo.nowhere:run", ""))
    with pytest.raises(ModuleNotFoundError, match=r"pzobo\.nowhere"):
        cli.main(["run"])


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
