"""Which bilevel problems are timed, and what are their losses?

Each problem is data and functions. `prepare`, `inner_loss` and `outer_loss` are what a user of pzobo writes;
`hand_path` and `hand_outer` are the same derivatives in closed form, for the hand-written limit.
x is always a tuple of tensors and y one tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

X = tuple[Tensor, ...]
Batch = tuple[Any, Tensor]


@dataclass(frozen=True)
class Problem:
    name: str
    x0: X
    y0: Tensor
    train: Batch
    val: Batch
    prepare: Callable[[X, Batch], Tensor]
    inner_loss: Callable[[Tensor, Tensor, Batch], Tensor]
    outer_loss: Callable[[X, Tensor, Batch], Tensor]
    hand_path: Callable[[Tensor], Tensor]
    hand_outer: Callable[[X, Tensor], tuple[X, Tensor]]
    steps: int
    lr: float
    momentum: float
    mu: float
    outer_lr: float
    sparse: tuple[Tensor, Tensor] | None = None
    plain_path: Callable[[Tensor], Tensor] | None = None
    direction: X = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        object.__setattr__(self, "direction", tuple(torch.randn(x.shape, generator=generator) for x in self.x0))

    @property
    def shrink(self) -> float:
        """The factor of least mean squared error at Q = 1. It costs nothing and keeps long runs finite."""
        return 1 / (sum(x.numel() for x in self.x0) + 2)


def hyper_representation(
    name: str, widths: tuple[int, ...], n: int, *, gamma: float, steps: int, mu: float, outer_lr: float
) -> Problem:
    """A representation is learned for ridge regression (paper, section 4.1): x embeds, y is the head."""
    lr = 1e-3
    generator = torch.Generator().manual_seed(0)
    shapes = list(pairwise(widths))
    oracle = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    head = torch.randn(widths[-1], generator=generator)
    train, val = (_regression(oracle, head, n, generator) for _ in range(2))
    y0 = torch.zeros(widths[-1])

    def outer_loss(x: X, y: Tensor, batch: Batch) -> Tensor:
        residual: Tensor = predict(x, y, batch[0]) - batch[1]
        return 0.5 * residual.square().mean()

    def hand_path(z: Tensor) -> Tensor:
        """Two kernels a step: the residual, then y (1 - lr gamma) - (lr / n) z^T r."""
        y, transposed = y0, z.T
        for _ in range(steps):
            residual = torch.addmv(train[1], z, y, beta=-1)
            y = torch.addmv(y, transposed, residual, beta=1 - lr * gamma, alpha=-lr / n)
        return y

    def plain_path(z: Tensor) -> Tensor:
        """The gradient as it stands in the paper, operation by operation."""
        y = y0
        for _ in range(steps):
            y = y - lr * (z.T @ (z @ y - train[1]) / n + gamma * y)
        return y

    def hand_outer(x: X, y: Tensor) -> tuple[X, Tensor]:
        if len(x) == 1:
            h, (a, b) = x[0].detach(), val
            back = a.T @ (a @ (h @ y) - b) / n
            return (torch.outer(back, y),), h.T @ back
        leaves = [t.detach().requires_grad_() for t in (*x, y)]
        *direct, v = torch.autograd.grad(outer_loss(tuple(leaves[:-1]), leaves[-1], val), leaves)
        return tuple(direct), v

    return Problem(
        name=name,
        x0=tuple(torch.randn(shape, generator=generator) for shape in shapes),
        y0=y0,
        train=train,
        val=val,
        prepare=lambda x, batch: features(x, batch[0]),
        inner_loss=ridge(gamma),
        outer_loss=outer_loss,
        hand_path=hand_path,
        hand_outer=hand_outer,
        steps=steps,
        lr=lr,
        momentum=0.0,
        mu=mu,
        outer_lr=outer_lr,
        plain_path=plain_path,
    )


def logistic(name: str, n: int, m: int, density: float, classes: int) -> Problem:
    """Hyperparameter optimization: x holds one log l2 weight for each entry of the classifier y (m x classes)."""
    lr, momentum, steps = 100.0, 0.9, 10
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(m, classes, generator=generator)
    (a_train, b_train), (a_val, b_val) = (_text(n, m, density, truth, generator) for _ in range(2))
    csr, csr_val = a_train.to_sparse_csr(), a_val.to_sparse_csr()
    csr_t, csr_val_t = (a.t().contiguous().to_sparse_csr() for a in (a_train, a_val))
    y0 = torch.zeros(m, classes)
    rows = torch.arange(n)

    def inner_loss(z: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(batch[0] @ y, batch[1]) + 0.5 * (z * y * y).mean()

    def residual(a: Tensor, labels: Tensor, y: Tensor) -> Tensor:
        r = torch.softmax(a @ y, 1)
        r[rows, labels] -= 1
        return r

    def hand_path(z: Tensor) -> Tensor:
        y, velocity = y0, torch.zeros_like(y0)
        for _ in range(steps):
            gradient = torch.addcmul(csr_t @ residual(csr, b_train, y) / n, z, y, value=1 / y0.numel())
            velocity.mul_(momentum).add_(gradient)
            y = y - lr * velocity
        return y

    return Problem(
        name=name,
        x0=(torch.full((m, classes), 4.0),),
        y0=y0,
        train=(a_train, b_train),
        val=(a_val, b_val),
        prepare=lambda x, batch: x[0].exp(),
        inner_loss=inner_loss,
        outer_loss=lambda x, y, batch: F.cross_entropy(batch[0] @ y, batch[1]),
        hand_path=hand_path,
        hand_outer=lambda x, y: ((torch.zeros_like(x[0]),), csr_val_t @ residual(csr_val, b_val, y) / n),
        steps=steps,
        lr=lr,
        momentum=momentum,
        mu=0.01,
        outer_lr=0.02,
        sparse=(csr, csr_val),
    )


def ridge(gamma: float) -> Callable[[Tensor, Tensor, Batch], Tensor]:
    """|z y - b|^2 / 2n + gamma |y|^2 / 2. Only operators, so the same code serves torch and JAX."""

    def inner_loss(z: Any, y: Any, batch: Any) -> Any:
        return 0.5 * ((z @ y - batch[1]) ** 2).mean() + 0.5 * gamma * (y**2).sum()

    return inner_loss


def features(x: Any, a: Any, sigmoid: Callable[[Any], Any] = torch.sigmoid) -> Any:
    """X H, or sigmoid(sigmoid(X H1) H2)."""
    return a @ x[0] if len(x) == 1 else sigmoid(sigmoid(a @ x[0]) @ x[1])


def predict(x: Any, y: Any, a: Any, sigmoid: Callable[[Any], Any] = torch.sigmoid) -> Any:
    return a @ (x[0] @ y) if len(x) == 1 else features(x, a, sigmoid) @ y


def _regression(oracle: X, head: Tensor, n: int, generator: torch.Generator) -> Batch:
    a = torch.randn(n, len(oracle[0]), generator=generator)
    return a, predict(oracle, head, a) + 0.1 * torch.randn(n, generator=generator)


def _text(n: int, m: int, density: float, truth: Tensor, generator: torch.Generator) -> Batch:
    """Rows like TF-IDF: nonnegative, sparse, of length one."""
    kept = torch.rand(n, m, generator=generator) < density
    a = F.normalize(torch.rand(n, m, generator=generator) * kept)
    return a, (a @ truth).argmax(1)


_LINEAR: dict[str, Any] = {"gamma": 0.1, "steps": 20, "mu": 0.01, "outer_lr": 0.05}
_DEEP: dict[str, Any] = {"gamma": 0.001, "steps": 10, "mu": 0.1, "outer_lr": 0.01}
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear small": lambda: hyper_representation("linear small", (64, 128), 500, **_LINEAR),
    "linear large": lambda: hyper_representation("linear large", (128, 256), 1000, **_LINEAR),
    "two-layer": lambda: hyper_representation("two-layer", (256, 512, 256), 5000, **_DEEP),
    "sparse HO": lambda: logistic("sparse HO", 5000, 2000, density=0.03, classes=20),
}
