"""What can be run from the command line? The experiments, their report, and the theory; each has its own --help."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

COMMANDS = {
    "list": ("pzobo.bench.commands", "the experiments and the methods by name"),
    "run": ("pzobo.bench.commands", "one experiment: pzobo run EXPERIMENT [options]"),
    "report": ("pzobo.bench.commands", "one HTML file of all runs below a folder"),
    "reproduce": ("pzobo.bench.commands", "everything, and the report; --quick for a few minutes"),
    "theory": ("pzobo.theory.__main__", "the paper's bounds beside measurements; -o FILE writes a page with plots"),
    "demo": ("pzobo.bench.demo", "linear hyper-representation with each Jacobian, as a table"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the arguments to the command that they begin with."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        try:
            return _command(given[0])(given[1:])
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("pzobo"):
                raise
            print(f"pzobo {given[0]} needs the package {error.name}: pip install 'pzobo[bench]'.", file=sys.stderr)
            return 2
    wanted = not given or given[0] in ("-h", "--help")
    if not wanted:
        print(f"pzobo: there is no command {given[0]!r}.", file=sys.stderr)
    lines = [f"  pzobo {name:<10} {about}" for name, (_, about) in COMMANDS.items()]
    print("\n".join(["usage: pzobo COMMAND [options]", "", *lines]), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def _command(name: str) -> Callable[[Sequence[str]], int]:
    """What carries a command out, imported when it is wanted."""
    main: Callable[..., int] = import_module(COMMANDS[name][0]).main
    return partial(main, name) if COMMANDS[name][0] == "pzobo.bench.commands" else main


if __name__ == "__main__":
    raise SystemExit(main())
