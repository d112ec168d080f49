"""What do the papers say, step by step? Each algorithm once more, in plain NumPy with matrices, on one problem.

Nothing here is the library's but the order of the batches and the random numbers, which `Stream` repeats.
Each function yields (x, y) after each outer step; beta is the outer learning rate of plain SGD.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.algorithms.problems import Array
from tests.algorithms.stream import Stream

Steps = Iterator[tuple[Array, Array]]


def soba(c: Any, s: Stream, beta: float, lr: float, v_lr: float) -> Steps:
    x, y, v = c.x0, c.y0, 0 * c.y0
    while True:
        i, o = s.inner(), s.outer()
        d_y = c.g_y(x, y, i)
        d_v = c.h(x, y, i) @ v + c.f_y(x, y, o)
        d_x = c.f_x(x, y, o) + c.j(x, y, i) @ v
        x, y, v = x - beta * d_x, y - lr * d_y, v - v_lr * d_v
        yield x, y


def soba_decay(c: Any, s: Stream, beta: float, lr: float) -> Steps:
    x, y, v, k = c.x0, c.y0, 0 * c.y0, 0
    while True:
        i, o, a = s.inner(), s.outer(), lr / (k + 1) ** 0.5
        d_x = c.f_x(x, y, o) + c.j(x, y, i) @ v
        y, v = y - a * c.g_y(x, y, i), v - a * (c.h(x, y, i) @ v + c.f_y(x, y, o))
        x, k = x - beta * d_x, k + 1
        yield x, y


def masoba(c: Any, s: Stream, beta: float, lr: float, average: float) -> Steps:
    x, y, v, h = c.x0, c.y0, 0 * c.y0, 0 * c.x0
    while True:
        i, o = s.inner(), s.outer()
        h = (1 - average) * h + average * (c.f_x(x, y, o) + c.j(x, y, i) @ v)
        y, v = y - lr * c.g_y(x, y, i), v - lr * (c.h(x, y, i) @ v + c.f_y(x, y, o))
        x = x - beta * h
        yield x, y


def saba(c: Any, s: Stream, beta: float, lr: float, memory: str) -> Steps:
    x, y, v = c.x0, c.y0, 0 * c.y0
    size, val_size = s.sizes
    blocks = [s.every[a : a + size] for a in range(0, c.rows, size)]
    val_blocks = [s.val[a : a + val_size] for a in range(0, c.val_rows, val_size)]
    share = [len(b) / c.rows for b in blocks]
    val_share = [len(b) / c.val_rows for b in val_blocks]

    def inner(b: Array) -> list[Array]:
        return [c.g_y(x, y, b), c.h(x, y, b) @ v, c.j(x, y, b) @ v]

    def outer(b: Array) -> list[Array]:
        return [c.f_y(x, y, b), c.f_x(x, y, b)]

    table, val_table = [inner(b) for b in blocks], [outer(b) for b in val_blocks]
    if memory == "zero":
        table, val_table = ([[0 * t for t in row] for row in rows] for rows in (table, val_table))
    while True:
        b, w = s.draw(c.rows) // size, s.draw(c.val_rows) // val_size
        new, val_new = inner(blocks[b]), outer(val_blocks[w])
        mean = [sum(p * row[q] for p, row in zip(share, table, strict=True)) for q in range(3)]
        val_mean = [sum(p * row[q] for p, row in zip(val_share, val_table, strict=True)) for q in range(2)]
        d_y, hv, jv = (n - m + a for n, m, a in zip(new, table[b], mean, strict=True))
        f_y, f_x = (n - m + a for n, m, a in zip(val_new, val_table[w], val_mean, strict=True))
        table[b], val_table[w] = new, val_new
        x, y, v = x - beta * (f_x + jv), y - lr * d_y, v - lr * (hv + f_y)
        yield x, y


def srba(c: Any, s: Stream, beta: float, lr: float, period: int, radius: float) -> Steps:
    x, y, v, k = c.x0, c.y0, 0 * c.y0, 0
    before: Any = None
    d: list[Array] = []

    def directions(x: Array, y: Array, v: Array, i: Array, o: Array) -> list[Array]:
        return [c.g_y(x, y, i), c.h(x, y, i) @ v + c.f_y(x, y, o), c.f_x(x, y, o) + c.j(x, y, i) @ v]

    while True:
        if k % period == 0:
            d = directions(x, y, v, s.every, s.val)
        else:
            i, o = s.inner(), s.outer()
            changes = zip(directions(x, y, v, i, o), directions(*before, i, o), strict=True)
            d = [was + new - old for was, (new, old) in zip(d, changes, strict=True)]
        before, k = (x, y, v), k + 1
        x, y, v = x - beta * d[2], y - lr * d[0], v - lr * d[1]
        v = v * min(1, radius / np.linalg.norm(v))
        yield x, y


def fsla(c: Any, s: Stream, beta: float, lr: float, momentum: float) -> Steps:
    x, y, v, m, k = c.x0, c.y0, 0 * c.y0, 0 * c.x0, 0
    x_before = x
    while True:
        new_y = y - lr * c.g_y(x, y, s.inner())
        i, o = s.inner(), s.outer()
        new_v = v - lr * (c.h(x, new_y, i) @ v - c.f_y(x, new_y, o))
        i, o = s.inner(), s.outer()
        new = c.f_x(x, new_y, o) - c.j(x, new_y, i) @ new_v
        old = c.f_x(x_before, y, o) - c.j(x_before, y, i) @ v
        m = new if k == 0 else new + (1 - momentum) * (m - old)
        x_before, y, v, k = x, new_y, new_v, k + 1
        x = x - beta * m
        yield x, y


def fde_hbo(c: Any, s: Stream, beta: float, lr: float, momentum: float, radius: float) -> Steps:
    x, y, v, k = c.x0, c.y0, 0 * c.y0, 0
    before: Any = None
    m: list[Array] = []

    def directions(x: Array, y: Array, v: Array, i: Array, o: Array) -> list[Array]:
        return [c.g_y(x, y, i), c.h(x, y, i) @ v + c.f_y(x, y, o), c.f_x(x, y, o) + c.j(x, y, i) @ v]

    while True:
        i, o = s.inner(), s.outer()
        new = directions(x, y, v, i, o)
        if k == 0:
            m = new
        else:
            old = directions(*before, i, o)
            m = [momentum * n + (1 - momentum) * (w + n - b) for n, b, w in zip(new, old, m, strict=True)]
        before, k = (x, y, v), k + 1
        x, y, v = x - beta * m[2], y - lr * m[0], v - lr * m[1]
        v = v * min(1, radius / np.linalg.norm(v))
        yield x, y


def amigo(c: Any, s: Stream, beta: float, lr: float, steps: int, v_lr: float, v_steps: int) -> Steps:
    x, y, v = c.x0, c.y0, 0 * c.y0
    while True:
        for _ in range(steps):
            y = y - lr * c.g_y(x, y, s.inner())
        o = s.outer()
        for _ in range(v_steps):
            v = v - v_lr * (c.h(x, y, s.inner()) @ v - c.f_y(x, y, o))
        x = x - beta * (c.f_x(x, y, o) - c.j(x, y, s.inner()) @ v)
        yield x, y


def bsa(c: Any, s: Stream, beta: float, lr: float, steps: int, terms: int, v_lr: float) -> Steps:
    x, y = c.x0, c.y0
    while True:
        for _ in range(steps):
            y = y - lr * c.g_y(x, y, s.inner())
        o = s.outer()
        v = c.f_y(x, y, o)
        p, batches = s.draw(terms), [s.inner() for _ in range(terms - 1)]
        for b in batches[:p]:
            v = v - v_lr * c.h(x, y, b) @ v
        x = x - beta * (c.f_x(x, y, o) - c.j(x, y, s.inner()) @ (terms * v_lr * v))
        yield x, y


def _double_momentum(c: Any, s: Stream, beta: float, lr: float, momentum: float, v_lr: float, terms: int, random: bool):
    x, y, k = c.x0, c.y0, 0
    before: Any = None
    m_y, m_x = 0 * y, 0 * x
    while True:
        if random:
            p, batches = s.draw(terms), [s.inner() for _ in range(terms - 1)]
            batches = batches[:p]
        else:
            batches = [s.inner() for _ in range(terms)]
        i, o, mixed = s.inner(), s.outer(), s.inner()

        def outer(x: Array, y: Array, o: Array = o, mixed: Array = mixed, batches: list[Array] = batches) -> Array:
            factor = np.eye(len(y))
            series = np.eye(len(y))
            for b in batches:
                factor = (np.eye(len(y)) - v_lr * c.h(x, y, b)) @ factor
                series = series + factor
            inverse = terms * v_lr * factor if random else v_lr * series
            return c.f_x(x, y, o) - c.j(x, y, mixed) @ (inverse @ c.f_y(x, y, o))

        if k == 0:
            m_y, m_x = c.g_y(x, y, i), outer(x, y)
        else:
            m_y = c.g_y(x, y, i) + (1 - momentum) * (m_y - c.g_y(*before, i))
            m_x = outer(x, y) + (1 - momentum) * (m_x - outer(*before))
        before, k = (x, y), k + 1
        x, y = x - beta * m_x, y - lr * m_y
        yield x, y


def sustain(c: Any, s: Stream, beta: float, lr: float, momentum: float, v_lr: float, terms: int) -> Steps:
    return _double_momentum(c, s, beta, lr, momentum, v_lr, terms, random=True)


def mrbo(c: Any, s: Stream, beta: float, lr: float, momentum: float, v_lr: float, terms: int) -> Steps:
    return _double_momentum(c, s, beta, lr, momentum, v_lr, terms, random=False)


def vrbo(c: Any, s: Stream, beta: float, lr: float, steps: int, period: int, terms: int, v_lr: float) -> Steps:
    x, y, k = c.x0, c.y0, 0

    def outer(x: Array, y: Array, o: Array, mixed: Array, batches: list[Array]) -> Array:
        v = c.f_y(x, y, o)
        total = v
        for b in batches:
            v = v - v_lr * c.h(x, y, b) @ v
            total = total + v
        return c.f_x(x, y, o) - c.j(x, y, mixed) @ (v_lr * total)

    d_y, d_x = 0 * y, 0 * x
    while True:
        if k % period == 0:
            d_y, d_x = c.g_y(x, y, s.every), outer(x, y, s.val, s.every, [s.every] * terms)
        reached = y
        last, x = (x, y), x - beta * d_x
        yield x, reached
        for t in range(steps + 1):
            i, o, mixed = s.inner(), s.outer(), s.inner()
            batches = [s.inner() for _ in range(terms)]
            d_y = d_y + c.g_y(x, y, i) - c.g_y(*last, i)
            d_x = d_x + outer(x, y, o, mixed, batches) - outer(*last, o, mixed, batches)
            last = (x, y)
            if t < steps:
                y = y - lr * d_y
        k += 1


def stable(c: Any, s: Stream, beta: float, lr: float, average: float, least: float) -> Steps:
    x, y, k = c.x0, c.y0, 0
    before: Any = None
    h, j = np.zeros((c.d, c.d)), np.zeros((c.p, c.d))
    while True:
        i, o = s.inner(), s.outer()
        if k == 0:
            h, j = c.h(x, y, i), c.j(x, y, i)
        else:
            h = (1 - average) * (h - c.h(*before, i)) + c.h(x, y, i)
            j = (1 - average) * (j - c.j(*before, i)) + c.j(x, y, i)
        values, vectors = np.linalg.eigh(h)
        h = vectors @ np.diag(np.maximum(values, least)) @ vectors.T
        inverse = np.linalg.inv(h)
        new = x - beta * (c.f_x(x, y, o) - j @ inverse @ c.f_y(x, y, o))
        moved = y - lr * c.g_y(x, y, i)
        before, k = (x, y), k + 1
        yield new, moved
        x, y = new, moved - inverse @ j.T @ (new - x)


def f2sa(c: Any, s: Stream, beta: float, lr: float, penalty: float, growth: float, steps: int) -> Steps:
    x, y, z, w = c.x0, c.y0, c.y0, penalty
    while True:
        for _ in range(steps):
            i, o = s.inner(), s.outer()
            y, z = y - lr / (2 * w) * (c.f_y(x, y, o) + w * c.g_y(x, y, i)), z - lr * c.g_y(x, z, i)
        i, o = s.inner(), s.outer()
        x, w = x - beta * (c.f_x(x, y, o) + w * (c.g_x(x, y, i) - c.g_x(x, z, i))), w + growth
        yield x, y


def bome(c: Any, s: Stream, beta: float, lr: float, steps: int, y_lr: float, eta: float, barrier: str) -> Steps:
    x, y = c.x0, c.y0
    while True:
        z = y
        for _ in range(steps):
            z = z - lr * c.g_y(x, z, s.inner())
        i, o = s.inner(), s.outer()
        q = np.concatenate([c.g_y(x, y, i), c.g_x(x, y, i) - c.g_x(x, z, i)])
        df = np.concatenate([c.f_y(x, y, o), c.f_x(x, y, o)])
        phi = eta * (q @ q if barrier == "gradient" else c.g(x, y, i) - c.g(x, z, i))
        direction = df + max(phi - df @ q, 0) / (q @ q) * q
        x, y = x - beta * direction[len(y) :], y - y_lr * direction[: len(y)]
        yield x, y


def bvfim(c: Any, s: Stream, beta: float, lr: float, steps: int, y_lr: float, y_steps: int, reg: float, barrier: float):
    x, y, z = c.x0, c.y0, c.y0
    prox = 0.01
    while True:
        for _ in range(steps):
            z = z - lr * (c.g_y(x, z, s.inner()) + reg * z)
        for _ in range(y_steps):
            i, o = s.inner(), s.outer()
            bound = c.g(x, z, i) + reg * z @ z / 2 + reg
            if bound - c.g(x, y, i) <= 0:
                y = z
            d = c.f_y(x, y, o) + prox * y + barrier / (bound - c.g(x, y, i)) * c.g_y(x, y, i)
            rate = y_lr
            while bound - c.g(x, y - rate * d, i) <= 0:
                rate /= 2
            y = y - rate * d
        i, o = s.inner(), s.outer()
        bound = c.g(x, z, i) + reg * z @ z / 2 + reg
        if bound - c.g(x, y, i) <= 0:
            y = z
        gap = bound - c.g(x, y, i)
        x = x - beta * (c.f_x(x, y, o) + barrier / gap * (c.g_x(x, y, i) - c.g_x(x, z, i)))
        yield x, y


def meha(c: Any, s: Stream, beta: float, lr: float, y_lr: float, r: float) -> Steps:
    x, y, w, k = c.x0, c.y0, c.y0, 0
    while True:
        i, o, penalty = s.inner(), s.outer(), (k + 1) ** 0.25
        w = w - lr * (c.g_y(x, w, i) + (w - y) / r)
        x = x - beta * (c.f_x(x, y, o) / penalty + c.g_x(x, y, i) - c.g_x(x, w, i))
        yield x, y
        i, o = s.inner(), s.outer()
        y = y - y_lr * (c.f_y(x, y, o) / penalty + c.g_y(x, y, i) - (y - w) / r)
        k += 1


def iaptt(c: Any, s: Stream, beta: float, lr: float, steps: int, start_lr: float) -> Steps:
    x, start = c.x0, c.y0
    while True:
        # The derivatives of y_k in x and in the start go along with the path.
        y, by_x, by_start = start, np.zeros((c.d, c.p)), np.eye(c.d)
        reached = []
        for _ in range(steps):
            i = s.inner()
            h, j = c.h(x, y, i), c.j(x, y, i)
            y, by_x, by_start = (
                y - lr * c.g_y(x, y, i),
                by_x - lr * (h @ by_x + j.T),
                by_start - lr * h @ by_start,
            )
            reached.append((y, by_x, by_start))
        o = s.outer()
        worst, wx, ws = max(reached, key=lambda r: c.f(x, r[0], o))
        bar = c.f_y(x, worst, o)
        x, start = x - beta * (c.f_x(x, worst, o) + wx.T @ bar), start - start_lr * ws.T @ bar
        yield x, y


def stn(c: Any, s: Stream, beta: float, lr: float, steps: int, scale: float, scale_rate: float, entropy: float):
    x, w, t, ls = c.x0, c.y0, np.zeros((c.d, c.p)), np.log(scale) * np.ones(c.p)
    while True:
        for _ in range(steps):
            there = x + np.exp(ls) * s.normal(c.p)
            d = c.g_y(there, w + t @ there, s.inner())
            w, t = w - lr * d, t - lr * np.outer(d, there)
        e, o = np.exp(ls) * s.normal(c.p), s.outer()
        y = w + t @ (x + e)
        d_x = c.f_x(x + e, y, o) + t.T @ c.f_y(x + e, y, o)
        ls = ls - scale_rate * (d_x * e - entropy)
        y = w + t @ x
        x = x - beta * d_x
        yield x, y


def delta_stn(c: Any, s: Stream, beta: float, lr: float, steps: int, t_lr: float, scale: float, scale_rate: float):
    x, w, t, ls, entropy = c.x0, c.y0, np.zeros((c.d, c.p)), np.log(scale) * np.ones(c.p), 0.01
    while True:
        for _ in range(steps):
            e, i = np.exp(ls) * s.normal(c.p), s.inner()
            slope = c.j(x, w, i).T @ e + c.h(x, w, i) @ t @ e
            w, t = w - lr * c.g_y(x, w, i), t - t_lr * np.outer(slope, e / np.exp(2 * ls))
        o, e = s.outer(), np.exp(ls) * s.normal(c.p)
        y = w + t @ e
        ls = ls - scale_rate * ((c.f_x(x + e, y, o) + t.T @ c.f_y(x + e, y, o)) * e - entropy)
        x = x - beta * (c.f_x(x, w, o) + t.T @ c.f_y(x, w, o))
        yield x, w


def sama(c: Any, s: Stream, beta: float, lr: float, steps: int, betas: tuple[float, float], eps: float) -> Steps:
    x, y, m, v, n = c.x0, c.y0, 0 * c.y0, 0 * c.y0, 0
    b1, b2 = betas
    while True:
        for _ in range(steps):
            i, n = s.inner(), n + 1
            g = c.g_y(x, y, i)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            m_hat, v_hat = m / (1 - b1**n), v / (1 - b2**n)
            y = y - lr * m_hat / (np.sqrt(v_hat) + eps)
        o = s.outer()
        below = np.sqrt(v_hat) + eps
        by_m, by_v = (1 - b1) / (1 - b1**n) / below, m_hat / below**2 / (2 * np.sqrt(v_hat))
        diagonal = lr * (by_m - by_v * 2 * (1 - b2) * g / (1 - b2**n))
        x = x - beta * (c.f_x(x, y, o) - c.j(x, y, i) @ (diagonal * c.f_y(x, y, o)))
        yield x, y
