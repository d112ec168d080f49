"""How fast is an outer step on 20 Newsgroups, beside plain CSR and dense tensors? `python -m benchmarks.newsgroups`.

One outer step of PZOBO (Q = 1, N = 5, heavy ball) on the real data: 130,107 x 20 weights. The contenders are pzobo with
its SparseMatrix, and the same in eager PyTorch on a CSR tensor, whose product autograd transposes every time, and on
the dense matrix. All three must give the same hypergradient.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import pzobo
from benchmarks.contender import relative_error
from benchmarks.environment import describe
from pzobo.problems import logistic_ho

LR, MOMENTUM, MU, START = 100.0, 0.9, 0.01, 5.56
WANTED = 4.0


def ours(problem: Any, steps: int, u: Tensor, compiled: bool) -> Callable[[Tensor], Tensor]:
    class Fixed(pzobo.Gaussian):
        def sample(self, generator: Any, space: Any) -> Tensor:
            return u.flatten().clone()

    jacobian = pzobo.PZOBO(mu=MU, sampler=Fixed(), shrink=False, at="x")
    argmin = problem.argmin(pzobo.HeavyBall(LR, MOMENTUM, steps), jacobian, compile=compiled)

    def hypergradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        problem.objective(argmin, x).backward()
        assert x.grad is not None
        return x.grad

    return hypergradient


def eager(train: Any, val: Any, y0: Tensor, steps: int, u: Tensor) -> Callable[[Tensor], Tensor]:
    def path(x: Tensor) -> Tensor:
        strength, y, velocity = x.exp(), y0, torch.zeros_like(y0)
        for _ in range(steps):
            y = y.detach().requires_grad_()
            loss = cross_entropy(train[0] @ y, train[1]) + 0.5 * (strength * y.square()).mean()
            velocity = MOMENTUM * velocity + torch.autograd.grad(loss, y)[0]
            y = y.detach() - LR * velocity
        return y

    def hypergradient(x: Tensor) -> Tensor:
        y, other = path(x), path(x + MU * u)
        leaf = y.detach().requires_grad_()
        v = torch.autograd.grad(cross_entropy(val[0] @ leaf, val[1]), leaf)[0]
        return torch.dot((other - y).flatten() / MU, v.flatten()) * u

    return hypergradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="the data folder; PZOBO_DATA, the cache or a download by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="inner steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = logistic_ho("newsgroups", root=options.root, start=START)
    u = torch.randn(problem.x0.shape, generator=torch.Generator().manual_seed(0))
    csr = [(part[0]._plain(), part[1]) for part in (problem.train, problem.val)]
    dense = [(part[0].to_dense(), part[1]) for part in (problem.train, problem.val)]
    contenders = {
        "pzobo, compiled": ours(problem, options.steps, u, True),
        "pzobo": ours(problem, options.steps, u, False),
        "plain CSR": eager(*csr, problem.y0, options.steps, u),
        "dense": eager(*dense, problem.y0, options.steps, u),
    }
    reference = contenders["dense"](problem.x0)
    errors = {name: relative_error([found(problem.x0)], [reference]) for name, found in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, found in contenders.items():
            began = time.process_time()
            found(problem.x0)
            taken[name].append(time.process_time() - began)
    print(describe())
    best = median(taken["pzobo, compiled"])
    print(f"{'one outer step':<18} {'s':>8} {'/ pzobo':>8}  error to dense")
    for name, times in taken.items():
        print(f"{name:<18} {median(times):8.3f} {median(times) / best:8.1f}  {errors[name]:.0e}")
    for name in ("plain CSR", "dense"):
        ratio = median(taken[name]) / best
        print(f"{name} / pzobo, compiled: {ratio:.1f}, wanted at least {WANTED}: {'yes' if ratio >= WANTED else 'NO'}")


if __name__ == "__main__":
    main()
