"""What do `pzobo list`, `run`, `report` and `reproduce` do? Arguments in, sentences and files out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pzobo.bench.experiments import EXPERIMENTS, Experiment
from pzobo.bench.report import markdown
from pzobo.bench.report.html_report import write_report
from pzobo.bench.report.runs import read
from pzobo.bench.runner import run as run_experiment
from pzobo.errors import DamagedFileError, OptionError
from pzobo.files import write_atomically
from pzobo.runs import json_text, names

console = Console()


def listing(arguments: Sequence[str]) -> int:
    """pzobo list: the experiments, and the methods that each can run."""
    tyro.cli(_Nothing, prog="pzobo list", args=arguments, description="Show the experiments and their methods.")
    for kind in EXPERIMENTS.values():
        console.print(f"[bold]{kind.about.name}[/bold]: {kind.about.title}. {kind.about.text}\n")
    table = Table("method", "what it is", "experiments", title="Methods, for --methods")
    methods = {name: named for kind in EXPERIMENTS.values() for name, named in kind.menu.items()}
    for name, named in methods.items():
        table.add_row(name, named.about, ", ".join(e for e, kind in EXPERIMENTS.items() if name in kind.menu))
    console.print(table)
    console.print("Settings of an experiment, with the paper's as defaults: pzobo run EXPERIMENT --help")
    return 0


def run(arguments: Sequence[str]) -> int:
    """pzobo run EXPERIMENT [options]: make its runs."""
    name = arguments[0] if arguments else ""
    if name in ("", "-h", "--help"):
        console.print("usage: pzobo run EXPERIMENT [options]    (pzobo run EXPERIMENT --help lists them)\n")
        for kind in EXPERIMENTS.values():
            console.print(f"  {kind.about.name:<16} {kind.about.title}")
        return 2 if not name else 0
    if name not in EXPERIMENTS:
        raise OptionError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}.")
    kind = EXPERIMENTS[name]
    experiment: Experiment = tyro.cli(
        kind,
        prog=f"pzobo run {name}",
        args=arguments[1:],
        description=kind.__doc__,
        config=(tyro.conf.AvoidSubcommands,),
    )
    carry_out(experiment, "go on with the same command and --resume")
    console.print(f"Runs: {experiment.out / name}", soft_wrap=True)
    console.print(f"See them: pzobo report {experiment.out} -o report.html", soft_wrap=True)
    return 0


def carry_out(experiment: Experiment, again: str) -> None:
    """Make the runs, with a bar on a terminal and a line now and then elsewhere; `again` is how they go on."""
    try:
        _carry_out(experiment)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. The runs so far are in {experiment.out}; {again}.") from None


def _carry_out(experiment: Experiment) -> None:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(experiment.name, total=None)

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=text)
            if not console.is_terminal and (done == total or done % max(1, total // 10) == 0):
                console.print(f"{done}/{total} {text}", soft_wrap=True)

        failed = run_experiment(experiment, show)
    for sentence in failed:
        console.print(f"[yellow]Did not get to the end[/yellow]: {sentence}")


@dataclass(frozen=True)
class _Nothing:
    pass


@dataclass(frozen=True)
class _Report:
    """Write one HTML file about all runs below a folder. It works without a network."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder that has the runs, at any depth."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The HTML file to write."""
    figures: Path | None = None
    """Write the figures to this folder too, as PNG and PDF."""
    markdown: Path | None = None
    """Write the tables to this folder too, as Markdown pages; with --figures, the pages show the figures."""


def reporting(arguments: Sequence[str]) -> int:
    """pzobo report FOLDER -o FILE."""
    options = tyro.cli(_Report, prog="pzobo report", args=arguments)
    page = make_report(options.folder, options.output, options.figures, options.markdown)
    console.print(f"Report: {page}", soft_wrap=True)
    return 0


def make_report(folder: Path, output: Path, figures: Path | None = None, pages: Path | None = None) -> Path:
    """The report of a folder's runs, with the theory's section if it was measured there.

    Args:
        figures: a folder for the figures as PNG and PDF.
        pages: a folder for the tables as Markdown.
    """
    from pzobo.theory.measurements import Verification

    saved = folder / names.THEORY
    try:
        theory = Verification.from_json(json_text.text(saved)) if saved.exists() else None
    except DamagedFileError as error:
        warnings.warn(f"{saved} is damaged ({error}); the report is without the theory.", stacklevel=2)
        theory = None
    abouts = [kind.about for kind in EXPERIMENTS.values()]
    runs = read(folder)
    try:
        page = write_report(runs, abouts, output, theory=theory, figures=figures)
        if pages is not None:
            markdown.write(runs, abouts, pages, figures)
    except OSError as error:
        raise OptionError(f"{error.filename} could not be written ({error.strerror}): choose another place.") from error
    return page


@dataclass(frozen=True)
class _Reproduce:
    """Run every experiment of the paper, measure the theory, and write the report."""

    quick: bool = False
    """Run everything small, on data that needs no download: it takes a few minutes, and shows that all works."""
    out: Path = Path("runs")
    """The folder that the runs are written to."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The HTML file that the report is written to."""
    figures: Path | None = None
    """Write the report's figures to this folder too, as PNG and PDF."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and in the cache, then downloaded."""
    resume: bool = False
    """Go on with the runs that are in the folder already."""
    workers: int = 2
    """How many runs go side by side, each a process with one thread."""


def reproduce(arguments: Sequence[str]) -> int:
    """pzobo reproduce [--quick]."""
    from pzobo.theory import verify
    from pzobo.theory.sweeps import Grid

    options = tyro.cli(_Reproduce, prog="pzobo reproduce", args=arguments)
    again = "go on with the same command and --resume"
    for experiment in _quick() if options.quick else _full(options.root):
        carry_out(replace(experiment, out=options.out, resume=options.resume, workers=options.workers), again)
    saved = options.out / names.THEORY
    if not (options.resume and saved.exists()):
        try:
            found = verify(
                Grid.quick() if options.quick else Grid(), progress=lambda text: console.print(f"theory: {text}")
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped. The runs are in {options.out}, the theory is not measured; {again}."
            ) from None
        write_atomically(saved, found.to_json().encode())  # half of it would stop --resume
    page = make_report(options.out, options.output, options.figures)
    console.print(f"Report: {page}", soft_wrap=True)
    return 0


def _quick() -> list[Experiment]:
    """Every experiment, small."""
    make: Any = EXPERIMENTS
    return [
        make["partial-vs-full"](seeds=1, steps=30, model=("linear",), compile=False),
        make["hr-linear"](seeds=2, steps=30, d=(128,), also_N=(10,), compile=False),
        make["hr-two-layer"](seeds=1, steps=10, m=32, q=64, d=32, n=500, also_N=(5,), compile=False),
        make["hr-lenet"](
            seeds=1,
            steps=10,
            batch_size=64,
            methods=("direct", "pzobo-s", "pzobo-s-authors", "stocbio", "itd-r"),
            compile=False,
        ),
        make["ho-logistic"](steps=20, N=(5,), compile=False),
        make["reweight"](seeds=1, steps=20, compile=False),
        make["few-shot"](
            seeds=1,
            steps=6,
            meta_batch=4,
            filters=8,
            eval_tasks=20,
            test_tasks=20,
            methods=("direct", "pzobo-z", "anil", "protonet"),
        ),
    ]


def _full(root: Path | None) -> list[Experiment]:
    """Every experiment, with the paper's data and settings; learning rates are searched."""
    make: Any = EXPERIMENTS
    timed = {"steps": 100_000, "lr": "search"}
    return [
        make["partial-vs-full"](),
        make["hr-linear"](lr="search"),
        make["hr-two-layer"](lr="search", search_steps=50),
        make["hr-lenet"](
            data="mnist",
            root=root,
            also_N=(5, 20),
            seconds=80,
            search_steps=30,
            milestones=(80, 160),
            decay=0.4,
            **timed,
        ),
        make["hr-lenet"](),
        make["ho-logistic"](data="newsgroups", root=root, seconds=180, search_seconds=12, evaluate_every=25, **timed),
        make["ho-logistic"](lr="search"),
        make["reweight"](lr="search"),
        make["few-shot"](seeds=3),
        make["few-shot"](
            data="omniglot",
            root=root,
            queries=5,
            meta_batch=8,
            seconds=480,
            steps=100_000,
            evaluate_every=50,
        ),
        make["few-shot"](
            data="miniimagenet",
            root=root,
            methods=("direct", "pzobo-x", "pzobo-z", "unrolled", "anil", "maml", "protonet", "metaoptnet-rr"),
            queries=5,
            meta_batch=4,
            seconds=1200,
            steps=100_000,
            evaluate_every=60,
            eval_tasks=60,
        ),
    ]
