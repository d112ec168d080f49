"""Is it worth it to solve LeNet's head? `python -m benchmarks.lenet_head [--data mnist] [--seconds 12] [--seeds 3]`.

Hyper-representation as in `pzobo run hr-lenet`, but with one batch of inner images for a whole path: its features are
computed once, so that many steps of the head cost little, and the implicit gradient is that of a solved problem.
"""

from benchmarks.environment import use_one_thread

use_one_thread(bound=False)

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import torch  # noqa: E402

import pzobo  # noqa: E402
from pzobo.jacobians.base import Jacobian  # noqa: E402
from pzobo.outer.minibatches import Minibatches  # noqa: E402
from pzobo.problems import Classification  # noqa: E402
from pzobo.solvers import Iterative  # noqa: E402

ROWS, SHOWN = 256, 4000
"""Rows of a batch at both levels, and outer images that the accuracy is measured on."""


@dataclass(frozen=True)
class Contender:
    """How the head is trained on 256 images, what its response is taken to be, and Adam's rate for the features."""

    solver: Iterative
    jacobian: Jacobian
    lr: float

    @property
    def name(self) -> str:
        return f"{self.jacobian}, {self.solver}, lr {self.lr:g}"


SOLVED = pzobo.HeavyBall(0.1, 0.95, 200)
CONTENDERS = (
    Contender(pzobo.GD(0.1, 1), pzobo.Direct(), 0.005),
    Contender(SOLVED, pzobo.Direct(), 0.005),
    Contender(SOLVED, pzobo.Implicit(pzobo.CG(100)), 0.003),
    Contender(SOLVED, pzobo.Implicit(pzobo.CG(100)), 0.002),
    Contender(SOLVED, pzobo.Implicit(pzobo.CG(20)), 0.003),
)


def run(problem: Classification, contender: Contender, seconds: float, seed: int) -> Iterator[tuple[int, float]]:
    """Steps made and accuracy, at each quarter of the seconds. Compilation and evaluations take no time."""
    argmin = problem.argmin(contender.solver, contender.jacobian, compile=contender.solver.steps > 1, audit=False)
    x, y = problem.start(), problem.y0
    optimizer = torch.optim.Adam(list(x.values()), lr=contender.lr)
    inner, outer = Minibatches(problem.train, ROWS, 2 * seed), Minibatches(problem.val, ROWS, 2 * seed + 1)
    shown = tuple(part[:SHOWN] for part in problem.val)

    def gradient() -> None:
        nonlocal y
        optimizer.zero_grad()
        reached = argmin(x, y, inner.next())
        problem.outer_loss(x, reached, outer.next()).backward()
        y = {name: t.detach() for name, t in reached.items()}

    gradient()
    y, spent, steps = problem.y0, 0.0, 0
    for mark in (seconds / 4, seconds / 2, 3 * seconds / 4, seconds):
        while spent < mark:
            began = time.process_time()
            gradient()
            optimizer.step()
            spent, steps = spent + time.process_time() - began, steps + 1
        yield steps, problem.accuracy(x, y, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--seconds", type=float, default=12.0, help="of processor time, for each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="the contenders whose names contain this")
    given = parser.parse_args()
    for contender in CONTENDERS:
        for seed in range(given.seeds) if given.only in contender.name else ():
            problem = pzobo.problems.deep_hr(given.data, seed=seed)
            print(f"{contender.name}, seed {seed}, steps: accuracy", end="", flush=True)
            try:
                for steps, accuracy in run(problem, contender, given.seconds, seed):
                    print(f"  {steps}: {accuracy:.4f}", end="", flush=True)
            except pzobo.errors.PzoboError as error:
                print(f"  refused: {error}", end="")
            print(flush=True)


if __name__ == "__main__":
    main()
