"""Does the theory hold? Every statement measured on grids, with slopes, verdicts and how loose each bound is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pzobo.errors import OptionError
from pzobo.theory import sweeps, sweeps_stochastic
from pzobo.theory.measurements import Sweep, Verification
from pzobo.theory.sweeps import Grid

Check = Callable[[str, Grid], Sweep | Sequence[Sweep]]

CHECKS: dict[str, Check] = {
    "Q": sweeps.against_Q,
    "p": lambda name, grid: sweeps.against_size(name, grid, "p"),
    "d": lambda name, grid: sweeps.against_size(name, grid, "d"),
    "N": sweeps.against_N,
    "mu": sweeps.against_mu,
    "K": sweeps.against_K,
    "Lipschitz": sweeps.lipschitz,
    "S": sweeps_stochastic.against_S,
    "D_f": sweeps_stochastic.against_D_f,
    "K, stochastic": sweeps_stochastic.against_K,
}


def verify(
    grid: Grid | None = None,
    *,
    checks: Sequence[str] | None = None,
    problems: Sequence[str] = ("quadratic", "logistic"),
    progress: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Measure what the bounds are about, and compare.

    Args:
        grid: how much to measure; `Grid()` by default, `Grid.quick()` for a first look.
        checks: some of "Q", "p", "d", "N", "mu", "K", "Lipschitz", "S", "D_f" and "K, stochastic"; all by default.
        problems: on which problems, "quadratic" or "logistic"; both by default.
        progress: is told in a few words what comes next.

    Returns:
        A `Verification`: one sweep for each statement, problem and grid.

    Raises:
        OptionError: there is no such check, or no such problem.

    Examples:
        >>> grid = pzobo.theory.Grid(draws=20, Q=(1, 4, 16))
        >>> found = pzobo.theory.verify(grid, checks=["Q"], problems=["quadratic"])
        >>> [sweep.against for sweep in found.sweeps]
        ['Q']
    """
    grid = Grid() if grid is None else grid
    start = time.perf_counter()

    for what, names, known in (("checks", checks or (), CHECKS), ("problems", problems, ("quadratic", "logistic"))):
        if unknown := [name for name in names if name not in known]:
            raise OptionError(f"{what}: there is no {unknown[0]!r}; there are {', '.join(map(repr, known))}.")
    todo = [(name, problem) for name in (CHECKS if checks is None else checks) for problem in problems]

    def run() -> Iterator[Sweep]:
        for number, (name, problem) in enumerate(todo, 1):
            progress(f"{number}/{len(todo)}: {name} on the {problem} problem")
            found = CHECKS[name](problem, grid)
            yield from [found] if isinstance(found, Sweep) else found

    return Verification(tuple(run()), time.perf_counter() - start)
