"""How fast is pzobo itself: each response Jacobian, compiled and not, in the training loop that a user writes?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import pzobo
from benchmarks.contender import Contender
from benchmarks.peers import CG_STEPS
from benchmarks.problems import Problem

MANY = 64


class Fixed(pzobo.Gaussian):
    """Always the problem's own direction, so that estimates can be compared with those of other contenders."""

    direction: Tensor

    def sample(self, generator: torch.Generator, space: Any) -> Tensor:
        return self.direction.clone()


def contenders(problem: Problem) -> list[Contender]:
    one = pzobo.PZOBO(mu=problem.mu)
    kinds: dict[str, tuple[str, Any]] = {"PZOBO": ("PZOBO", one)}
    if problem.name.startswith("linear"):
        kinds |= {
            "PZOBO at x": ("PZOBO", replace(one, at="x")),
            f"PZOBO Q={MANY}": (f"PZOBO Q={MANY}", replace(one, directions=MANY)),
            "Implicit(CG)": ("implicit CG", pzobo.Implicit(pzobo.CG(CG_STEPS, tol=0.0))),
            "Implicit(FixedPoint)": ("implicit fixed point", pzobo.Implicit(pzobo.FixedPoint(CG_STEPS))),
            "Unrolled": ("unrolled", pzobo.Unrolled()),
            "Unrolled difference": ("unrolled", pzobo.Unrolled(products="difference")),
            "Direct": ("direct", pzobo.Direct()),
        }
    found = []
    for name, (estimates, jacobian) in kinds.items():
        found += [
            _contender(f"pzobo {name}", estimates, problem, jacobian, compile=False),
            _contender(f"pzobo {name}, compiled", estimates, problem, jacobian, compile=True),
        ]
    found.append(_contender("pzobo PZOBO, compiled, no check", "PZOBO", problem, one, compile=True, check=False))
    return found


def _contender(name: str, estimates: str, problem: Problem, jacobian: Any, **options: Any) -> Contender:
    train, val = _batches(problem)
    argmin = _argmin(problem, _seeded(jacobian), **options)
    x = tuple(t.clone().requires_grad_() for t in problem.x0)
    optimizer = torch.optim.Adam(x, lr=problem.outer_lr)

    def step() -> None:
        y = argmin(x, problem.y0, train)
        loss = problem.outer_loss(x, y, val)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    def at_x0() -> Sequence[Tensor]:
        x = tuple(t.clone().requires_grad_() for t in problem.x0)
        y = _argmin(problem, _comparable(jacobian, problem), **options)(x, problem.y0, train)
        return torch.autograd.grad(problem.outer_loss(x, y, val), x, allow_unused=True, materialize_grads=True)

    return Contender(name, estimates, step, at_x0, lambda: [t.detach() for t in x])


def _argmin(problem: Problem, jacobian: Any, **options: Any) -> Any:
    solver: Any = pzobo.GD(problem.lr, problem.steps)
    if problem.momentum:
        solver = pzobo.HeavyBall(problem.lr, problem.momentum, problem.steps)
    return pzobo.Argmin(problem.inner_loss, solver=solver, jacobian=jacobian, prepare=problem.prepare, **options)


def _batches(problem: Problem) -> tuple[Any, Any]:
    if problem.sparse is None:
        return problem.train, problem.val
    train, val = (pzobo.SparseMatrix.from_torch(matrix) for matrix in problem.sparse)
    return (train, problem.train[1]), (val, problem.val[1])


def _seeded(jacobian: Any) -> Any:
    """With a stream of directions of its own: a sampler is advanced by each call."""
    return replace(jacobian, sampler=pzobo.Gaussian(seed=3)) if isinstance(jacobian, pzobo.PZOBO) else jacobian


def _comparable(jacobian: Any, problem: Problem) -> Any:
    """The paper's estimate without scaling; with one direction, along the problem's own."""
    if not isinstance(jacobian, pzobo.PZOBO):
        return jacobian
    if jacobian.directions > 1:
        return replace(_seeded(jacobian), shrink=False)
    sampler = Fixed(seed=0)
    object.__setattr__(sampler, "direction", torch.cat([u.flatten() for u in problem.direction]))
    return replace(jacobian, sampler=sampler, shrink=False, at="x")
