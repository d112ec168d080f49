"""What is the library for? Which data to trust, figure 2 (a) of the paper, and a run that is killed and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from pzobo.bench.demo_findings import Findings
    from pzobo.bench.experiments.shallow import Linear
    from pzobo.bench.experiments.source_mix import Sources


@dataclass(frozen=True)
class Demo:
    """Learn which data to trust, repeat the paper's figure 2 (a), kill a run and resume it: a table, and a page."""

    seeds: int = 3
    """How many seeds are run, which are 0, 1, ... The data follows from the seed."""
    steps: int = 15
    """The number of outer steps in which the weights of the sources are learned."""
    paper_steps: int = 100
    """The number of outer steps of each run of figure 2 (a)."""
    out: Path = Path("runs/demo")
    """The folder that the runs are written to. Runs that are there already are not made again."""
    output: Path = Path("demo.html")
    """The HTML file that the page is written to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """pzobo demo."""
    import tyro

    return show(tyro.cli(Demo, prog="pzobo demo", args=arguments))


def show(options: Demo) -> int:
    """Make the runs, print what they show, write the page."""
    from pzobo.bench import demo_findings, demo_page
    from pzobo.bench.commands import carry_out, console
    from pzobo.bench.demo_resume import kill_and_resume
    from pzobo.bench.report.runs import read
    from pzobo.errors import OptionError
    from pzobo.files import write_atomically

    sources, paper = experiments(options)
    for number, (experiment, what) in enumerate(((sources, "which data to trust"), (paper, "figure 2 (a)")), 1):
        console.print(f"{number}/3 {what}: {options.seeds} seeds, {len(experiment.chosen())} methods")
        carry_out(experiment, "go on with the same command")
    console.print("3/3 a run that is killed and resumed")
    resumed = kill_and_resume(sources, options.out / "killed")
    found = demo_findings.find(sources, read(options.out / sources.name), read(options.out / paper.name), resumed)
    console.print(table(found))
    try:
        write_atomically(options.output, demo_page.page(found).encode())
    except OSError as error:
        raise OptionError(f"{error.filename} could not be written ({error.strerror}): choose another place.") from error
    console.print(f"Page with pictures: {options.output.resolve()}", soft_wrap=True)
    console.print(f"Runs: {options.out} (remove it to measure again)\n", soft_wrap=True)
    for sentence in found.aloud():
        console.print(sentence, soft_wrap=True, highlight=False)
    return 0


def experiments(options: Demo) -> tuple[Sources, Linear]:
    """Both experiments of the demo. Neither is compiled, so that no compiler is needed and the first run is quick."""
    from pzobo.bench.experiments.shallow import Linear
    from pzobo.bench.experiments.source_mix import Sources

    sources = Sources(
        seeds=options.seeds,
        steps=options.steps,
        N=50,
        alpha=0.02,
        lr=0.5,
        methods=("ordinary-all", "target-alone", "alike", "direct", "pzobo-all", "itd-r"),
        compile=False,
        clock="processor",
        evaluate_every=0,
        out=options.out,
        resume=True,
    )
    paper = Linear(
        seeds=options.seeds,
        steps=options.paper_steps,
        d=(128,),
        also_N=(),
        methods=("direct", "exact", "pzobo-authors", "pzobo-paper", "hozog", "aid-cg", "aid-fp", "itd-r"),
        compile=False,
        clock="processor",
        evaluate_every=0,
        out=options.out,
        resume=True,
    )
    return sources, paper


def table(found: Findings) -> Table:
    """What each model reaches, over its seeds."""
    from rich.table import Table

    made = Table(title="Which data should be trusted? Accuracy on test digits, %")
    made.add_column("model")
    for name in ("mean", "min - max", "order of\nthe weights", "s"):
        made.add_column(name, justify="right")
    for row in found.rows:
        made.add_row(*row.cells())
    return made
