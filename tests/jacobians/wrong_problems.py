"""Which estimators are wrong in a way that an audit must see? `WRONG` has a function for each case, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import pzobo
from benchmarks.real_problems import digits_cnn
from tests.helpers import normal
from tests.jacobians.audit_problems import F32, F64, Case, regression, transformer, variable


@dataclass(frozen=True)
class Wrong:
    """A case with a Jacobian that is wrong on it, in a way that an audit must see."""

    case: Case
    jacobian: Any
    exact: Any = field(default_factory=pzobo.Unrolled)
    """A Jacobian whose answer is the derivative of y^N, where there is one."""
    long: float = 0.0
    """Times the length that a probe had in version 0.1; 0 for the length that the library finds."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """Where forward and backward pass run."""

    @contextlib.contextmanager
    def conditions(self) -> Iterator[None]:
        """In which the Jacobian is wrong."""
        with contextlib.ExitStack() as stack:
            if self.long:
                stack.enter_context(mock.patch("pzobo.inner.kernel.probe_size", partial(long_probe, times=self.long)))
                stack.enter_context(mock.patch("pzobo.inner.probe.Probe.adjust", return_value=None))
            stack.enter_context(self.around())
            yield


def long_probe(y: Any, q: Any, times: float) -> Tensor:
    """The length of a probe as version 0.1 had it: by the norm of all of y. Too long for many or uneven variables."""

    def norm(leaves: Any) -> Tensor:
        return torch.stack([t.double().norm() for t in leaves]).norm().to(leaves[0].dtype)

    size, along = norm(y), norm(q)
    length: Tensor = times * torch.where(size > 0, size, 1.0) / torch.where(along > 0, along, 1.0)
    return length


DIFFERENCE = pzobo.Unrolled(products="difference")


def long_probe_on_a_transformer() -> Wrong:
    case = transformer(F32, pzobo.HeavyBall(0.2, 0.9, 10))
    return Wrong(case, DIFFERENCE, long=4.0)


def one_of_a_million() -> Wrong:
    """10^6 inner variables near 1, of which the outer loss sees one: the truth is a number near 1 there."""
    d = 10**6
    case = Case(
        lambda x, y, batch: (0.5 * (y - x).square() + 0.1 * (y - x).pow(4)).sum(),
        lambda x, y: y[0],
        variable(torch.ones(d)),
        torch.ones(d) + 0.1,
        pzobo.GD(0.5, 5),
    )
    return Wrong(case, DIFFERENCE, long=1.0)


def one_large_variable() -> Wrong:
    """y = (1000, small ones): a step of 1 % of |y| leaves the domain of the small ones."""
    target = torch.tensor([1000.0, 0.1, 0.2, 0.3])
    case = Case(
        lambda x, y, batch: 1e-6 * (y[0] - 1000 * x[0]).square() + (y[1:] - y[1:].log() * x[1:]).sum(),
        lambda x, y: (y[1:] - 0.15).square().sum(),
        variable(torch.tensor([1.0, 0.1, 0.2, 0.3])),
        1.1 * target,
        pzobo.GD(0.02, 20),
    )
    return Wrong(case, DIFFERENCE, long=1.0)


def autocast_and_adam() -> Wrong:
    """Differences of gradients that are computed in bfloat16, divided by roots of second moments."""

    def around() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    return Wrong(transformer(F32, pzobo.Adam(1e-3, 10)), DIFFERENCE, around=around)


def detached() -> Wrong:
    """dg/dy is x y.detach(), and dg/dx is y.detach() y: mixed derivatives that are not symmetric. Twice the truth.

    One step, so that the path itself does have the derivative that autograd takes for it.
    """
    case = Case(
        lambda x, y, batch: (x * y.detach() * y).sum(),
        lambda x, y: y.sum(),
        variable(torch.linspace(0.5, 1.5, 6, dtype=F64)),
        torch.ones(6, dtype=F64),
        pzobo.GD(0.3, 1),
    )
    return Wrong(case, DIFFERENCE)


def straight_through() -> Wrong:
    """Rounded weights whose gradient is taken as if they were not. One step, as for `detached`."""
    X, t = regression(40, 5, F64)

    def rounded(y: Tensor) -> Tensor:
        return y + ((4 * y).round() / 4 - y).detach()

    case = Case(
        lambda x, y, batch: (X @ rounded(y) - t).square().mean() + (x.exp() * rounded(y) * y).sum(),
        lambda x, y: (X @ y - t).square().mean(),
        variable(torch.full((5,), -2.0, dtype=F64)),
        normal(5, seed=3),
        pzobo.GD(0.1, 1),
    )
    return Wrong(case, DIFFERENCE)


def adam_is_no_slope(eps: float = 1e-8) -> Wrong:
    """The exact derivative of Adam's path on a tanh network: no slope at any scale one can step by.

    Slope / length at mu = .3, .1, .03: .73 .46 .24. A larger eps helps: with 0.01 they are .97 1.00 .98.
    """
    problem = digits_cnn(torch.tanh, batch_norm=False, rows=100, channels=(4, 6), seed=2)
    return Wrong(Case.of(problem, pzobo.Adam(1e-2, 20, eps=eps)), pzobo.Unrolled(checkpoint=True))


WRONG: dict[str, Callable[[], Wrong]] = {
    "long probe on a transformer": long_probe_on_a_transformer,
    "one of a million": one_of_a_million,
    "one large variable": one_large_variable,
    "autocast and Adam": autocast_and_adam,
    "detach": detached,
    "straight-through": straight_through,
    "Adam is no slope": adam_is_no_slope,
}
