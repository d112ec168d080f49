"""What does each Jacobian do on one problem? Linear hyper-representation, as a table: `python -m pzobo.demo`."""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import pzobo
from pzobo.jacobians import Jacobian
from pzobo.problems import linear_hr

if TYPE_CHECKING:
    from rich.table import Table

SOLVER = pzobo.GD(lr=1e-3, steps=20)
POINTS = (0, 30, 60)
"""Steps of the reference run (Unrolled) at whose x the hypergradients are compared."""

ROUNDS = 8
"""How often a step of each method is timed."""

SAME = 0.05
"""Final losses that differ by less than this part are called the same."""


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    jacobian: Jacobian
    lr: float = 0.05
    whole: bool = False
    """A zeroth-order estimate of the whole objective instead of the inner solution: HOZOG."""

    def objective(self, problem: pzobo.Problem) -> Callable[[Tensor], Tensor]:
        """f(x, y^N(x)) with this method's derivative."""
        argmin = problem.argmin(SOLVER, self.jacobian)
        if not self.whole:
            return lambda x: problem.objective(argmin, x)
        return lambda x: pzobo.smooth(lambda x: problem.objective(argmin, x), x, mu=0.01)


METHODS = (
    Method("Direct: no Jacobian", pzobo.Direct()),
    Method("PZOBO, the paper's text", pzobo.PZOBO(shrink=False, at="x")),
    Method("PZOBO, the authors' code", pzobo.PZOBO(sampler=pzobo.UnitPerTensor(), at="x")),
    Method("PZOBO, the default here", pzobo.PZOBO()),
    Method("HOZOG", pzobo.Direct(), lr=0.1, whole=True),
    Method("ForwardMode", pzobo.ForwardMode()),
    Method("Nudged", pzobo.Nudged()),
    Method("Nudged, one way", pzobo.Nudged(symmetric=False)),
    Method("Implicit CG", pzobo.Implicit(pzobo.CG(steps=20))),
    Method("Implicit CG, difference", pzobo.Implicit(pzobo.CG(steps=20), products="difference")),
    Method("Implicit FixedPoint", pzobo.Implicit(pzobo.FixedPoint(steps=20))),
    Method("Unrolled", pzobo.Unrolled()),
    Method("Unrolled, difference", pzobo.Unrolled(products="difference")),
)
DIRECT = 0
EXACT_OF_PATH = METHODS.index(Method("Unrolled", pzobo.Unrolled()))


@dataclass(frozen=True)
class Run:
    """One method on one seed of data."""

    start: float
    """The outer loss before the first step,"""
    end: float
    """and after the last."""
    to_path: float
    """The cosine of the hypergradient to that of f(x, y^N(x)), averaged over POINTS,"""
    to_solution: float
    """and to that of Phi(x) = f(x, y*(x))."""


def gradient(objective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative that an objective gives for itself."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(objective(x), x)[0]


def solution(problem: pzobo.Problem) -> Callable[[Tensor], Tensor]:
    """f(x, y*(x)) with its exact gradient: g is quadratic in y, so one Newton step solves it."""

    def newton(z: Tensor, batch: object) -> Tensor:
        slope = torch.func.grad(problem.loss, argnums=1)(z, problem.y0, batch)
        curvature = torch.func.hessian(problem.loss, argnums=1)(z, problem.y0, batch)
        answer: Tensor = problem.y0 - torch.linalg.solve(curvature, slope)
        return answer

    argmin = problem.argmin(pzobo.ClosedForm(newton), pzobo.Implicit(pzobo.Exact()))
    return lambda x: problem.objective(argmin, x)


def descend(objective: Callable[[Tensor], Tensor], x: Tensor, lr: float) -> Iterator[tuple[Tensor, float]]:
    """Adam on an objective, for as long as it is asked for more: x before each step, and the outer loss there."""
    optimizer = torch.optim.Adam([x], lr=lr)
    while True:
        before = x.detach().clone()
        loss = objective(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield before, loss.item()


@functools.cache
def references(seed: int) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """x along a run with the exact gradient of f(x, y^N(x)), and there this gradient and that of f(x, y*(x))."""
    problem = linear_hr(seed=seed)
    path, solved = METHODS[EXACT_OF_PATH].objective(problem), solution(problem)
    run = itertools.islice(descend(path, problem.start(), METHODS[EXACT_OF_PATH].lr), max(POINTS) + 1)
    return tuple((x, gradient(path, x), gradient(solved, x)) for k, (x, _) in enumerate(run) if k in POINTS)


def measure(index: int, seed: int, steps: int) -> Run:
    """Run one method, by its number in METHODS, on one seed of data."""
    torch.set_num_threads(1)
    problem, method = linear_hr(seed=seed), METHODS[index]
    objective = method.objective(problem)
    torch.manual_seed(seed)
    to_path, to_solution = [], []
    for x, of_path, of_solution in references(seed):
        estimate = gradient(objective, x).flatten()
        to_path.append(torch.cosine_similarity(estimate, of_path.flatten(), dim=0).item())
        to_solution.append(torch.cosine_similarity(estimate, of_solution.flatten(), dim=0).item())
    torch.manual_seed(seed)
    x = problem.start()
    _, losses = zip(*itertools.islice(descend(objective, x, method.lr), steps), strict=True)
    return Run(
        start=losses[0],
        end=float(objective(x.detach())),
        to_path=statistics.fmean(to_path),
        to_solution=statistics.fmean(to_solution),
    )


def milliseconds(rounds: int) -> Iterator[list[float]]:
    """The median time of an outer step of each method so far, after each round: all methods in turn, one thread."""
    torch.set_num_threads(1)
    problem = linear_hr()
    runs = [descend(method.objective(problem), problem.start(), method.lr) for method in METHODS]
    taken: list[list[float]] = [[] for _ in METHODS]
    for run in runs:
        next(run)
    for _ in range(rounds):
        for run, seconds in zip(runs, taken, strict=True):
            began = time.perf_counter()
            next(run)
            seconds.append(time.perf_counter() - began)
        yield [1e3 * statistics.median(seconds) for seconds in taken]


def median(runs: Iterable[Run], what: str) -> float:
    return float(statistics.median(getattr(run, what) for run in runs))


def table(results: Sequence[Sequence[Run]], times: Sequence[float], steps: int) -> Table:
    """A row for each method, from its runs on each seed of data."""
    from rich.table import Table

    made = Table(title=f"Linear hyper-representation, 64 × 128, N = {SOLVER.steps}, {steps} outer steps")
    made.add_column("Jacobian")
    columns = ("outer loss", "min - max", "ms a step", "cosine to\ndf(x, yᴺ(x))/dx", "cosine to\ndΦ/dx")
    for name in columns:
        made.add_column(name, justify="right")
    for method, runs, time_per_step in zip(METHODS, results, times, strict=True):
        ends = [run.end for run in runs]
        made.add_row(
            method.name,
            f"{statistics.median(ends):.2g}" if statistics.median(ends) < 100 else f"{statistics.median(ends):.0f}",
            f"{min(ends):.2g} - {max(ends):.2g}" if max(ends) < 100 else f"{min(ends):.0f} - {max(ends):.0f}",
            f"{time_per_step:.1f}",
            f"{median(runs, 'to_path'):.3f}",
            f"{median(runs, 'to_solution'):.3f}",
        )
    return made


def summary(results: Sequence[Sequence[Run]]) -> list[str]:
    """What the table shows, in sentences made of its numbers."""
    ends = {method.name: median(runs, "end") for method, runs in zip(METHODS, results, strict=True)}
    direct = ends.pop(METHODS[DIRECT].name)
    below = [name for name, end in ends.items() if end < direct * (1 - SAME)]
    above = [name for name, end in ends.items() if not end <= direct * (1 + SAME)]
    same = [name for name in ends if name not in below and name not in above]
    path = [median(runs, "to_path") for runs in results]
    close = [method.name for method, cosine in zip(METHODS, path, strict=True) if cosine > 0.9]
    exact = results[EXACT_OF_PATH]
    return [
        f"Direct, which has no Jacobian at all, takes the outer loss from {median(results[DIRECT], 'start'):.0f} to "
        f"{direct:.2g}. Lower: {_names(below)}. The same within {SAME:.0%}: {_names(same)}. Higher: "
        + (
            f"the other {len(above)}, of which {min(above, key=lambda name: ends[name])} is best." if above else "none."
        ),
        f"A cosine above 0.9 to the gradient of f(x, yᴺ(x)) have: {_names(close)}; Direct has {path[DIRECT]:.2f}.",
        f"The exact gradient of f(x, yᴺ(x)) itself has a cosine of {median(exact, 'to_solution'):.2f} to dΦ/dx: "
        f"{SOLVER.steps} inner steps are not the solution.",
    ]


def _names(names: Sequence[str]) -> str:
    return "; ".join(names) if names else "none"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pzobo demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="outer steps (100)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of data (3)")
    options = parser.parse_args(arguments)
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        sys.exit("The demo prints with rich, which is not installed: pip install rich, or use `make demo`.")

    console = Console()
    jobs = list(itertools.product(range(len(METHODS)), range(options.seeds)))
    found: dict[tuple[int, int], Run] = {}
    workers = min(2, os.cpu_count() or 1)
    with (
        Progress(console=console, transient=True) as progress,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
    ):
        task = progress.add_task("starting", total=len(jobs))
        futures = {pool.submit(measure, *job, options.steps): job for job in jobs}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                progress.update(task, advance=1, description=METHODS[futures[future][0]].name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        *_, times = progress.track(milliseconds(ROUNDS), total=ROUNDS, description="time of a step")
    results = [[found[index, seed] for seed in range(options.seeds)] for index in range(len(METHODS))]
    console.print(table(results, times, options.steps))
    for sentence in summary(results):
        console.print(sentence)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
