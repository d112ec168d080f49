"""How fast are the bilevel libraries for PyTorch, TorchOpt and higher, on the same problem?

Each computes the features once for a path, which their documentation leaves to the user and which helps all of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contender import Contender, torch_contender
from benchmarks.problems import Problem, X

CG_STEPS = 20


class Inner(nn.Module):
    """TorchOpt and higher take the inner variables as a module's parameters and its loss as the module's value."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.y = nn.Parameter(problem.y0.clone())

    def forward(self, z: Tensor) -> Tensor:
        return self.problem.inner_loss(z, self.y, self.problem.train)


def contenders(problem: Problem) -> list[Contender]:
    builders = {
        "TorchOpt implicit CG": ("implicit CG", _torchopt_implicit),
        "TorchOpt unrolled": ("unrolled", _torchopt_unrolled),
        "higher unrolled": ("unrolled", _higher),
    }
    return [torch_contender(name, kind, problem, build(problem)) for name, (kind, build) in builders.items()]


def _outer_gradient(problem: Problem, x: X, y: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(problem.outer_loss(x, y, problem.val), x)


def _torchopt_unrolled(problem: Problem) -> Any:
    import torchopt

    inner = Inner(problem)
    optimizer = torchopt.MetaSGD(inner, lr=problem.lr)
    start = torchopt.extract_state_dict(inner, by="reference"), torchopt.extract_state_dict(optimizer, by="reference")

    def hypergradient(x: X) -> tuple[Tensor, ...]:
        z = problem.prepare(x, problem.train)
        for _ in range(problem.steps):
            optimizer.step(inner(z))
        gradient = _outer_gradient(problem, x, inner.y)
        torchopt.recover_state_dict(inner, start[0])
        torchopt.recover_state_dict(optimizer, start[1])
        return gradient

    return hypergradient


def _torchopt_implicit(problem: Problem) -> Any:
    import torchopt
    from torchopt.diff.implicit import custom_root

    def stationarity(y: Tensor, z: Tensor) -> Any:
        return torch.func.grad(problem.inner_loss, argnums=1)(z, y, problem.train)

    solve = torchopt.linear_solve.solve_cg(maxiter=CG_STEPS, rtol=0.0, atol=0.0)

    def descend(y: Tensor, z: Tensor) -> Tensor:
        z, y = z.detach(), y.detach().requires_grad_()
        with torch.enable_grad():
            for _ in range(problem.steps):
                (gradient,) = torch.autograd.grad(problem.inner_loss(z, y, problem.train), y)
                y = (y - problem.lr * gradient).detach().requires_grad_()
        return y

    argmin: Any = custom_root(stationarity, argnums=1, solve=solve)(descend)

    def hypergradient(x: X) -> tuple[Tensor, ...]:
        return _outer_gradient(problem, x, argmin(problem.y0, problem.prepare(x, problem.train)))

    return hypergradient


def _higher(problem: Problem) -> Any:
    import higher

    inner = Inner(problem)
    optimizer = torch.optim.SGD(inner.parameters(), lr=problem.lr)

    def hypergradient(x: X) -> tuple[Tensor, ...]:
        z = problem.prepare(x, problem.train)
        with higher.innerloop_ctx(inner, optimizer) as (functional, unrolled):
            for _ in range(problem.steps):
                unrolled.step(functional(z))
            return _outer_gradient(problem, x, functional.y)

    return hypergradient
