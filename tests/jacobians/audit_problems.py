"""On what is an audit tried? Twenty smooth problems, where an exact estimator is never to be blamed.

`SMOOTH` has functions by name; each makes its case when it is called. A case is small: seconds at most. The wrong cases
are in `wrong_problems`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optree
import torch
from torch import Tensor
from torch.nn import functional as F

import pzobo
from benchmarks.real_problems import character_transformer, digits_cnn
from pzobo.problems import linear_hr, quadratic, two_layer_hr
from tests.helpers import normal

F32, F64 = torch.float32, torch.float64


@dataclass(frozen=True)
class Case:
    """An inner problem with its solver, and the outer loss that looks at its answer."""

    inner_loss: Any
    outer_loss: Callable[[Any, Any], Tensor]
    x: Any
    """Outer variables, which require a gradient."""
    y0: Any
    solver: Any
    batch: Any = None
    batches: Any = None
    prepare: Any = None

    @staticmethod
    def of(problem: pzobo.Problem, solver: Any) -> Case:
        """A case from a problem, at x0."""
        return Case(
            problem.inner_loss,
            lambda x, y: problem.outer_loss(x, y, problem.val),
            problem.start(),
            problem.y0,
            solver,
            batch=problem.train,
            prepare=problem.prepare,
        )

    @property
    def data(self) -> dict[str, Any]:
        return {"batch": self.batch} if self.batches is None else {"batches": self.batches}

    def argmin(self, jacobian: Any, **options: Any) -> pzobo.Argmin:
        return pzobo.Argmin(self.inner_loss, solver=self.solver, jacobian=jacobian, prepare=self.prepare, **options)

    def hypergradient(self, argmin: pzobo.Argmin) -> Tensor:
        """d/dx of outer_loss(x, y^N(x)) as one vector, by the argmin's Jacobian."""
        leaves: Any = [t for t in optree.tree_leaves(self.x) if t.requires_grad]
        loss = self.outer_loss(self.x, argmin(self.x, self.y0, **self.data))
        found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return torch.cat([t.flatten() for t in found])

    def value(self, x: Any) -> float:
        """outer_loss(x, y^N(x)) at another x."""
        with torch.no_grad():
            return float(self.outer_loss(x, self.argmin(pzobo.Direct(), check=False)(x, self.y0, **self.data)))

    def slope(self, u: Tensor, mu: float) -> float:
        """The central difference of outer_loss(x, y^N(x)) along u, a vector as long as all of x."""
        leaves: Any
        leaves, spec = optree.tree_flatten(self.x)
        parts = u.split([t.numel() for t in leaves])

        def moved(by: float) -> Any:
            return optree.tree_unflatten(
                spec, [t.detach() + by * d.reshape(t.shape) for t, d in zip(leaves, parts, strict=True)]
            )

        return (self.value(moved(mu)) - self.value(moved(-mu))) / (2 * mu)


def variable(tree: Any) -> Any:
    """The same tree with tensors that require gradients."""
    return optree.tree_map(lambda t: t.detach().clone().requires_grad_(), tree)


def network(widths: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Weights of a network without biases."""
    return [normal(a, b, seed=seed + i, dtype=dtype) / a**0.5 for i, (a, b) in enumerate(itertools.pairwise(widths))]


def regression(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs, and targets that are a smooth function of them with noise."""
    X = normal(rows, columns, seed=seed, dtype=dtype)
    return X, X[:, 0].sin() + 0.5 * X[:, 1] + 0.1 * normal(rows, seed=seed + 1, dtype=dtype)


def classes(rows: int, columns: int, count: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs, and classes by a linear rule that is the same for every seed."""
    X = normal(rows, columns, seed=seed, dtype=dtype)
    return X, (X @ normal(columns, count, seed=99, dtype=dtype)).argmax(1)


# Twenty smooth problems


def scalar_quadratic() -> Case:
    """p = 1: y* = x a."""
    a = normal(5)
    return Case(
        lambda x, y, batch: 0.5 * (y - x * a).square().sum() + 0.25 * y.square().sum(),
        lambda x, y: (y - 1).square().sum(),
        variable(torch.tensor(0.7, dtype=F64)),
        torch.zeros(5, dtype=F64),
        pzobo.HeavyBall(0.3, 0.5, 15),
    )


def plain_quadratic(dtype: torch.dtype = F64) -> Case:
    return Case.of(quadratic(dtype=dtype), pzobo.GD(0.2, 20))


def wide_quadratic() -> Case:
    """p = 3,000 in float32."""
    return Case.of(quadratic(3000, 40, dtype=F32), pzobo.HeavyBall(0.1, 0.8, 30))


def ridge_strengths() -> Case:
    """One l2 strength for each of 40 weights."""
    (X, t), (V, s) = regression(60, 40, F64), regression(60, 40, F64, seed=5)
    return Case(
        lambda x, y, batch: (X @ y - t).square().mean() + (x.exp() * y.square()).sum(),
        lambda x, y: (V @ y - s).square().mean(),
        variable(torch.full((40,), -3.0, dtype=F64)),
        torch.zeros(40, dtype=F64),
        pzobo.GD(0.1, 30),
    )


def logistic_strengths() -> Case:
    """Softmax regression with one strength for each of 320 weights, in float32."""
    (X, t), (V, s) = classes(100, 32, 10, F32), classes(100, 32, 10, F32, seed=5)
    return Case(
        lambda z, y, batch: F.cross_entropy(batch[0] @ y, batch[1]) + (z * y.square()).mean(),
        lambda x, y: F.cross_entropy(V @ y, s),
        variable(torch.zeros(32, 10)),
        torch.zeros(32, 10),
        pzobo.HeavyBall(0.5, 0.7, 25),
        batch=(X, t),
        prepare=lambda x, batch: x.exp(),
    )


def two_class_logistic() -> Case:
    """The weights of two classes and a strength, p = 3, with a softplus loss."""
    X, t = classes(80, 6, 2, F64)
    V, s = classes(80, 6, 2, F64, seed=5)

    def loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        each = F.softplus(-(2 * t - 1) * (X @ y))
        return (x[:2].exp()[t] * each).mean() + 0.5 * x[2].exp() * y.square().sum()

    return Case(
        loss,
        lambda x, y: F.softplus(-(2 * s - 1) * (V @ y)).mean(),
        variable(torch.tensor([0.2, -0.1, -2.0], dtype=F64)),
        torch.zeros(6, dtype=F64),
        pzobo.GD(0.5, 40),
    )


def mlp(activation: Callable[[Tensor], Tensor], dtype: torch.dtype, solver: Any) -> Case:
    """A two-layer network; x is a weight for each row of its data, by sigmoid."""
    (X, t), (V, s) = regression(50, 8, dtype), regression(50, 8, dtype, seed=5)

    def out(y: list[Tensor], X: Tensor) -> Tensor:
        return (activation(X @ y[0]) @ y[1])[:, 0]

    return Case(
        lambda x, y, batch: (
            (2 * x.sigmoid() * (out(y, X) - t).square()).mean() + 1e-3 * (y[0].square().sum() + y[1].square().sum())
        ),
        lambda x, y: (out(y, V) - s).square().mean(),
        variable(torch.zeros(50, dtype=dtype)),
        network((8, 16, 1), dtype),
        solver,
    )


def distillation() -> Case:
    """Training inputs as outer variables: 10 learned rows teach a tanh network."""
    V, s = regression(60, 6, F64, seed=5)

    def out(y: list[Tensor], X: Tensor) -> Tensor:
        return (torch.tanh(X @ y[0]) @ y[1])[:, 0]

    return Case(
        lambda x, y, batch: (out(y, x["rows"]) - x["targets"]).square().mean(),
        lambda x, y: (out(y, V) - s).square().mean(),
        variable({"rows": normal(10, 6, seed=7), "targets": normal(10, seed=8)}),
        network((6, 12, 1), F64),
        pzobo.GD(0.1, 20),
    )


def transformer(dtype: torch.dtype, solver: Any) -> Case:
    """The character transformer with 3,000 weights."""
    problem = character_transformer(width=16, heads=2, context=12, rows=4, dtype=dtype)
    return Case.of(problem, solver)


def batch_norm(activation: Callable[[Tensor], Tensor], dtype: torch.dtype, solver: Any) -> Case:
    """A convolutional network with BatchNorm and mean pooling on digits."""
    return Case.of(digits_cnn(activation, pool=False, rows=60, channels=(4, 6), dtype=dtype), solver)


def deep_linear() -> Case:
    """Three linear layers; x rotates the targets."""
    X, A = normal(40, 6), normal(6, 3, seed=3)

    def out(y: list[Tensor], X: Tensor) -> Tensor:
        return X @ y[0] @ y[1] @ y[2]

    return Case(
        lambda x, y, batch: (out(y, X) - X @ A @ x).square().mean() + 1e-2 * sum(t.square().sum() for t in y),
        lambda x, y: (out(y, X) - X @ A).square().mean(),
        variable(torch.eye(3, dtype=F64) + 0.3 * normal(3, 3, seed=4)),
        network((6, 5, 4, 3), F64),
        pzobo.GD(0.02, 30),
    )


def factorization() -> Case:
    """A matrix as a product of two, with one strength for each of its rows and columns."""
    M = normal(12, 2) @ normal(2, 10, seed=1) + 0.3 * normal(12, 10, seed=2)
    seen = normal(12, 10, seed=3) > -0.5
    g_seen, f_seen = seen, ~seen

    def error(y: list[Tensor], where: Tensor) -> Tensor:
        return ((y[0] @ y[1] - M).square() * where).sum() / where.sum()

    return Case(
        lambda x, y, batch: (
            error(y, g_seen)
            + 0.1 * (x[:12, None].exp() * y[0].square()).mean()
            + 0.1 * (x[12:].exp() * y[1].square()).mean()
        ),
        lambda x, y: error(y, f_seen),
        variable(torch.zeros(22, dtype=F64)),
        [0.5 * normal(12, 3, seed=5), 0.5 * normal(3, 10, seed=6)],
        pzobo.HeavyBall(0.1, 0.8, 30),
    )


def closed_ridge() -> Case:
    """Linear features and the formula of ridge regression."""
    problem = linear_hr(8, 6, 40, dtype=F64)
    return Case.of(problem, pzobo.ClosedForm(problem.solution))


def closed_exponential() -> Case:
    """y = exp(x), written as a formula, in float32."""
    return Case(
        lambda x, y, batch: (0.5 * y.square() - x.exp() * y).sum(),
        lambda x, y: y.square().mean(),
        variable(torch.linspace(-1, 1, 9)),
        torch.zeros(9),
        pzobo.ClosedForm(lambda x, batch: x.exp()),
    )


def linear_features() -> Case:
    """p = 2,048 at x and 6,400 at z, in float32."""
    return Case.of(linear_hr(32, 64, 100, dtype=F32), pzobo.GD(1e-3, 20))


def sigmoid_features() -> Case:
    """Two layers of features, p = 1,280."""
    return Case.of(two_layer_hr(16, 32, 24, 80, dtype=F64), pzobo.GD(0.05, 20))


def weighted_batches() -> Case:
    """A weight for each of 60 rows, and another batch of 12 for each step."""
    X, t = classes(60, 5, 3, F64)
    V, s = classes(60, 5, 3, F64, seed=5)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(12)
    return Case(
        lambda w, y, batch: (
            (w * F.cross_entropy(batch[0] @ y, batch[1], reduction="none")).mean() + 0.05 * y.square().sum()
        ),
        lambda x, y: F.cross_entropy(V @ y, s),
        variable(0.1 * normal(60, seed=9)),
        torch.zeros(5, 3, dtype=F64),
        pzobo.GD(0.3, 10),
        batches=[(X[i], t[i], i) for i in (*order, *order)],
        prepare=lambda x, batch: x[batch[2]].sigmoid(),
    )


def shifted_batches() -> Case:
    """Inputs shifted and scaled by x, in float32, with momentum and a batch for each step."""
    X, t = regression(64, 7, F32)
    V, s = regression(64, 7, F32, seed=5)

    def out(x: dict[str, Tensor], y: Tensor, X: Tensor) -> Tensor:
        return torch.tanh(X * x["scale"].exp() + x["shift"]) @ y

    return Case(
        lambda x, y, batch: (out(x, y, batch[0]) - batch[1]).square().mean() + 1e-2 * y.square().sum(),
        lambda x, y: (out(x, y, V) - s).square().mean(),
        variable({"scale": torch.zeros(7), "shift": torch.zeros(7)}),
        torch.zeros(7),
        pzobo.HeavyBall(0.03, 0.8, 16),
        batches=[(X[i : i + 8], t[i : i + 8]) for i in (*range(0, 64, 8), *range(0, 64, 8))],
    )


SMOOTH: dict[str, Callable[[], Case]] = {
    "scalar quadratic": scalar_quadratic,
    "quadratic": plain_quadratic,
    "quadratic, float32": lambda: plain_quadratic(F32),
    "wide quadratic": wide_quadratic,
    "ridge strengths": ridge_strengths,
    "logistic strengths": logistic_strengths,
    "two-class logistic": two_class_logistic,
    "tanh network": lambda: mlp(torch.tanh, F64, pzobo.GD(0.1, 20)),
    "GELU network": lambda: mlp(F.gelu, F32, pzobo.HeavyBall(0.05, 0.8, 20)),
    "softplus network": lambda: mlp(F.softplus, F64, pzobo.HeavyBall(0.05, 0.8, 20)),
    "distillation": distillation,
    "transformer": lambda: transformer(F32, pzobo.GD(0.2, 10)),
    "transformer, float64": lambda: transformer(F64, pzobo.HeavyBall(0.05, 0.9, 10)),
    "BatchNorm, tanh": lambda: batch_norm(torch.tanh, F64, pzobo.GD(0.1, 12)),
    "BatchNorm, GELU": lambda: batch_norm(F.gelu, F32, pzobo.HeavyBall(0.03, 0.8, 12)),
    "deep linear": deep_linear,
    "factorization": factorization,
    "closed ridge": closed_ridge,
    "closed exponential": closed_exponential,
    "linear features": linear_features,
    "sigmoid features": sigmoid_features,
    "weighted batches": weighted_batches,
    "shifted batches": shifted_batches,
}
