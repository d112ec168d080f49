"""What can be run from the command line? `pzobo demo` and `pzobo theory`; each has its own --help."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

COMMANDS = {
    "demo": ("pzobo.demo", "linear hyper-representation with each Jacobian, as a table"),
    "theory": ("pzobo.theory.__main__", "the paper's bounds beside measurements; -o FILE writes a page with plots"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the arguments to the command that they begin with."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        try:
            command: Callable[[Sequence[str]], int] = import_module(COMMANDS[given[0]][0]).main
            return command(given[1:])
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("pzobo"):
                raise
            print(f"pzobo {given[0]} needs the package {error.name}: pip install 'pzobo[bench]'.", file=sys.stderr)
            return 2
    wanted = not given or given[0] in ("-h", "--help")
    if not wanted:
        print(f"pzobo: there is no command {given[0]!r}.", file=sys.stderr)
    lines = [f"  pzobo {name:<8} {about}" for name, (_, about) in COMMANDS.items()]
    print("\n".join(["usage: pzobo COMMAND [options]", "", *lines]), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    raise SystemExit(main())
