"""What is there to reach in data cleaning? `python -m benchmarks.cleaning_reference --data mnist --corruption 0.5 0.9`.

The weights themselves are the variables, between 0 and 1, so an optimum may lie at the bounds, where sigmoid(x) needs x
without end. L-BFGS-B goes down the value function: the inner problem is solved, and so is its linear system. It starts
where the benchmark does, at 0.12, or with --knows from weights that know which labels are wrong. Prints what it comes
to, as medians over the seeds.
"""

from benchmarks.environment import use_one_thread

use_one_thread(bound=False)

import argparse  # noqa: E402
import time  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.optimize import minimize  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import pzobo  # noqa: E402
from pzobo.bench.experiments.hyperparameters import auc  # noqa: E402
from pzobo.bench.experiments.memory import DataCleaning  # noqa: E402
from pzobo.bench.report.markdown import table  # noqa: E402
from pzobo.problems import Reweighting  # noqa: E402

REG = 0.2


def inner_loss(w: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
    """g of data cleaning, with w in the place of sigmoid(x)."""
    inputs, labels, index = batch
    return (w[index] * cross_entropy(inputs @ y, labels, reduction="none")).mean() + REG * y.square().sum()


class ValueFunction:
    """Phi(w) = f(w, y*(w)) and its gradient, for SciPy; y starts where it was."""

    def __init__(self, problem: Reweighting, solver: pzobo.HeavyBall) -> None:
        jacobian = pzobo.Implicit(pzobo.CG(100, tol=1e-5))
        self.problem, self.y, self.calls = problem, problem.y0, 0
        self.argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=jacobian, audit=False)

    def __call__(self, numbers: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        w = torch.from_numpy(numbers).to(self.y).requires_grad_()
        y = self.argmin(w, self.y, self.problem.train)
        value = self.problem.outer_loss(w, y, self.problem.val)
        (g,) = torch.autograd.grad(value, w)
        self.y, self.calls = y.detach(), self.calls + 1
        return float(value.detach()), g.double().numpy()


def descend(experiment: DataCleaning, seed: int, knows: bool, iterations: int) -> list[float]:
    """The least loss, its test error in %, how well the weights tell wrong labels, and how often y* was computed."""
    problem = experiment.problem(seed)
    phi = ValueFunction(problem, experiment.to_the_end)
    start = (~problem.corrupted).double() if knows else problem.x0.double().sigmoid()
    options = {"maxiter": iterations, "maxcor": 30, "ftol": 0, "gtol": 0}
    found = minimize(phi, start.numpy(), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options)
    w = torch.from_numpy(found.x).to(problem.y0)
    metrics = problem.metrics(w, phi.argmin(w, phi.y, problem.train))
    ends = float(((w < 0.01) | (w > 0.99)).double().mean())
    return [metrics["val_loss"], 100 * (1 - metrics["test_accuracy"]), auc(w, problem.corrupted), ends, phi.calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", choices=("digits", "mnist"), default="digits", help="MNIST is looked for in PZOBO_DATA"
    )
    parser.add_argument("--corruption", type=float, nargs="+", default=[0.5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--knows", action="store_true", help="start from 1 for right labels and 0 for wrong ones")
    given = parser.parse_args()
    rows = []
    for corruption in given.corruption:
        experiment, found = DataCleaning(data=given.data, corruption=corruption), []
        for seed in range(given.seeds):
            found.append(descend(experiment, seed, given.knows, given.iterations))
            print(corruption, seed, found[-1], f"{time.process_time():.0f} s", flush=True)
        losses = [one[0] for one in found]
        cells = [f"{median(column):.4g}" for column in zip(*found, strict=True)]
        rows.append([f"{corruption:g}", *cells, f"{min(losses):.4f} to {max(losses):.4f}"])
    head = ["random labels", "loss", "test error, %", "AUC", "share at a bound", "calls", "least to largest"]
    print("\n" + table(head, rows))


if __name__ == "__main__":
    main()
