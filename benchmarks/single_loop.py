"""How many steps of SOBA a second, by hand, eager, compiled and in JAX? `python -m benchmarks.single_loop`.

Data cleaning as in benchmark_bilevel: 20,000 rows of 784 inputs, one weight each, 10 classes, batches of 64 at both
levels, plain SGD on x. The rows are made up: their values cost nothing. All run in turns in one process; what counts is
the processor's time of this thread.
"""

from benchmarks.environment import use_one_thread

use_one_thread()

import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import pzobo  # noqa: E402
from benchmarks import outline, targets  # noqa: E402
from pzobo.data import Dataset, Split  # noqa: E402
from pzobo.outer.every import Every  # noqa: E402
from pzobo.outer.loop import Loop  # noqa: E402
from pzobo.outer.state import RunState  # noqa: E402
from pzobo.outer.together import Company  # noqa: E402
from pzobo.problems import data_cleaning  # noqa: E402
from pzobo.runs.metrics import Metrics  # noqa: E402

ROWS, VAL, FEATURES, CLASSES, BATCH = 20_000, 5_000, 784, 10, 64
CHUNK = 128
"""Steps of one turn: as many as compiled code makes in one call."""
Rates = tuple[float, float]
"""Of y and v, and of x."""
RATES = (0.1, 10.0)

Turn = Callable[[], tuple[Any, Any]]
"""Makes so many steps: x and y after them."""


@dataclass(frozen=True)
class Contender:
    name: str
    step: Turn
    """One turn."""


def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(CLASSES, FEATURES, generator=generator)

    def part(rows: int) -> Split:
        labels = torch.randint(CLASSES, (rows,), generator=generator)
        return Split(center[labels] + 3 * torch.randn(rows, FEATURES, generator=generator), labels)

    return Dataset(part(ROWS), part(VAL), part(VAL))


def by_hand(problem: Any) -> Turn:
    """SOBA as one would write it for this problem alone, in eager torch."""
    (inputs, labels, _), (val_inputs, val_labels) = problem.train, problem.val[:2]
    generator = torch.Generator().manual_seed(0)
    lr, outer_lr = RATES
    x = problem.x0.clone()
    y, v = torch.zeros(FEATURES, CLASSES), torch.zeros(FEATURES, CLASSES)

    def batches(rows: int) -> Iterator[Tensor]:
        while True:
            order = torch.randperm(rows, generator=generator)
            yield from order[: rows - rows % BATCH].view(-1, BATCH)

    inner, outer = batches(ROWS), batches(VAL)

    def step() -> None:
        nonlocal x, y, v
        i, j = next(inner), next(outer)
        x_, y_ = x.detach().requires_grad_(), y.detach().requires_grad_()
        each = cross_entropy(inputs[i] @ y_, labels[i], reduction="none")
        g = (x_[i].sigmoid() * each).mean() + 0.2 * y_.square().sum()
        g_y = torch.autograd.grad(g, y_, create_graph=True)[0]
        hv, jv = torch.autograd.grad(g_y, (y_, x_), v)
        f_y = torch.autograd.grad(cross_entropy(val_inputs[j] @ y_, val_labels[j]), y_)[0]
        y, v, x = y - lr * g_y.detach(), v - lr * (hv + f_y), x - outer_lr * jv

    def turn() -> tuple[Tensor, Tensor]:
        for _ in range(CHUNK):
            step()
        return x, y

    return turn


def ours(problem: Any, compile: bool, rates: Rates = RATES, optimizer: Any = torch.optim.SGD) -> Turn:
    """The library's, by the loop of `fit`: with a row of metrics for each step, without evaluations."""
    method = pzobo.algorithms.SOBA(rates[0], batch_size=BATCH, outer_batch_size=BATCH, compile=compile)
    run = RunState(method.start(problem), optimizer, rates[1], None, {})
    rows = Metrics(None, None)
    loop = Loop(run, rows, None, None, None, Every(), 0, None, None, time.perf_counter, Company(None))
    loop.look((), [])

    def turn() -> tuple[Tensor, Tensor]:
        end = run.step + CHUNK
        while run.step < end:
            if not loop.leap(end + 1, ()):
                loop.advance()
                loop.look((), [])
        return run.objective.x.detach(), run.objective.y

    return turn


def in_jax(problem: Any, rates: Rates = RATES, seed: int = 0) -> Turn:
    """The same, one jitted `scan` over the row numbers of a turn."""
    import jax
    import jax.numpy as jnp

    inputs, labels, _ = (jnp.asarray(t.numpy()) for t in problem.train)
    val_inputs, val_labels = (jnp.asarray(t.numpy()) for t in problem.val[:2])
    random, (lr, outer_lr) = np.random.default_rng(seed), rates

    def entropy(scores: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)[:, 0]

    def inner(x: Any, y: Any, i: Any) -> Any:
        each = entropy(inputs[i] @ y, labels[i])
        return (jax.nn.sigmoid(x[i]) * each).mean() + 0.2 * (y**2).sum()

    def outer(y: Any, j: Any) -> Any:
        return entropy(val_inputs[j] @ y, val_labels[j]).mean()

    def step(carry: Any, rows: Any) -> Any:
        x, y, v = carry
        i, j = rows
        slope, pull = jax.vjp(lambda y, x: jax.grad(inner, 1)(x, y, i), y, x)
        hv, jv = pull(v)
        value, f_y = jax.value_and_grad(outer)(y, j)
        return (x - outer_lr * jv, y - lr * slope, v - lr * (hv + f_y)), value

    many = jax.jit(lambda carry, rows: jax.lax.scan(step, carry, rows))
    zero = jnp.zeros(problem.y0.shape)
    carry: list[Any] = [(jnp.asarray(problem.x0.numpy()), zero, zero)]

    def turn() -> tuple[Any, Any]:
        rows = tuple(random.integers(n, size=(CHUNK, BATCH), dtype=np.int32) for n in (len(labels), len(val_labels)))
        carry[0], _ = jax.block_until_ready(many(carry[0], rows))
        return carry[0][:2]

    return turn


def contenders() -> list[Contender]:
    problem = data_cleaning(data(), corruption=0.5)
    found = [
        Contender("SOBA by hand", by_hand(problem)),
        Contender("pzobo SOBA", ours(problem, False)),
        Contender("pzobo SOBA, compiled", ours(problem, True)),
    ]
    return outline.with_jax(found, lambda: Contender("JAX SOBA", in_jax(problem)))


if __name__ == "__main__":
    rate = ("steps/s", lambda timing: 1e3 * CHUNK / timing.ms)
    clock = time.process_time
    sys.exit(outline.run("single_loop", __doc__, contenders, targets.SINGLE_LOOP, rounds=15, measure=rate, clock=clock))
