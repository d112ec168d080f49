"""How good, how fast and how large is every estimator on real problems? `python -m benchmarks.accuracy`.

Each hypergradient is compared with the exact one, in float32 and in float64. The truth of y^N is the exact adjoint of
the path (`Unrolled(checkpoint=True)`) in float64. The truth of y* is the derivative of the solution in float64, by its
formula or by conjugate gradients at a solved inner problem. Times are medians of whole hypergradients in float32, of
rounds in which the estimators take turns, divided by that of `Direct`. Memory is the peak of one hypergradient above
what was in use before it.
"""

from benchmarks.environment import OUT, describe, use_one_thread

use_one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from fnmatch import fnmatchcase  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import optree  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import pzobo  # noqa: E402
from benchmarks import real_problems  # noqa: E402
from benchmarks.peak import peak_of  # noqa: E402
from pzobo.errors import PzoboError  # noqa: E402

PRODUCTS = ("autodiff", "forward", "difference")
OPTIONS: dict[str, Any] = {"audit": False}
"""Of the argmin: what is timed is the estimator, not the audit of its first passes."""
FEW = 20
"""Up to so many outer variables, PZOBO and forward mode take all directions; else 1 and 16."""
RIGHT = 1e-2
"""The error up to which an answer is right: what `Auto` promises by default."""
DRAWS = 5
"""Of random directions; their error is the root mean square."""


PAGE = """# Accuracy, time and memory of every estimator

`python -m benchmarks.accuracy --page docs/results/accuracy.md` makes this page. 20 Newsgroups and MNIST must be in the
folder that `PZOBO_DATA` names; of the words of 20 Newsgroups the 10,000 most frequent are taken. It was measured on
{day} on one core of an {cpu}, beside other work, with torch {torch}, commit {commits}.

- **float32, float64**: the relative error of the hypergradient to the exact one of f(x, y^N(x)). That is the exact
  adjoint of the path in float64, so `Unrolled()` has 0 in float64. With random directions it is the root mean square of
  5 draws.
- **y\\*, float32, float64**: the same to the derivative of f(x, y\\*(x)), where y\\* can be had. The error has two
  parts: how far y^N is from y\\*, and the estimator's own.
- **`Auto()`** is shown with what it chose; its search at the first pass is not in the time.
- A name instead of a number is the error that was raised.
- **time**: of a whole hypergradient in float32, divided by that of `Direct()`, which is the path alone. Estimators took
  turns in one run, not compiled.
- **memory**: the peak of one hypergradient in float32 above what was in use before, in megabytes.

## `Auto()` beside the best choice

Right is an error of at most {right:g} to y^N in float32. **ratio** is the time of `Auto()` by that of the fastest that
is right. Where `Auto()` is itself the fastest in this run, the ratio is 1.

{auto}
{tables}"""


@dataclass(frozen=True)
class Setting:
    """A problem with its solver."""

    make: Callable[..., pzobo.Problem]
    solver: Any
    rate: float
    """Of the Neumann series."""
    solved: Any = None
    """A solver that reaches y*, where there is no formula and it can be had."""
    mu: float = 0.01
    counts: tuple[int, ...] = (1, 16)
    """How many random directions, where there are too many variables for all."""


SETTINGS = {
    "linear HR": Setting(real_problems.linear, pzobo.GD(1e-3, 20), 1e-3),
    "two-layer HR": Setting(real_problems.two_layer, pzobo.GD(1e-3, 10), 1e-3),
    "LeNet head": Setting(
        real_problems.lenet_head, pzobo.HeavyBall(0.1, 0.9, 100), 0.1, pzobo.HeavyBall(0.1, 0.97, 4000)
    ),
    "transformer, GD": Setting(real_problems.character_transformer, pzobo.GD(0.2, 10), 0.2),
    "transformer, HeavyBall": Setting(real_problems.character_transformer, pzobo.HeavyBall(0.05, 0.9, 10), 0.05),
    "transformer, Adam": Setting(real_problems.character_transformer, pzobo.Adam(1e-3, 10), 0.05),
    "BN-CNN, GD": Setting(real_problems.digits_cnn, pzobo.GD(0.2, 20), 0.2),
    "BN-CNN, HeavyBall": Setting(real_problems.digits_cnn, pzobo.HeavyBall(0.05, 0.9, 20), 0.05),
    "data cleaning": Setting(real_problems.data_cleaning, pzobo.GD(0.5, 50), 0.5, pzobo.GD(0.5, 400)),
    "20 Newsgroups": Setting(real_problems.newsgroups, pzobo.HeavyBall(100.0, 0.9, 10), 100.0),
}


def estimators(setting: Setting, p: int) -> Iterator[tuple[str, Any]]:
    """Every Jacobian that fits the solver, by the words that make it."""
    steps, adam = setting.solver.steps, isinstance(setting.solver, pzobo.Adam)
    yield "Direct()", pzobo.Direct()
    yield "Auto()", pzobo.Auto()
    yield "Unrolled(checkpoint=True)", pzobo.Unrolled(checkpoint=True)
    inverses = {
        "CG(20)": pzobo.CG(20),
        f"FixedPoint({steps}{f', lr={setting.rate}' if adam else ''})": pzobo.FixedPoint(
            steps, lr=setting.rate if adam else None
        ),
        f"Neumann({setting.rate}, {steps})": pzobo.Neumann(setting.rate, steps),
    }
    for products in PRODUCTS:
        said = "" if products == "autodiff" else f'products="{products}"'
        yield f"Unrolled({said})", pzobo.Unrolled(products=products)
        for name, inverse in inverses.items():
            yield f"Implicit({name}{', ' * bool(said)}{said})", pzobo.Implicit(inverse, products)
    yield "Nudged()", pzobo.Nudged()
    for kind in (pzobo.ForwardMode, pzobo.PZOBO):
        mu = {"mu": setting.mu} if kind is pzobo.PZOBO else {}
        for count in [p] if p <= FEW else setting.counts:
            sampler = pzobo.Orthogonal(seed=0) if count == p else pzobo.Gaussian(seed=0)
            said = f"directions={count}" + (", sampler=Orthogonal()" if count == p else "")
            yield f"{kind.__name__}({said})", kind(directions=count, sampler=sampler, **mu)


def hypergradient(problem: pzobo.Problem, argmin: pzobo.Argmin) -> Tensor:
    """All of dF/dx as one vector in float64."""
    x = problem.start()
    leaves: Any = optree.tree_leaves(x)
    found = torch.autograd.grad(problem.objective(argmin, x), leaves, allow_unused=True, materialize_grads=True)
    return torch.cat([t.double().flatten() for t in found])


def solved(setting: Setting, problem: pzobo.Problem) -> Tensor | None:
    """The hypergradient at y*, or None where it cannot be had."""
    if problem.solution is not None:
        return hypergradient(problem, problem.argmin(pzobo.ClosedForm(problem.solution), pzobo.Unrolled()))
    if setting.solved is None:
        return None
    argmin = problem.argmin(setting.solved, pzobo.Implicit(pzobo.CG(1000, tol=1e-10)))
    found = hypergradient(problem, argmin)
    print(f"  y*: |dg/dy| = {argmin.last.gradient_norm:.0e}", flush=True)
    return found


def error(problem: pzobo.Problem, argmin: pzobo.Argmin, truths: dict[str, Tensor | None]) -> dict[str, Any]:
    """The relative error to each truth, a root mean square where there is chance; or what is raised."""
    draws = DRAWS if getattr(argmin.jacobian, "directions", FEW) in (1, 16) else 1
    try:
        found = [hypergradient(problem, argmin) for _ in range(draws)]
    except PzoboError as raised:
        return dict.fromkeys(truths, type(raised).__name__)

    def against(truth: Tensor) -> float:
        return (sum(float((h - truth).norm() / truth.norm()) ** 2 for h in found) / draws) ** 0.5

    return {name: None if truth is None else against(truth) for name, truth in truths.items()}


def memory(problem: pzobo.Problem, argmin: pzobo.Argmin) -> float | None:
    """The peak of one hypergradient."""
    direct = problem.argmin(argmin.solver, pzobo.Direct(), **OPTIONS)
    return peak_of(lambda: hypergradient(problem, argmin), before=lambda: hypergradient(problem, direct))


def measure(setting: Setting, rounds: int, pattern: str = "*") -> dict[str, Any]:
    """All that is told of one setting, for `Direct` and the estimators of a pattern."""
    made = {dtype: setting.make(dtype=dtype) for dtype in (torch.float64, torch.float32)}
    exact = made[torch.float64]
    p, d = (sum(t.numel() for t in optree.tree_leaves(tree)) for tree in (exact.x0, exact.y0))  # type: ignore[attr-defined]
    truths = {
        "y^N": hypergradient(exact, exact.argmin(setting.solver, pzobo.Unrolled(checkpoint=True))),
        "y*": solved(setting, exact),
    }
    rows: dict[str, dict[str, Any]] = {}
    racing: dict[str, pzobo.Argmin] = {}
    for name, jacobian in estimators(setting, p):
        if name != "Direct()" and not fnmatchcase(name, pattern):
            continue
        row: dict[str, Any] = {}
        for dtype, problem in made.items():
            argmin = problem.argmin(setting.solver, jacobian.at_start(), **OPTIONS)
            found = error(problem, argmin, truths)
            row |= {f"{truth} {str(dtype)[6:]}": value for truth, value in found.items()}
        rows[name] = row
        print(f"  {name}: " + ", ".join(f"{key} {_number(value)}" for key, value in row.items()), flush=True)
        if not isinstance(row["y^N float32"], str):
            racing[name] = argmin
            row["memory"] = memory(problem, argmin)
        if isinstance(argmin.jacobian, pzobo.Auto):
            row["why"] = argmin.jacobian.why
            print(f"  {row['why']}", flush=True)
    taken: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(rounds):
        for name, argmin in racing.items():
            began = time.process_time()
            hypergradient(made[torch.float32], argmin)
            taken[name].append(time.process_time() - began)
    for name, times in taken.items():
        rows[name]["seconds"] = median(times)
        rows[name]["time"] = median(times) / median(taken["Direct()"])
    environment = describe()
    kept = {name: environment[name] for name in ("commit", "cpu", "torch", "time")}
    return {"p": p, "d": d, "solver": repr(setting.solver), "rows": rows, "environment": kept}


def table(name: str, found: dict[str, Any]) -> str:
    """One setting in Markdown."""
    of_solution = any(isinstance(row["y* float64"], float) for row in found["rows"].values())
    titles = ["", "float32", "float64", *(["y*, float32", "y*, float64"] if of_solution else []), "time", "memory, MB"]
    lines = [f"## {name}", "", f"`{found['solver']}`, {found['p']:,} outer and {found['d']:,} inner variables.", ""]
    lines += ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for estimator, row in found["rows"].items():
        keys = ["y^N float32", "y^N float64", *(["y* float32", "y* float64"] if of_solution else [])]
        chosen = f": `{row['why'].split(':')[0]}`" if row.get("why") else ""
        cells = [f"`{estimator}`{chosen}", *(_number(row[key]) for key in keys)]
        cells += [f"{row['time']:.1f}" if "time" in row else "-", f"{row['memory']:.0f}" if row.get("memory") else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:.0e}" if value < 0.1 else f"{value:.2g}" if value < 1000 else f"{value:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="such as 'transformer*'")
    parser.add_argument("--estimators", metavar="PATTERN", default="*", help="renew only such rows: 'Auto*'")
    parser.add_argument("--rounds", type=int, default=5, help="in which the estimators take turns")
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "accuracy.json")
    parser.add_argument("--page", metavar="FILE.md", type=Path, help="write all tables of --out into a page")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name, setting in SETTINGS.items():
        if not fnmatchcase(name, options.only):
            continue
        print(name, flush=True)
        try:
            found = measure(setting, options.rounds, options.estimators)
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}")
            continue
        if options.estimators != "*" and name in results:
            rows = {k: row for k, row in found["rows"].items() if k != "Direct()"}
            results[name]["rows"] |= rows
        else:
            results[name] = found
        print("\n" + table(name, results[name]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(page(results))


def beside_the_best(results: dict[str, Any]) -> str:
    """`Auto()` beside the fastest estimator that is right, setting by setting, in Markdown."""
    lines = ["|  | chosen | float32 | float64 | time | the fastest that is right | its time | ratio |"]
    lines += ["|" + " --- |" * 8]
    for name, found in results.items():
        auto = found["rows"].get("Auto()")
        if auto is None or "time" not in auto:
            continue
        right = {
            row["time"]: estimator
            for estimator, row in found["rows"].items()
            if "time" in row and row["y^N float32"] <= RIGHT
        }
        fastest = min(right)
        cells = [name, f"`{auto['why'].split(':')[0]}`", _number(auto["y^N float32"]), _number(auto["y^N float64"])]
        cells += [f"{auto['time']:.1f}", f"`{right[fastest]}`", f"{fastest:.1f}", f"{auto['time'] / fastest:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(results: dict[str, Any]) -> str:
    """The page of docs/results."""
    tables = {name: table(name, results[name]) for name in SETTINGS if name in results}
    made = [results[name]["environment"] for name in tables]
    commits = sorted({str(environment["commit"]) for environment in made})
    first = made[0]
    return PAGE.format(
        right=RIGHT,
        cpu=first["cpu"],
        torch=first["torch"],
        commits=", ".join(commits),
        day=first["time"][:10],
        auto=beside_the_best({name: results[name] for name in tables}),
        tables="\n".join(tables.values()),
    )


if __name__ == "__main__":
    main()
