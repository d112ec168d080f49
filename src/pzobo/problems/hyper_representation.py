"""What is hyper-representation? The outer level learns features, the inner level a linear model on them (Eq. 8)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pzobo.outer.problem import Problem


def ridge(gamma: float) -> Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]:
    """w* = (T^T T / n + gamma)^-1 T^T Y / n, as a function of the features T."""

    def solution(features: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        n, d = features.shape
        curvature = features.T @ features / n + gamma * torch.eye(d, dtype=features.dtype, device=features.device)
        answer: Tensor = torch.linalg.solve(curvature, features.T @ batch[1] / n)
        return answer

    return solution


def linear_hr(
    m: int = 64,
    d: int = 128,
    n: int = 500,
    *,
    gamma: float = 0.1,
    noise: float = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """Linear features X H, H of m x d, and ridge regression on them: fig. 2 a-c of the paper.

    g = |X_2 H w - Y_2|^2 / 2n + gamma |w|^2 / 2 and f = |X_1 H w - Y_1|^2 / 2n, where Y = X H* w* + noise.

    Args:
        m: columns of the inputs X, and rows of H. There are m d outer variables.
        d: features, the columns of H, and so the inner variables w.
        n: rows of the training data, and as many of the validation data.
        gamma: the l2 strength of the inner loss.
        noise: standard deviation of the noise in Y.
        seed: of the data and of H at the start. w starts at 0.
        dtype: of the data and of all variables.

    Returns:
        A `Problem` with x = H of m x d, y = w of d numbers, and the `solution` of ridge regression.

    Examples:
        >>> problem = pzobo.problems.linear_hr(m=4, d=3, n=20)
        >>> problem.x0.shape, problem.y0.shape, [part.shape for part in problem.train]
        (torch.Size([4, 3]), torch.Size([3]), [torch.Size([20, 4]), torch.Size([20])])
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    truth, head = normal(m, d), normal(d)

    def data() -> tuple[Tensor, Tensor]:
        X = normal(n, m)
        return X, X @ truth @ head + noise * normal(n)

    def prepare(H: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return batch[0] @ H

    def inner_loss(features: Tensor, w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (features @ w - batch[1]).square().mean() + 0.5 * gamma * w.square().sum()

    def outer_loss(H: Tensor, w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (batch[0] @ (H @ w) - batch[1]).square().mean()

    train, val = data(), data()
    x0, y0 = normal(m, d), torch.zeros(d, dtype=dtype)
    return Problem(inner_loss, outer_loss, x0, y0, train=train, val=val, prepare=prepare, solution=ridge(gamma))


def two_layer_hr(
    m: int = 256,
    q: int = 512,
    d: int = 256,
    n: int = 5000,
    *,
    gamma: float = 1e-3,
    noise: float = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """Features T(X) = sigmoid(sigmoid(X H1) H2), H1 of m x q and H2 of q x d, x = (H1, H2): fig. 2 d-f of the paper.

    g = |T(X_2) w - Y_2|^2 / 2n + gamma |w|^2 / 2 and f = |T(X_1) w - Y_1|^2 / 2n, where Y = T*(X) w* + noise.

    For given features the inner solution is that of ridge regression, (T^T T / n + gamma)^-1 T^T Y / n. The outer loss
    is at least 0; at the features that made the data, H*, and w = w*, it is noise^2 / 2 on average.

    y0 is Gaussian, as in the authors' code: N short steps hardly leave it, so it is the features that learn to fit a
    random head. From y0 = 0 the outer loss falls much more slowly.

    Args:
        m: columns of the inputs X.
        q: hidden units, the columns of H1. There are q (m + d) outer variables.
        d: features, the columns of H2, and so the inner variables w.
        n: rows of the training data, and as many of the validation data.
        gamma: the l2 strength of the inner loss.
        noise: standard deviation of the noise in Y.
        seed: of the data, and of H1, H2 and w at the start.
        dtype: of the data and of all variables.

    Returns:
        A `Problem` with x = (H1, H2), y = w of d numbers, and the `solution` of ridge regression.

    Examples:
        >>> problem = pzobo.problems.two_layer_hr(m=4, q=5, d=3, n=20)
        >>> [t.shape for t in problem.x0], problem.y0.shape
        ([torch.Size([4, 5]), torch.Size([5, 3])], torch.Size([3]))
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def features(x: tuple[Tensor, Tensor], X: Tensor) -> Tensor:
        return ((X @ x[0]).sigmoid() @ x[1]).sigmoid()

    truth, head = (normal(m, q), normal(q, d)), normal(d)

    def data() -> tuple[Tensor, Tensor]:
        X = normal(n, m)
        return X, features(truth, X) @ head + noise * normal(n)

    def prepare(x: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return features(x, batch[0])

    def inner_loss(z: Tensor, w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (z @ w - batch[1]).square().mean() + 0.5 * gamma * w.square().sum()

    def outer_loss(x: tuple[Tensor, Tensor], w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (features(x, batch[0]) @ w - batch[1]).square().mean()

    train, val = data(), data()
    x0, y0 = (normal(m, q), normal(q, d)), normal(d)
    return Problem(inner_loss, outer_loss, x0, y0, train=train, val=val, prepare=prepare, solution=ridge(gamma))
