"""How long does a stocBiO step take, compiled and not, beside jitted JAX? `python -m benchmarks.stochastic`.

Softmax regression on batches of 64 x 784 with 10 classes, one l2 weight for each entry of y: 10 inner steps on batches
of their own, 10 terms of a Neumann series on others, and plain SGD on x.
"""

from benchmarks.environment import use_one_thread

use_one_thread()

import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import pzobo  # noqa: E402
from benchmarks import outline, targets  # noqa: E402
from benchmarks.contender import Contender, relative_error  # noqa: E402

ROWS, FEATURES, CLASSES, STEPS, TERMS = 64, 784, 10, 10, 10
RATE = 0.1


def data() -> tuple[list[Any], list[Any], Any]:
    """Inner batches, batches of the series, and the outer batch."""
    generator = torch.Generator().manual_seed(0)
    made = [
        (torch.rand(ROWS, FEATURES, generator=generator), torch.randint(CLASSES, (ROWS,), generator=generator))
        for _ in range(STEPS + TERMS + 2)
    ]
    return made[:STEPS], made[STEPS:-1], made[-1]


def inner_loss(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(batch[0] @ y, batch[1]) + 0.5 * (x.exp() * y.square()).mean()


def ours(compile: bool) -> Contender:
    batches, own, outer = data()
    jacobian = pzobo.Implicit(pzobo.Neumann(RATE, TERMS))
    argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(RATE, STEPS), jacobian=jacobian, compile=compile, audit=False)
    x, y0 = torch.zeros(FEATURES, CLASSES, requires_grad=True), torch.zeros(FEATURES, CLASSES)

    def gradient() -> Tensor:
        y = argmin(x, y0, batches=batches, jacobian_batches=own)
        return torch.autograd.grad(F.cross_entropy(outer[0] @ y, outer[1]), x)[0]

    def step() -> None:
        found = gradient()
        with torch.no_grad():
            x.sub_(found, alpha=1e-3)

    return Contender(
        "pzobo stocBiO" + ", compiled" * compile, "stocBiO", step, lambda: [gradient()], lambda: [x.detach()]
    )


def jax_peer() -> Contender:
    import jax
    import jax.numpy as jnp

    def stacked(made: list[Any]) -> Any:
        return tuple(jnp.asarray(np.stack([np.asarray(batch[i]) for batch in made])) for i in range(2))

    def entropy(y: Any, batch: Any) -> Any:
        scores = jax.nn.log_softmax(batch[0] @ y)
        return -jnp.take_along_axis(scores, batch[1][:, None], 1).mean()

    def inner(x: Any, y: Any, batch: Any) -> Any:
        return entropy(y, batch) + 0.5 * (jnp.exp(x) * y**2).mean()

    batches, own, outer = data()
    path, (*series, last), out = stacked(batches), own, tuple(jnp.asarray(t.numpy()) for t in outer)
    terms, last = stacked(series), tuple(jnp.asarray(t.numpy()) for t in last)
    slope = jax.grad(inner, 1)

    def hypergradient(x: Any) -> Any:
        y = jax.lax.scan(lambda y, b: (y - RATE * slope(x, y, b), None), jnp.zeros((FEATURES, CLASSES)), path)[0]
        v = jax.grad(entropy)(y, out)

        def term(carry: Any, batch: Any) -> Any:
            total, r = carry
            r = r - RATE * jax.jvp(lambda y: slope(x, y, batch), (y,), (r,))[1]
            return (total + r, r), None

        (total, _), _ = jax.lax.scan(term, (v, v), terms)
        return -jax.vjp(lambda x: slope(x, y, last), x)[1](RATE * total)[0]

    x = [jnp.zeros((FEATURES, CLASSES))]
    outer_step = jax.jit(lambda x: x - 1e-3 * hypergradient(x))

    def step() -> None:
        x[0] = jax.block_until_ready(outer_step(x[0]))

    start = jnp.zeros((FEATURES, CLASSES))
    return Contender(
        "JAX stocBiO", "stocBiO", step, lambda: [np.asarray(jax.jit(hypergradient)(start))], lambda: [np.asarray(x[0])]
    )


def contenders() -> list[Contender]:
    return outline.with_jax([ours(compile=False), ours(compile=True)], jax_peer)


def wrong(chosen: Sequence[Contender]) -> list[str]:
    expected = chosen[0].hypergradient()
    errors = {contender: relative_error(contender.hypergradient(), expected) for contender in chosen}
    for contender, error in errors.items():
        print(f"{contender.name:<26} {error:.0e} from {chosen[0].name}")
    return [contender.name for contender, error in errors.items() if error > contender.tolerance]


if __name__ == "__main__":
    sys.exit(outline.run("stochastic", __doc__, contenders, targets.STOCHASTIC, rounds=30, wrong=wrong))
