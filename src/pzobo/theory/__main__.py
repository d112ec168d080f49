"""Does the theory hold, here and now? `python -m pzobo.theory [-o theory.html] [--quick]` measures it and says so."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pzobo.errors import OptionError
from pzobo.files import write_atomically
from pzobo.theory.sweeps import Grid
from pzobo.theory.verification import CHECKS, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, print a table, write a page; 0 if every bound holds and no slope is another than the theory's."""
    parser = argparse.ArgumentParser(
        prog="pzobo theory", description="Measure what the paper's bounds are about, and say whether they hold."
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="Write a page with plots to this HTML file. It works without a network."
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="Write the numbers to this file. `pzobo report FOLDER` shows those in FOLDER/theory.json.",
    )
    parser.add_argument("--quick", action="store_true", help="Measure on small grids, which takes a minute or two.")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(CHECKS),
        metavar="CHECK",
        help=f"Make only these checks, of: {'; '.join(CHECKS)}.",
    )
    options = parser.parse_args(arguments)

    from rich.console import Console

    from pzobo.theory.presentation import page, table

    console, aside = Console(), Console(stderr=True)
    aside.print(
        f"Measuring the theory on {'small grids: a minute or two' if options.quick else 'whole grids: minutes'}."
    )
    try:
        found = verify(
            Grid.quick() if options.quick else Grid(),
            checks=options.only,
            progress=lambda text: aside.print(text, soft_wrap=True),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped. Nothing was written: the theory is measured in one go.") from None
    console.print(table(found))
    more = "Measure without --quick." if options.quick else "Take more runs: pzobo.theory.Grid(runs=...)."
    for s in found.undecided:
        noise = f"its slope has a standard error of {s.slope_error:.2f}"
        console.print(f"Not decided: {s.statement}, {s.against}, {s.problem}: {noise}. {more}", soft_wrap=True)
    try:
        if options.json is not None:
            write_atomically(options.json, found.to_json().encode())
        if options.output is not None:
            write_atomically(options.output, page(found).encode())
            console.print(f"Plots: {options.output}", soft_wrap=True)
    except OSError as error:
        raise OptionError(f"{error.filename} could not be written ({error.strerror}): choose another place.") from error
    return 0 if found.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
