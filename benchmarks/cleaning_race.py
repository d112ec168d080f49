"""Who cleans MNIST faster, SOBA here or in JAX? `python -m benchmarks.cleaning_race [--seconds 20] [--seeds 3]`.

Data cleaning as in benchmark_bilevel, half of the labels random, batches of 64. Prints the loss of y on the validation
images, its error on the test images in %, and the loss with the inner problem solved for x, which is what x is worth:
medians over the seeds, after some seconds of the processor. The first turn, which compiles, and evaluations take no
time.
"""

from benchmarks.environment import use_one_thread

use_one_thread(bound=False)

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.single_loop import CHUNK, Turn, in_jax, ours  # noqa: E402
from pzobo.bench.experiments.memory import DataCleaning  # noqa: E402
from pzobo.bench.report.markdown import table  # noqa: E402
from pzobo.jacobians import Direct  # noqa: E402

SHARES = (0.1, 0.25, 0.5, 1.0)
"""When to look, of all the seconds."""
RATES = ((0.02, 200.0), (0.02, 500.0), (0.02, 2000.0))
Look = tuple[float, float, float]
"""The loss of y on the validation images, its error on the test images in %, and the loss that x is worth."""
Make = Callable[[Any, int], Turn]
CONTENDERS: dict[str, Make] = {
    **{f"JAX, SGD {r[1]:g}": (lambda problem, seed, r=r: in_jax(problem, r, seed)) for r in RATES},
    **{f"pzobo, SGD {r[1]:g}": (lambda problem, seed, r=r: ours(problem, True, r)) for r in RATES},
    "pzobo, Adam 0.5": lambda problem, seed: ours(problem, True, (0.02, 0.5), torch.optim.Adam),
}
"""By name; y moves by 0.02 everywhere."""


def tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def run(problem: Any, turn: Turn, seconds: float) -> tuple[list[Look], int]:
    """What is seen at each mark, and how many steps were made."""
    found, turns, spent = [], 1, 0.0
    x, y = turn()
    for share in SHARES:
        while spent < share * seconds:
            began = time.process_time()
            x, y = turn()
            spent, turns = spent + time.process_time() - began, turns + 1
        found.append(look(problem, tensor(x), tensor(y)))
    return found, CHUNK * turns


def look(problem: Any, x: torch.Tensor, y: torch.Tensor) -> Look:
    with torch.no_grad():
        solution = problem.argmin(DataCleaning().to_the_end, Direct())(x, problem.y0, problem.train)
    metrics = problem.metrics(x, y)
    return metrics["val_loss"], 100 * (1 - metrics["test_accuracy"]), problem.metrics(x, solution)["val_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--data", choices=("digits", "mnist"), default="mnist", help="MNIST is looked for in PZOBO_DATA"
    )
    parser.add_argument("--corruption", type=float, default=0.5)
    given = parser.parse_args()
    problems = [DataCleaning(data=given.data, corruption=given.corruption).problem(seed) for seed in range(given.seeds)]
    rows = []
    for name, make in CONTENDERS.items():
        runs = [run(problem, make(problem, seed), given.seconds) for seed, problem in enumerate(problems)]
        looks = zip(*(found for found, _ in runs), strict=True)
        cells = ["{:.4f} / {:.1f} / **{:.4f}**".format(*map(median, zip(*look, strict=True))) for look in looks]
        worth = [found[-1][-1] for found, _ in runs]
        rows.append([name, *cells, f"{min(worth):.4f} to {max(worth):.4f}", f"{median(n for _, n in runs):,.0f}"])
        print(" | ".join(rows[-1]), flush=True)
    marks = [f"{share * given.seconds:g} s" for share in SHARES]
    print("\n" + table(["SOBA", *marks, "solved, least to largest", "steps"], rows))


if __name__ == "__main__":
    main()
