"""How is y^N reached? Inner solvers: small objects that know one update, and nothing of how y is differentiated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.distributed.jobs import call_all, check_draws, said
from pzobo.errors import OptionError
from pzobo.inner.numbers import Limit, Schedule
from pzobo.inner.problem import InnerProblem
from pzobo.inner.solver import Iterative, Solver
from pzobo.options import in_range, positive
from pzobo.tensors import trees
from pzobo.tensors.checks import untouched
from pzobo.tensors.many import groups, many
from pzobo.tensors.trees import Leaves, Tree

__all__ = ["GD", "Adam", "AdamW", "BlackBox", "ClosedForm", "HeavyBall", "Iterative", "Schedule", "Solver"]


Number = Any
"""A number; or a function of x that gives one, a `Schedule`, or a dict of these by the names in y."""

_NOT_NEGATIVE, _BELOW_ONE = partial(in_range, low=0, high=math.inf), partial(in_range, low=0, high=1)
_RATES: dict[str, Limit] = {"lr": positive, "weight_decay": _NOT_NEGATIVE}


@dataclass(frozen=True, repr=False)
class GD(Iterative):
    """Gradient descent, y <- y - lr * dg/dy (Algorithm 1, line 5; with `batches=` it is SGD, Algorithm 2).

    Args:
        lr: the inner step size, alpha in the paper; positive. This and the other numbers of solvers may be functions
            of x, a `Schedule`, or a dict of these by the names in y. Of a tensor the number that it holds now is
            taken.
        steps: N, the number of inner steps; at least 1.
        weight_decay: half of it times |y|^2 is added to g, as in torch.optim.SGD.
        tol: a path ends when |dg/dy| is no more than this, after at least one step; `steps` is then the most.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (y - x).square().sum()
        >>> solver = pzobo.GD(lr=0.2, steps=30)
        >>> argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled())
        >>> argmin(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1.0000, 2.0000])
    """

    lr: Number
    steps: int
    weight_decay: Number = field(default=0.0, kw_only=True)
    tol: float = field(default=0.0, kw_only=True)
    numbers = ("lr", "weight_decay")
    limits = _RATES
    linear = True

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return trees.add(y, gradient, -self.lr), state

    def update_(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        trees.add_(y, gradient, -self.lr)
        return y, state

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        return trees.mul(y_bar, -self.lr), y_bar, ()


@dataclass(frozen=True, repr=False)
class HeavyBall(Iterative):
    """Gradient descent with momentum, as torch.optim.SGD: b <- momentum * b + dg/dy, y <- y - lr * b.

    Args:
        lr: the inner step size; positive.
        momentum: what a step keeps of b, in [0, 1). 0 is gradient descent.
        steps: N, the number of inner steps; at least 1.
        weight_decay: half of it times |y|^2 is added to g, as in torch.optim.SGD.
        tol: a path ends when |dg/dy| is no more than this, after at least one step; `steps` is then the most.
        nesterov: y <- y - lr * (dg/dy + momentum * b), as torch.optim.SGD has it.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (y - x).square().sum()
        >>> solver = pzobo.HeavyBall(lr=0.1, momentum=0.5, steps=50)
        >>> argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled())
        >>> argmin(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1.0000, 2.0000])
    """

    lr: Number
    momentum: Number
    steps: int
    weight_decay: Number = field(default=0.0, kw_only=True)
    tol: float = field(default=0.0, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)
    numbers = ("lr", "momentum", "weight_decay")
    limits = _RATES | {"momentum": _BELOW_ONE}
    linear = True

    def init(self, y: Leaves) -> Leaves:
        return trees.zeros(y)

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        state = trees.add(gradient, state, self.momentum)
        along = trees.add(gradient, state, self.momentum) if self.nesterov else state
        return trees.add(y, along, -self.lr), state

    def update_(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        state = trees.added(gradient, state, self.momentum)
        along = trees.added(gradient, state, self.momentum) if self.nesterov else state
        trees.add_(y, along, -self.lr)
        return y, state

    def pull(
        self, gradient: Leaves, y: Leaves, state: Leaves, y_bar: Leaves, state_bar: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        along = trees.mul(y_bar, -self.lr)
        bar = trees.add(state_bar, along, self.momentum if self.nesterov else 1.0)
        return trees.add(bar, along) if self.nesterov else bar, y_bar, trees.mul(bar, self.momentum)


@dataclass(frozen=True, repr=False)
class Adam(Iterative):
    """Adam with the numbers of torch.optim.Adam. Its derivative at a zero gradient is finite.

    Args:
        lr: the inner step size; positive.
        steps: N, the number of inner steps; at least 1.
        betas: what the averages of the gradient and of its square keep at each step, both in [0, 1).
        eps: added to the root of the averaged square, so that nothing is divided by 0; positive.
        weight_decay: half of it times |y|^2 is added to g, as in torch.optim.Adam.
        tol: a path ends when |dg/dy| is no more than this, after at least one step; `steps` is then the most.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (y - x).square().sum()
        >>> solver = pzobo.Adam(lr=0.1, steps=300)
        >>> argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled())
        >>> argmin(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1., 2.])
    """

    lr: Number
    steps: int
    betas: tuple[Number, Number] | dict[Any, Any] = (0.9, 0.999)
    eps: Number = 1e-8
    weight_decay: Number = field(default=0.0, kw_only=True)
    tol: float = field(default=0.0, kw_only=True)
    # Adam's map changes with its state and has no fixed point of its own to differentiate at.
    gives = frozenset({"gradient", "path"})
    numbers = ("lr", "betas", "eps", "weight_decay")
    limits = _RATES | {"betas": _BELOW_ONE, "eps": positive}

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _pairs(f"{type(self).__name__}: betas", self.betas))
        super().__post_init__()

    def init(self, y: Leaves) -> Leaves:
        # 1 - beta^t by its recursion c <- beta c + (1 - beta): full relative precision also in float32, where
        # computing 1 - beta^t directly would lose four digits at t = 1.
        corrections = tuple(torch.zeros((), dtype=trees.wide(y[0].dtype), device=y[0].device) for _ in range(2))
        # In half precision a square of 1e-3 is nothing: moments are kept in float32.
        moments = [torch.zeros_like(t, dtype=trees.wide(t.dtype)) for _ in range(2) for t in y]
        return (*corrections, *moments)

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        beta1, beta2 = self.betas
        c1 = _of(beta1, state[0]) * state[0] + _of(1 - beta1, state[0])
        c2 = _of(beta2, state[1]) * state[1] + _of(1 - beta2, state[1])
        gradient = tuple([g.to(trees.wide(g.dtype)) for g in gradient])
        first = tuple(torch.lerp(m, g, _of(1 - beta1, m)) for m, g in zip(state[2 : 2 + len(y)], gradient, strict=True))
        second = tuple(
            _of(beta2, v) * v + _of(1 - beta2, v) * g * g for v, g in zip(state[2 + len(y) :], gradient, strict=True)
        )
        steps = (
            (self.lr / c1).to(v.device, v.dtype)
            * torch.where(v == 0, 0.0, m / (_sqrt(v) / c2.sqrt().to(v.device, v.dtype) + _of(self.eps, v)))
            for m, v in zip(first, second, strict=True)
        )
        new = tuple([(t - step).to(t.dtype) for t, step in zip(y, steps, strict=True)])
        return new, (c1, c2, *first, *second)

    def update_(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        beta1, beta2 = self.betas
        if isinstance(beta1, Tensor) or isinstance(beta2, Tensor):  # lists have no average by a tensor in the same bits
            return Adam.update(self, gradient, y, state)
        c1, c2, first, second = *state[:2], state[2 : 2 + len(y)], state[2 + len(y) :]
        c1, c2 = beta1 * c1 + (1 - beta1), beta2 * c2 + (1 - beta2)
        rate, scale = self.lr / c1, c2.sqrt()
        for part in groups(y):
            t, g, m, v = y[part], gradient[part], first[part], second[part]
            many("lerp_", m, g, 1 - beta1)
            many("mul_", v, beta2)
            squares = many("mul", g, 1 - beta2)
            many("mul_", squares, g)
            many("add_", v, squares)
            del squares
            roots = many("sqrt", v)
            many("div_", roots, scale.to(v[0].device, v[0].dtype))
            many("add_", roots, _of(self.eps, roots[0]))
            steps = many("div", m, roots)
            del roots
            many("mul_", steps, many("sign", v))  # 0 where nothing was ever seen
            many("mul_", steps, rate.to(t[0].device, t[0].dtype))
            many("sub_", t, steps)
        return y, (c1, c2, *first, *second)


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Adam with a decoupled weight decay, as torch.optim.AdamW: y <- (1 - lr * weight_decay) * y, then a step of Adam.

    The decay is no part of g, and the path does not end at a minimum of g. So the Jacobians that speak of such a
    minimum, `Implicit` and `Nudged`, do not take it.

    Args:
        lr: the inner step size; positive.
        steps: N, the number of inner steps; at least 1.
        betas: what the averages of the gradient and of its square keep at each step, both in [0, 1).
        eps: added to the root of the averaged square, so that nothing is divided by 0; positive.
        weight_decay: what a step takes away of y, times lr.
        tol: a path ends when |dg/dy| is no more than this, after at least one step; `steps` is then the most.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> def inner_loss(x, y, batch):
        ...     return (y - x).square().sum()
        >>> solver = pzobo.AdamW(lr=0.1, steps=300, weight_decay=0.01)
        >>> argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled())
        >>> argmin(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([0.9989, 1.9942])
    """

    weight_decay: Number = field(default=0.01, kw_only=True)
    decoupled = True
    gives = frozenset({"path"})
    numbers = ("lr", "betas", "eps", "weight_decay")

    def update(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        return Adam.update(self, gradient, trees.mul(y, 1 - self.lr * self.weight_decay), state)

    def update_(self, gradient: Leaves, y: Leaves, state: Leaves) -> tuple[Leaves, Leaves]:
        trees.scaled(y, 1 - self.lr * self.weight_decay, "mul_")
        return Adam.update_(self, gradient, y, state)


def _pairs(what: str, betas: Any) -> Any:
    """A pair, or a dict of pairs."""
    if isinstance(betas, dict):
        return {name: _pairs(what, part) for name, part in betas.items()}
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise OptionError(f"{what}={betas!r}: must be a pair of numbers in [0, 1).")
    return tuple(betas)


def _of(number: float | Tensor, like: Tensor) -> Any:
    """A number that does not change the dtype of what it is multiplied with: a tensor would where both are scalars."""
    return number.to(like.device, like.dtype) if isinstance(number, Tensor) else number


def _sqrt(v: Tensor) -> Tensor:
    """The square root with derivative 0 at 0 instead of infinity (which times 0 would be NaN)."""
    return torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0)


@dataclass(frozen=True)
class ClosedForm(Solver):
    """y = fn(z, batch): the inner problem solved by a formula.

    `Unrolled` and `ForwardMode` differentiate `fn` itself; `Implicit` uses only its value and the loss.

    Args:
        fn: the formula as `fn(z, batch) -> y`, in y0's structure, where z = prepare(x, batch), or x itself.

    Examples:
        >>> argmin = pzobo.Argmin(None, solver=pzobo.ClosedForm(lambda z, batch: 2 * z), jacobian=pzobo.Unrolled())
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> argmin(x, torch.zeros(2)).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """

    fn: Callable[[Tree, Tree], Tree]
    gives = frozenset({"gradient", "function"})

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        z, batch, _ = next(problem.feed(values))
        answer = problem.like_y0(self.fn(problem.kernel.z_plan.build(z), batch), "The closed form")
        return tuple([t.clone() for t in answer])  # fn may give the same memory each time, filled anew


@dataclass(frozen=True)
class BlackBox(Solver):
    """y = fn(x, y0, batch): any code at all (NumPy, scikit-learn, a subprocess). Nothing is asked of it but values.

    With `batches=` it gets the whole list. It may return NumPy arrays; gradients are enabled while it runs.

    Args:
        fn: the code as `fn(x, y0, batch) -> y`, in y0's structure. It gets a copy of y0, which it may change.
        jobs: how many perturbed calls of PZOBO run side by side, each in a process, by joblib: -1 is one for each
            processor. The answer has the same bits. Inside of `joblib.parallel_config(backend=...)` they run there: on
            a Dask or Ray cluster, say.

    Raises:
        OptionError: `jobs` is no whole number, or 0.

    Examples:
        >>> box = pzobo.BlackBox(lambda x, y0, batch: x.numpy() ** 2)
        >>> jacobian = pzobo.PZOBO(mu=1e-3, directions=2, sampler=pzobo.Orthogonal(seed=0), antithetic=True)
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> pzobo.Argmin(None, solver=box, jacobian=jacobian)(x, torch.zeros(2)).sum().backward()
        >>> x.grad.round(decimals=1)
        tensor([2., 4.])
    """

    fn: Callable[[Tree, Tree, Tree], Tree]
    jobs: int = field(default=1, repr=False)
    opaque = True

    def __post_init__(self) -> None:
        if isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs == 0:
            raise OptionError(f"BlackBox: jobs={self.jobs!r}: must be a whole number; -1 for all processors.")

    @property
    def side_by_side(self) -> bool:
        return self.jobs != 1

    def solve(self, problem: InnerProblem, values: Leaves, functional: bool = False) -> Leaves:
        def call() -> Leaves:
            arguments = self._arguments(problem, values)
            unchanged = untouched(problem.data, "The black box", "its batch", closely=problem.check)
            with torch.enable_grad(), unchanged, said(arguments[0]):
                answer = self.fn(*arguments)
            return self._answer(problem, answer)

        return check_draws(self.jobs, call) if self.side_by_side and problem.questions.asked == 0 else call()

    def solve_all(self, problem: InnerProblem, values: Iterable[Leaves]) -> list[Leaves]:
        state = torch.get_rng_state() if problem.replay.random else None
        calls = [self._arguments(problem, one) for one in values]
        return [self._answer(problem, answer) for answer in call_all(self.fn, calls, self.jobs, state)]

    def _arguments(self, problem: InnerProblem, values: Leaves) -> tuple[Tree, Tree, Tree]:
        """Whatever the black box keeps or writes into is not what the caller has, nor what the other paths see."""
        x = optree.tree_map(trees.copied, problem.x(values))
        return x, problem.kernel.y_plan.build(t.clone() for t in problem.start(values)), problem.data

    def _answer(self, problem: InnerProblem, answer: Tree) -> Leaves:
        return tuple([t.detach().clone() for t in problem.like_y0(answer, "The black box")])
