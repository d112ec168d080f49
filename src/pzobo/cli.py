"""What can be run from the command line? The experiments, their report, and the theory; each has its own --help."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from pzobo import __version__
from pzobo.errors import PzoboError
from pzobo.extras import advice

COMMANDS = {
    "list": ("pzobo.bench.commands:listing", "Show the experiments and the methods by name."),
    "run": ("pzobo.bench.commands:run", "Run one experiment: pzobo run EXPERIMENT [options]."),
    "report": ("pzobo.bench.commands:reporting", "Write one HTML file about all runs below a folder."),
    "reproduce": ("pzobo.bench.commands:reproduce", "Run everything and write the report; --quick takes minutes."),
    "theory": ("pzobo.theory.__main__:main", "Measure the paper's bounds; -o FILE writes a page with plots."),
    "demo": (
        "pzobo.bench.demo:main",
        "Learn which data to trust, beside ordinary models: a table, and a page with pictures.",
    ),
}
"""Each command: where its function is, so that it is imported only when it is wanted, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the arguments to the command that they begin with."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name or a sign that this terminal cannot write
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        return _carry_out(name, rest)
    if name == "--version":
        print(f"pzobo {__version__}")
        return 0
    if name in ("-h", "--help"):
        print(usage())
        return 0
    print(f"pzobo: there is no command {name!r}.\n\n{usage()}", file=sys.stderr)
    return 2


def usage() -> str:
    """What `pzobo --help` shows."""
    lines = [f"  pzobo {name:<11} {sentence}" for name, (_, sentence) in COMMANDS.items()]
    lines.append(f"  pzobo {'--version':<11} Show the version.")
    return "\n".join(["usage: pzobo COMMAND [options]", "", *lines, "", "Each command has its own --help."])


def _carry_out(name: str, arguments: Sequence[str]) -> int:
    """Run a command; what a user can do wrong is a sentence and exit code 2."""
    module, _, function = COMMANDS[name][0].partition(":")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(f"pzobo {name}: {message}")
        try:
            command: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
            return command(arguments)
        except PzoboError as error:
            _say(f"pzobo {name}: {error}")
            return 2
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("pzobo"):
                raise
            _say(f"pzobo {name} needs {error.name}, which is not installed. {advice()}")
            return 2
        except KeyboardInterrupt as stop:
            _say(str(stop) or "Stopped.")
            return 130


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
