"""How does the cost of an outer step grow with n, d, p, N and Q? `python -m benchmarks.scaling [--quick] [--figure F]`.

One size at a time grows over three decades, in a linear problem whose arithmetic is linear in each of them: n rows, d
inner variables, p outer ones (a weight for each of p groups of rows), N steps, Q directions. A slope is that of a line
through the logarithms of time and size, over the last decade, where the overhead of a call shows least.
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
    return (weights * (data @ y - target).square()).mean() + 0.5 * y.square().sum() + 1e-3 * x.square().mean()


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
                times = [
                    time_of(outer_step(name, replace(Sizes(), **{letter: value}), compile), 3 if quick else 7)
                    for value in chosen
                ]
                key = f"{name}, {'compiled' if compile else 'eager'}"
                grown = slope(chosen, times)
                found.setdefault(key, {})[letter] = {"sizes": chosen, "seconds": times, "slope": grown}
                shown = "  ".join(f"{1e3 * t:9.2f}" for t in times)
                print(f"{key:<24} {letter}  {shown} ms   slope {grown:5.2f}", flush=True)
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one decade")
    parser.add_argument("--out", metavar="FILE.json", type=Path, default=OUT / "scaling.json")
    parser.add_argument("--figure", metavar="FILE.svg", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.quick)
    steep = [
        f"{key}, {letter}: {part['slope']:.2f}"
        for key, letters in found.items()
        for letter, part in letters.items()
        if part["slope"] > HIGHEST
    ]
    print(f"slopes above {HIGHEST}: " + ("; ".join(steep) or "none"))
    write(arguments.out, {"slopes": found, "steep": steep})
    if arguments.figure:
        draw(found, arguments.figure)
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
