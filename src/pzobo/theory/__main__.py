"""Does the theory hold, here and now? `python -m pzobo.theory [-o theory.html] [--quick]` measures it and says so."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pzobo.theory.sweeps import Grid
from pzobo.theory.verification import CHECKS, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, print a table, write a page; 0 if every bound holds and every slope is the theory's."""
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

    console = Console()
    with console.status("measuring") as status:
        found = verify(
            Grid.quick() if options.quick else Grid(),
            checks=options.only,
            progress=lambda text: status.update(f"measuring {text}"),
        )
    console.print(table(found))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(found.to_json(), encoding="utf-8")
    if options.output is not None:
        options.output.write_text(page(found), encoding="utf-8")
        console.print(f"Plots: {options.output}")
    return 0 if found.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
