"""How many evaluations does a search for hyperparameters take? `python -m benchmarks.search [--page FILE.md]`.

Every run is a line of `benchmarks/recorded/search.jsonl`: a task, a search, a seed. Runs that are there are not made
again, so the benchmark can be made in pieces and be stopped at any time; the file is kept with the code. After a change
of a search, take its lines out. `--page` makes the page of what is there, but for its text.
"""

from benchmarks.environment import use_one_thread

use_one_thread(bound=False)

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections import defaultdict  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from benchmarks.search_problems import TASKS, Evaluation  # noqa: E402
from benchmarks.searchers import SEARCHERS, spend  # noqa: E402

MARKS = (10, 30, 100, 300)
FILE = Path(__file__).parent / "recorded" / "search.jsonl"
Run = dict[str, Any]


def run(name: str, searcher: str, seed: int, budget: int) -> Run:
    """One search: the evaluations with a lower CV loss than all before, and the test loss of what it would take."""
    task = Evaluation(name, seed, budget)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = spend(searcher, task, seed)
        spent = time.process_time() - began
        tests = [task.test(0), task.test(chosen)]
    return {
        "task": name,
        "search": searcher,
        "seed": seed,
        "budget": budget,
        "p": task.p,
        "rows": len(task.X),
        "evaluations": len(task.values),
        "falls": falls(task.values),
        "chosen": chosen,
        "test start": round(tests[0], 6),
        "test": round(tests[1], 6),
        "seconds": round(spent, 2),
    }


def falls(values: Sequence[float]) -> list[tuple[int, float]]:
    """Number (from 1 on) and value of each that is lower than all before it."""
    found: list[tuple[int, float]] = []
    for i, value in enumerate(values, 1):
        if not found or round(value, 6) < found[-1][1]:
            found.append((i, round(value, 6)))
    return found


def stored() -> list[Run]:
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def key(run: Run) -> tuple[str, str, int, int]:
    return run["task"], run["search"], run["seed"], run["budget"]


# The page


def best_after(run: Run, evaluations: int) -> float:
    return min(value for i, value in run["falls"] if i <= evaluations)


def first_below(run: Run, value: float) -> float:
    """After how many evaluations a CV loss is reached; infinity if it never is."""
    below = [i for i, v in run["falls"] if v <= value]
    return float(below[0]) if below else float("inf")


def number(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.0f}"


def at(evaluations: int, runs: list[Run]) -> str:
    """The median CV loss of the runs that came so far or ended by themselves, and of how many if others did not."""
    far = [r for r in runs if r["evaluations"] >= evaluations or r["evaluations"] < r["budget"]]
    if not far:
        return "-"
    some = f" ({len(far)})" if len(far) < len(runs) else ""
    return f"{median(best_after(r, evaluations) for r in far):.4f}{some}"


def rows_of(name: str, runs: list[Run]) -> list[str]:
    """The table of one task."""
    by = defaultdict(dict)
    for found in runs:
        by[found["search"]][found["seed"]] = found
    cma = by.get("CMA-ES", {})
    lines = [
        "| search | seeds | "
        + " | ".join(f"CV, {m}" for m in MARKS)
        + " | CMA-ES's best after | test | worst test | s |",
        "| --- " * (len(MARKS) + 6) + "|",
    ]
    for searcher in SEARCHERS:
        mine = by.get(searcher)
        if not mine:
            continue
        shown = [at(m, list(mine.values())) for m in MARKS]
        reached = [first_below(r, best_after(cma[s], 300)) for s, r in mine.items() if s in cma]
        ratio = [r["test"] / r["test start"] for r in mine.values()]
        seconds = median(r["seconds"] for r in mine.values())
        lines.append(
            f"| {searcher} | {len(mine)} | {' | '.join(shown)} | {number(median(reached)) if reached else '-'} | "
            f"{median(ratio):.2f} | {max(ratio):.2f} | {seconds:.0f} |"
        )
    ours = by["response"].values() or runs  # one for each seed
    start, test = [r["falls"][0][1] for r in ours], [r["test start"] for r in ours]
    about = TASKS[name].about
    head = f"## {name}\n\n{about[0].upper()}{about[1:]}: p = {runs[0]['p']}, {runs[0]['rows']} rows."
    return [f"{head} Start: CV {np.median(start):.4f}, test {np.median(test):.4f}.\n", *lines, ""]


def targets(runs: list[Run]) -> list[str]:
    """What was wanted, and what was found."""
    by = {key(r)[:3]: r for r in runs}
    third, dfo, prior, many = [], [], [], []
    for name in TASKS:
        seeds = {s for (n, _, s) in by if n == name}
        ours = {s: by[name, "response", s] for s in seeds if (name, "response", s) in by}
        cma = {s: by[name, "CMA-ES", s] for s in seeds if (name, "CMA-ES", s) in by}
        if not seeds:
            continue
        p, rows = next((r["p"], r["rows"]) for r in runs if r["task"] == name)
        both = [s for s in ours if s in cma and cma[s]["budget"] >= 300]
        if p >= 11 and both:
            after = median(first_below(ours[s], best_after(cma[s], 300)) for s in both)
            third.append((after <= 100, f"{name} {number(after)} ({len(both)})"))
        dfos = [s for s in ours if (name, "DFO-LS", s) in by]
        if p >= 11 and dfos:
            a, b = (
                median(best_after(r, 300) for r in found)
                for found in ([ours[s] for s in dfos], [by[name, "DFO-LS", s] for s in dfos])
            )
            dfo.append((a <= b, f"{name} {a:.4f} to {b:.4f} ({len(dfos)})"))
        held = [by[name, "response, prior", s] for s in seeds if (name, "response, prior", s) in by]
        if held:
            worst = max(r["test"] / r["test start"] for r in held)
            told_worst = f"{name} {worst:.2f} ({len(held)})"
            prior.append((worst <= 1.05, told_worst))
            if rows >= 50 * p:
                many.append((worst < 1, told_worst))

    def told(wanted: str, found: list[tuple[bool, str]]) -> str:
        good, bad = ([text for ok, text in found if ok is wanted_ok] for wanted_ok in (True, False))
        return f"| {wanted} | {'; '.join(good) or '-'} | {'; '.join(bad) or 'none'} |"

    return [
        "| wanted (seeds in brackets) | reached | not reached |",
        "| --- | --- | --- |",
        told("p >= 11, CV: CMA-ES's loss after 300 within 100 evaluations (median)", third),
        told("p >= 11, CV: after 300 no worse than DFO-LS (medians)", dfo),
        told("with the prior, no test loss more than 5 % above the start's (the worst seed)", prior),
        told("at least 50 rows for each hyperparameter: with the prior, better than the start (the worst seed)", many),
        "",
    ]


def page(runs: list[Run], before: str) -> str:
    """The text above the first heading of `before`, and the tables."""
    runs = sorted(runs, key=lambda run: run["budget"])  # of two runs of a seed the longer is shown
    parts = [before.partition("## ")[0].rstrip() + "\n", "## What was wanted\n", *targets(runs)]
    for name in TASKS:
        mine = [r for r in runs if r["task"] == name]
        if mine:
            parts += rows_of(name, mine)
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS), help="names, with commas between them")
    parser.add_argument("--searches", default=";".join(SEARCHERS), help="names, with semicolons between them")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=int, default=300, help="evaluations of each run")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no run after so many minutes of processor time"
    )
    parser.add_argument(
        "--page", type=Path, help="make the page of what is there; the text above its first '## ' stays"
    )
    given = parser.parse_args()
    if given.page is not None:
        given.page.write_text(page(stored(), given.page.read_text() if given.page.exists() else "# Search\n"))
        return
    done = {key(found) for found in stored()}
    for seed in range(given.seeds):
        for name in given.tasks.split(","):
            for searcher in given.searches.split(";"):
                if (name, searcher, seed, given.budget) in done:
                    continue
                if time.process_time() > 60 * given.minutes:
                    return
                found = run(name, searcher, seed, given.budget)
                FILE.parent.mkdir(parents=True, exist_ok=True)
                with FILE.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(
                    f"{name:18s} {searcher:16s} seed {seed}: "
                    f"CV {found['falls'][0][1]:.4f} -> {found['falls'][-1][1]:.4f}, "
                    f"test {found['test start']:.4f} -> {found['test']:.4f}, {found['seconds']:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
