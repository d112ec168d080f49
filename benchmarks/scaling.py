"""How does the cost of an outer step grow with n, d, p, N and Q? `python -m benchmarks.scaling [--page FILE.md]`.

One size at a time grows over three decades, in a linear problem whose arithmetic is linear in each of them: n rows, d
inner variables, p outer ones (a weight for each of p groups of rows), N steps, Q directions. A slope is that of a line
through the logarithms of time and size, over the last decade, where the overhead of a call shows least. Memory is the
peak of one step above what was in use before it, at the smallest and at the largest size, in a process of its own.
"""

from benchmarks.environment import OUT, use_one_thread, write

use_one_thread()

import argparse  # noqa: E402
import math  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

import pzobo  # noqa: E402
from benchmarks.peak import peak_of  # noqa: E402
from benchmarks.timing import seconds  # noqa: E402

HIGHEST = 1.05
"""Where the arithmetic is linear, no slope may be above this."""


@dataclass(frozen=True)
class Sizes:
    """Of one problem."""

    n: int = 100
    d: int = 100
    p: int = 100
    N: int = 10
    Q: int = 1


GROWTH: dict[str, tuple[int, ...]] = {
    "n": (100, 1000, 10_000, 100_000),
    "d": (100, 1000, 10_000, 100_000),
    "p": (100, 1000, 10_000, 100_000),
    "N": (10, 100, 1000, 10_000),
    "Q": (1, 10, 100, 1000),
}
JACOBIANS: dict[str, Callable[[Sizes], Any]] = {
    "PZOBO": lambda sizes: pzobo.PZOBO(0.01, sizes.Q, pzobo.Gaussian(seed=0), batching="loop"),
    "Implicit(CG)": lambda sizes: pzobo.Implicit(pzobo.CG(10, tol=0.0)),
    "Unrolled": lambda sizes: pzobo.Unrolled(),
    "Direct": lambda sizes: pzobo.Direct(),
}


def inner_loss(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
    """A regression whose rows have the weights of their groups, and |y|^2: positive definite whatever n and d are."""
    data, target, group = batch
    weights = torch.sigmoid(x)[group]
    fit: torch.Tensor = (weights * (data @ y - target).square()).mean()
    return fit + 0.5 * y.square().sum() + 1e-3 * x.square().mean()


def outer_step(name: str, sizes: Sizes, compile: bool) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(sizes.n, sizes.d, generator=generator) / math.sqrt(sizes.d)
    batch = data, torch.randn(sizes.n, generator=generator), torch.arange(sizes.n) % sizes.p
    x, y0 = torch.zeros(sizes.p, requires_grad=True), torch.zeros(sizes.d)
    solver = pzobo.GD(0.5, sizes.N)
    argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=JACOBIANS[name](sizes), compile=compile, audit=False)

    def step() -> None:
        x.grad = None
        torch.autograd.backward(argmin(x, y0, batch).square().mean())

    return step


def time_of(step: Callable[[], None], rounds: int) -> float:
    step()
    step()
    return median(seconds(step) for _ in range(rounds))


def slope(sizes: tuple[int, ...], times: list[float]) -> float:
    """Over the last decade."""
    (a, b), (s, t) = sizes[-2:], times[-2:]
    return math.log(t / s) / math.log(b / a)


def measure(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for compile in (False, True):
        for name in JACOBIANS:
            for letter, values in GROWTH.items():
                if letter == "Q" and name != "PZOBO":
                    continue
                chosen = values[:2] if quick else values
                steps = [outer_step(name, replace(Sizes(), **{letter: value}), compile) for value in chosen]
                times = [time_of(step, 3 if quick else 7) for step in steps]
                memory = [peak_of(step, before=step) for step in (steps[0], steps[-1])]
                key = f"{name}, {'compiled' if compile else 'eager'}"
                grown = slope(chosen, times)
                found.setdefault(key, {})[letter] = {
                    "sizes": chosen,
                    "seconds": times,
                    "slope": grown,
                    "megabytes": memory,
                }
                shown = "  ".join(f"{1e3 * t:9.2f}" for t in times)
                peaks = " to ".join("-" if peak is None else f"{peak:.1f}" for peak in memory)
                print(f"{key:<24} {letter}  {shown} ms   slope {grown:5.2f}   {peaks} MB", flush=True)
    return found


def draw(found: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(GROWTH), figsize=(15, 3.4), sharey=True)
    for axis, letter in zip(axes, GROWTH, strict=True):
        for number, (key, letters) in enumerate(found.items()):
            if letter in letters:
                style = "-" if key.endswith("compiled") else ":"
                part = letters[letter]
                axis.loglog(
                    part["sizes"], part["seconds"], style, color=f"C{number % len(JACOBIANS)}", marker=".", label=key
                )
        axis.set_xlabel(letter)
    axes[0].set_ylabel("seconds of an outer step")
    axes[0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(file)


PAGE = """# How cost grows

`python -m benchmarks.scaling --page docs/results/scaling.md --figure docs/results/figures/scaling.svg` makes this page.
It was measured on {day} on one core of an {cpu}, with torch {torch}, commit {commit}.

The problem is a weighted regression: n rows, d inner variables, p outer ones (weights of groups of rows), N steps, Q
directions. It begins at n = d = p = 100, N = 10, Q = 1, and one of them grows over three decades. The arithmetic is
linear in each.

- **slope**: of the time of an outer step on logarithmic axes, over the last decade. 1 is linear. Below 1 the overhead
  of a call, or another part of the step, still counts.
- **MB**: the peak of memory in one step above what was in use before, at the smallest and at the largest size.

![Time of an outer step against n, d, p, N and Q](figures/scaling.svg)

{table}

Slopes above {highest}: {steep}.
"""


def page(found: dict[str, Any]) -> str:
    """The page of docs/results."""
    from pzobo.runs.environment import environment

    here = environment()
    lines = ["|  | " + " | ".join(f"{letter}: slope | MB" for letter in GROWTH) + " |"]
    lines += ["|" + " --- |" * (1 + 2 * len(GROWTH))]
    for key, letters in found.items():
        cells = []
        for letter in GROWTH:
            part = letters.get(letter)
            known = part is not None and None not in part["megabytes"]
            cells.append(f"{part['slope']:.2f}" if part else "-")
            cells.append(" to ".join(f"{peak:.1f}" for peak in part["megabytes"]) if known else "-")
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return PAGE.format(
        day=str(here["time"])[:10],
        cpu=here["cpu"],
        torch=here["torch"],
        commit=here["commit"],
        table="\n".join(lines),
        highest=HIGHEST,
        steep="; ".join(steep(found)) or "none",
    )


def steep(found: dict[str, Any]) -> list[str]:
    """Where the cost grows faster than it may."""
    return [
        f"{key}, {letter}: {part['slope']:.2f}"
        for key, letters in found.items()
        for letter, part in letters.items()
        if part["slope"] > HIGHEST
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one decade")
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "scaling.json")
    parser.add_argument("--figure", metavar="FILE.svg", type=Path, help="the times as curves")
    parser.add_argument("--page", metavar="FILE.md", type=Path, help="a table of slopes and memory")
    arguments = parser.parse_args()
    found = measure(arguments.quick)
    above = steep(found)
    print(f"slopes above {HIGHEST}: " + ("; ".join(above) or "none"))
    write(arguments.out, {"slopes": found, "steep": above})
    if arguments.figure:
        draw(found, arguments.figure)
    if arguments.page:
        arguments.page.write_text(page(found))
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
