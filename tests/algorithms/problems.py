"""What are the algorithms tried on? A quadratic and a logistic problem, each written twice: in torch, and in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pzobo

Array = np.ndarray[Any, Any]


class Quadratic:
    """g = mean_i y'A_i y / 2 - y'B_i x + c_i'y + x'C_i x / 2;  f below.

    f = mean_i |y - t_i|^2 / 2 + ridge |x - s_i|^2 / 2 + x'E_i y.
    """

    d, p = 4, 3

    def __init__(self, rows: int = 12, val_rows: int = 9, ridge: float = 0.2) -> None:
        rng, self.ridge = np.random.default_rng(0), ridge
        roots = rng.normal(size=(rows, self.d, self.d)) / 2
        self.a = roots @ roots.transpose(0, 2, 1) / 2 + np.eye(self.d)
        self.b, self.c = rng.normal(size=(rows, self.d, self.p)) / 2, rng.normal(size=(rows, self.d))
        self.cx = np.stack([np.eye(self.p) * u for u in rng.uniform(0.1, 1, rows)])
        self.t, self.s = rng.normal(size=(val_rows, self.d)), rng.normal(size=(val_rows, self.p))
        self.e = rng.normal(size=(val_rows, self.p, self.d)) / 10
        self.rows, self.val_rows = rows, val_rows
        self.x0, self.y0 = rng.normal(size=self.p), rng.normal(size=self.d)

    # NumPy: values and derivatives on rows i

    def g(self, x: Array, y: Array, i: Array) -> Any:
        a, b, c, cx = (m[i].mean(0) for m in (self.a, self.b, self.c, self.cx))
        return y @ a @ y / 2 - y @ b @ x + c @ y + x @ cx @ x / 2

    def g_y(self, x: Array, y: Array, i: Array) -> Array:
        return self.a[i].mean(0) @ y - self.b[i].mean(0) @ x + self.c[i].mean(0)

    def g_x(self, x: Array, y: Array, i: Array) -> Array:
        return -self.b[i].mean(0).T @ y + self.cx[i].mean(0) @ x

    def h(self, x: Array, y: Array, i: Array) -> Array:
        return self.a[i].mean(0)

    def j(self, x: Array, y: Array, i: Array) -> Array:
        """d2g/dx dy, p x d."""
        return -self.b[i].mean(0).T

    def f(self, x: Array, y: Array, i: Array) -> Any:
        e = self.e[i].mean(0)
        return np.mean(((y - self.t[i]) ** 2).sum(1)) / 2 + self._far(x, i) + x @ e @ y

    def _far(self, x: Array, i: Array) -> Any:
        return self.ridge * np.mean(((x - self.s[i]) ** 2).sum(1)) / 2

    def f_y(self, x: Array, y: Array, i: Array) -> Array:
        return y - self.t[i].mean(0) + self.e[i].mean(0).T @ x

    def f_x(self, x: Array, y: Array, i: Array) -> Array:
        return self.ridge * (x - self.s[i].mean(0)) + self.e[i].mean(0) @ y

    # What is known of it

    def solution(self, x: Array) -> Array:
        every = np.arange(self.rows)
        return np.linalg.solve(self.a.mean(0), -self.g_y(x, 0 * self.y0, every))

    def hypergradient(self, x: Array) -> Array:
        y, every, val = self.solution(x), np.arange(self.rows), np.arange(self.val_rows)
        v = np.linalg.solve(self.h(x, y, every), self.f_y(x, y, val))
        return self.f_x(x, y, val) - self.j(x, y, every) @ v

    def optimum(self) -> Array:
        """The hypergradient is affine in x: its root."""
        zero = self.hypergradient(0 * self.x0)
        slope = np.stack([self.hypergradient(u) - zero for u in np.eye(self.p)], 1)
        return np.linalg.solve(slope, -zero)

    # Torch

    def problem(self) -> pzobo.Problem:
        return _problem(self, (self.a, self.b, self.c, self.cx), (self.t, self.s, self.e))

    @staticmethod
    def inner_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        a, b, c, cx = (m.mean(0) for m in batch)
        return y @ a @ y / 2 - y @ b @ x + c @ y + x @ cx @ x / 2

    def outer_loss(self, x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        t, s, e = batch
        far = self.ridge * (x - s).square().sum(1).mean() / 2
        return (y - t).square().sum(1).mean() / 2 + far + x @ e.mean(0) @ y


class Logistic:
    """g = mean_i log(1 + exp(-l_i a_i'y)) + sum_j exp(x_j) y_j^2 / 2;  f = the same mean on others + |x|^2 / 100."""

    d = p = 4

    def __init__(self, rows: int = 14, val_rows: int = 11) -> None:
        rng = np.random.default_rng(1)
        self.a, self.b = rng.normal(size=(rows, self.d)), rng.normal(size=(val_rows, self.d))
        self.a *= np.sign(self.a @ np.ones(self.d) + rng.normal(size=rows))[:, None]
        self.b *= np.sign(self.b @ np.ones(self.d) + rng.normal(size=val_rows))[:, None]
        self.rows, self.val_rows = rows, val_rows
        self.x0, self.y0 = rng.normal(size=self.p) / 2, rng.normal(size=self.d) / 2

    @staticmethod
    def _share(margins: Array) -> Array:
        return 1 / (1 + np.exp(margins))

    def g(self, x: Array, y: Array, i: Array) -> Any:
        return np.log1p(np.exp(-self.a[i] @ y)).mean() + np.exp(x) @ y**2 / 2

    def g_y(self, x: Array, y: Array, i: Array) -> Array:
        return -(self._share(self.a[i] @ y)[:, None] * self.a[i]).mean(0) + np.exp(x) * y

    def g_x(self, x: Array, y: Array, i: Array) -> Array:
        return np.exp(x) * y**2 / 2

    def h(self, x: Array, y: Array, i: Array) -> Array:
        s = self._share(self.a[i] @ y)
        return (self.a[i].T * (s * (1 - s))) @ self.a[i] / len(i) + np.diag(np.exp(x))

    def j(self, x: Array, y: Array, i: Array) -> Array:
        return np.diag(np.exp(x) * y)

    def f(self, x: Array, y: Array, i: Array) -> Any:
        return np.log1p(np.exp(-self.b[i] @ y)).mean() + x @ x / 100

    def f_y(self, x: Array, y: Array, i: Array) -> Array:
        return -(self._share(self.b[i] @ y)[:, None] * self.b[i]).mean(0)

    def f_x(self, x: Array, y: Array, i: Array) -> Array:
        return x / 50

    def problem(self) -> pzobo.Problem:
        return _problem(self, (self.a,), (self.b,))

    @staticmethod
    def inner_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.softplus(-(batch[0] @ y)).mean() + x.exp() @ y.square() / 2

    @staticmethod
    def outer_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.softplus(-(batch[0] @ y)).mean() + x.square().sum() / 100


def _problem(case: Any, train: tuple[Array, ...], val: tuple[Array, ...]) -> pzobo.Problem:
    train_, val_ = (tuple(torch.from_numpy(m) for m in data) for data in (train, val))
    x0, y0 = torch.from_numpy(case.x0), torch.from_numpy(case.y0)
    return pzobo.Problem(case.inner_loss, case.outer_loss, x0, y0, train_, val_)
