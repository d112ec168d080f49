"""What is hyper-representation? The outer level learns features, the inner level a linear model on them (Eq. 8)."""

from __future__ import annotations

import torch
from torch import Tensor

from pzobo.problem import Problem


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

    def loss(features: Tensor, w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (features @ w - batch[1]).square().mean() + 0.5 * gamma * w.square().sum()

    def outer_loss(H: Tensor, w: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (batch[0] @ (H @ w) - batch[1]).square().mean()

    train, val = data(), data()
    return Problem(loss, outer_loss, normal(m, d), torch.zeros(d, dtype=dtype), train=train, val=val, prepare=prepare)
