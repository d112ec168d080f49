"""What must pzobo reach, and did it?

A measurement is a number with a name, such as `linear small/hand` (ms). A target bounds one of them, or the ratio of
two. The targets of all benchmark commands stand here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

OURS = "pzobo PZOBO, compiled"
EAGER = "eager, as the authors"  # what the targets name: autograd in a loop, graph kept, as the authors wrote it
FAST_EAGER = "eager"  # with the features computed once for a path: shown too, as an aim
LINEAR = ("linear small", "linear large")


@dataclass(frozen=True)
class Target:
    text: str
    value: str
    relation: str
    bound: float
    over: str | None = None
    aim: bool = False
    """An aim is worth reaching, but nothing fails without it."""

    def measured(self, results: Mapping[str, float]) -> float | None:
        if self.value not in results or (self.over is not None and self.over not in results):
            return None
        return results[self.value] / (results[self.over] if self.over else 1.0)

    def reached(self, measured: float) -> bool:
        return measured >= self.bound if self.relation == ">=" else measured <= self.bound


def _speed() -> Iterator[Target]:
    for problem, bound in zip(LINEAR, (6.0, 3.7), strict=True):
        yield Target(f"{problem}: eager / PZOBO", f"{problem}/{EAGER}", ">=", bound, f"{problem}/{OURS}")
    yield Target("sparse HO: eager on dense data / PZOBO", f"sparse HO/{EAGER}", ">=", 5.0, f"sparse HO/{OURS}")
    for problem, bound in zip((*LINEAR, "two-layer"), (0.9, 1.0, 1.1), strict=True):
        yield Target(f"{problem}: PZOBO / hand", f"{problem}/{OURS}", "<=", bound, f"{problem}/hand")
    for problem in (*LINEAR, "two-layer"):
        yield Target(
            f"{problem}: PZOBO not compiled / eager", f"{problem}/pzobo PZOBO", "<=", 1.0, f"{problem}/{EAGER}"
        )
        fast = f"{problem}/{FAST_EAGER}"
        yield Target(
            f"{problem}: PZOBO not compiled / eager, features once", f"{problem}/pzobo PZOBO", "<=", 1.0, fast, aim=True
        )
    for problem, bound in zip(LINEAR, (6.0, 3.7), strict=True):
        fast = f"{problem}/{FAST_EAGER}"
        yield Target(f"{problem}: eager, features once / PZOBO", fast, ">=", bound, f"{problem}/{OURS}", aim=True)
    for problem in LINEAR:
        yield Target(
            f"{problem}: PZOBO / hand, plain formula", f"{problem}/{OURS}", "<=", 1.3, f"{problem}/hand, plain formula"
        )
    for problem, bounds in zip(LINEAR, ((5.0, 5.0, 5.0, 3.5, 0.5), (2.5, 2.5, 2.5, 1.8, 0.6)), strict=True):
        pairs = (
            ("TorchOpt implicit CG", "Implicit(CG)"),
            ("TorchOpt unrolled", "Unrolled"),
            ("higher unrolled", "Unrolled"),
            ("higher unrolled", "Unrolled difference"),
            ("jaxopt implicit CG", "Implicit(CG)"),
        )
        for (peer, own), bound in zip(pairs, bounds, strict=True):
            yield Target(
                f"{problem}: {peer} / {own}", f"{problem}/{peer}", ">=", bound, f"{problem}/pzobo {own}, compiled"
            )
        yield Target(
            f"{problem}: 64 directions / one", f"{problem}/pzobo PZOBO Q=64, compiled", "<=", 20.0, f"{problem}/{OURS}"
        )
        yield Target(
            f"{problem}: finite-value check / none", f"{problem}/{OURS}", "<=", 1.05, f"{problem}/{OURS}, no check"
        )
    for problem, bound, aim in zip(LINEAR, (2.0, 1.5), (1.3, 1.0), strict=True):
        jax = f"{problem}/JAX PZOBO"
        yield Target(f"{problem}: PZOBO / JAX", f"{problem}/{OURS}", "<=", bound, jax)
        yield Target(f"{problem}: PZOBO / JAX", f"{problem}/{OURS}", "<=", aim, jax, aim=True)


SPEED = tuple(_speed())
MEMORY = (
    Target("peak memory, N = 1000 / N = 10", "PZOBO N=1000 Q=1", "<=", 1.1, "PZOBO N=10 Q=1"),
    Target('peak memory with batching="loop", Q = 64 / Q = 1', "PZOBO N=10 Q=64", "<=", 1.1, "PZOBO N=10 Q=1"),
    Target("compiled, N = 1000 / N = 10", "PZOBO N=1000, compiled", "<=", 1.1, "PZOBO N=10, compiled"),
    Target("CG, N = 1000 / N = 10", "CG N=1000", "<=", 1.1, "CG N=10"),
    Target("CG, compiled, N = 1000 / N = 10", "CG N=1000, compiled", "<=", 1.1, "CG N=10, compiled"),
)
COMPILE = (
    Target("seconds of the first call", "first call: seconds", "<=", 10.0),
    Target("seconds of the slowest first call", "slowest first call", "<=", 10.0),
    Target("compilations when x changes", "x changes: compilations", "<=", 0),
    Target("compilations when N changes", "N changes: compilations", "<=", 0),
    Target("compilations for another learning rate", "another learning rate: compilations", "<=", 0),
    Target("compilations for a smaller last batch", "smaller last batch: compilations", "<=", 1),
    Target("compilations for it again", "smaller last batch again: compilations", "<=", 0),
    Target("compilations for the full batch after it", "full batch again: compilations", "<=", 0),
)
STOCHASTIC = (
    Target("ms of a compiled stocBiO step", "pzobo stocBiO, compiled", "<=", 5.0),
    Target("compiled / not compiled", "pzobo stocBiO, compiled", "<=", 5 / 28, "pzobo stocBiO"),
)

SINGLE_LOOP = (
    Target("steps of SOBA, eager / by hand", "pzobo SOBA", ">=", 400 / 481, "SOBA by hand"),
    Target("steps of SOBA, compiled / JAX", "pzobo SOBA, compiled", ">=", 1.0, "JAX SOBA"),
)


def judge(targets: Iterable[Target], results: Mapping[str, float]) -> list[dict[str, object]]:
    """Print each target beside what was measured; what is returned goes into the JSON file."""
    verdicts: list[dict[str, object]] = []
    print("\ntargets")
    for target in targets:
        measured = target.measured(results)
        if measured is None:
            verdict = "not measured"
        elif target.reached(measured):
            verdict = "reached"
        else:
            verdict = "NOT reached" + (" (aim)" if target.aim else "")
        shown = "-" if measured is None else f"{measured:.2f}"
        print(f"  {target.text:<52} {shown:>8}  {target.relation} {target.bound:<5g} {verdict}")
        verdicts.append(
            {
                "target": target.text,
                "measured": measured,
                "bound": f"{target.relation} {target.bound}",
                "verdict": verdict,
            }
        )
    return verdicts
