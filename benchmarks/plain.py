"""How fast is PZOBO written directly in PyTorch: as a researcher writes it, and by hand with no autograd?

Both eager forms take gradients from autograd with `create_graph=True`, run the two paths one after another and use
dense data. The paper's authors have the embedding inside the inner loss, so that each step computes the features anew;
`eager`, the reference of the targets, computes them once for a path, which costs a researcher nothing and is faster.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.contender import Contender, torch_contender
from benchmarks.problems import Problem, X


def contenders(problem: Problem) -> list[Contender]:
    def outer(x: X, y: Tensor) -> tuple[X, Tensor]:
        return _eager_outer(problem, x, y)

    by_hand = {"hand": problem.hand_path}
    if problem.plain_path is not None:
        by_hand["hand, plain formula"] = problem.plain_path
    return [
        _pzobo("eager", problem, lambda x: _eager_path(problem, x, once=True), outer),
        _pzobo("eager, as the authors", problem, lambda x: _eager_path(problem, x, once=False), outer),
        *(
            _pzobo(name, problem, lambda x, path=path: _hand_path(problem, path, x), problem.hand_outer)
            for name, path in by_hand.items()
        ),
    ]


def _pzobo(
    name: str,
    problem: Problem,
    path: Callable[[X], Tensor],
    outer: Callable[[X, Tensor], tuple[X, Tensor]],
) -> Contender:
    generator = torch.Generator().manual_seed(2)

    def estimate(x: X, u: X, shrink: float) -> list[Tensor]:
        y = path(x)
        perturbed = path(tuple((a + problem.mu * b).detach().requires_grad_() for a, b in zip(x, u, strict=True)))
        direct, v = outer(x, y)
        with torch.no_grad():
            weight = shrink / problem.mu * torch.dot((perturbed - y).flatten(), v.flatten())
            return [a + weight * b for a, b in zip(direct, u, strict=True)]

    def drawn(x: X) -> list[Tensor]:
        return estimate(x, tuple(torch.randn(t.shape, generator=generator) for t in x), problem.shrink)

    contender = torch_contender(name, "PZOBO", problem, drawn)

    def along_direction() -> list[Tensor]:
        return estimate(tuple(t.clone().requires_grad_() for t in problem.x0), problem.direction, 1.0)

    return Contender(name, "PZOBO", contender.step, along_direction, contender.x)


def _eager_path(problem: Problem, x: X, once: bool) -> Tensor:
    y = problem.y0.clone().requires_grad_()
    velocity = torch.zeros_like(y) if problem.momentum else None
    features = problem.prepare(x, problem.train) if once else None
    for _ in range(problem.steps):
        z = problem.prepare(x, problem.train) if features is None else features
        loss = problem.inner_loss(z, y, problem.train)
        (gradient,) = torch.autograd.grad(loss, y, create_graph=True)
        if velocity is not None:
            gradient = velocity = problem.momentum * velocity + gradient
        y = y - problem.lr * gradient
    return y


def _eager_outer(problem: Problem, x: X, y: Tensor) -> tuple[X, Tensor]:
    y = y.detach().requires_grad_()
    *direct, v = torch.autograd.grad(
        problem.outer_loss(x, y, problem.val), (*x, y), allow_unused=True, materialize_grads=True
    )
    return tuple(direct), v


@torch.no_grad()
def _hand_path(problem: Problem, path: Callable[[Tensor], Tensor], x: X) -> Tensor:
    return path(problem.prepare(x, problem.train))
