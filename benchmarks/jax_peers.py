"""How fast is JAX: PZOBO with the whole outer step in one jit, and jaxopt's implicit CG?"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contender import Contender
from benchmarks.peers import CG_STEPS
from benchmarks.problems import Problem, features, predict


def contenders(problem: Problem) -> list[Contender]:
    train: Any
    train, val = (tuple(jnp.asarray(t.numpy()) for t in batch) for batch in (problem.train, problem.val))

    def inner(y: Any, z: Any) -> Any:
        return problem.inner_loss(z, y, train)

    def outer(x: Any, y: Any) -> Any:
        return 0.5 * ((predict(x, y, val[0], jax.nn.sigmoid) - val[1]) ** 2).mean()

    def prepare(x: Any) -> Any:
        return features(x, train[0], jax.nn.sigmoid)

    def path(z: Any) -> Any:
        y0 = jnp.asarray(problem.y0.numpy())
        return jax.lax.fori_loop(0, problem.steps, lambda _, y: y - problem.lr * jax.grad(inner)(y, z), y0)

    def pzobo(x: Any, u: Any, shrink: Any) -> Any:
        y = path(prepare(x))
        perturbed = path(prepare([a + problem.mu * b for a, b in zip(x, u, strict=True)]))
        direct, v = jax.grad(outer, argnums=(0, 1))(x, y)
        weight = shrink / problem.mu * jnp.vdot(perturbed - y, v)
        return [a + weight * b for a, b in zip(direct, u, strict=True)]

    def drawn(x: Any, key: Any) -> Any:
        keys = jax.random.split(key, len(x))
        u = [jax.random.normal(k, t.shape) for k, t in zip(keys, x, strict=True)]
        return pzobo(x, u, problem.shrink)

    direction = [jnp.asarray(u.numpy()) for u in problem.direction]
    found = [_contender("JAX PZOBO", "PZOBO", problem, drawn, lambda x: pzobo(x, direction, 1.0))]
    if problem.name.startswith("linear"):
        implicit = _jaxopt_implicit(inner, outer, path, prepare)
        found.append(_contender("jaxopt implicit CG", "implicit CG", problem, lambda x, key: implicit(x), implicit))
    return found


def _jaxopt_implicit(inner: Any, outer: Any, path: Any, prepare: Any) -> Callable[[Any], Any]:
    from jaxopt.implicit_diff import custom_root
    from jaxopt.linear_solve import solve_cg

    def solve(matvec: Any, b: Any) -> Any:
        return solve_cg(matvec, b, maxiter=CG_STEPS, tol=0.0, atol=0.0)

    argmin: Any = custom_root(jax.grad(inner), solve=solve)(lambda start, z: path(z))
    return jax.grad(lambda x: outer(x, argmin(None, prepare(x))))


def _contender(name: str, kind: str, problem: Problem, drawn: Any, at: Callable[[Any], Any]) -> Contender:
    x0 = [jnp.asarray(t.numpy()) for t in problem.x0]
    zeros = [jnp.zeros_like(t) for t in x0]
    state: list[Any] = [x0, zeros, zeros, 1.0, jax.random.key(0)]

    @jax.jit
    def outer_step(x: Any, first: Any, second: Any, k: Any, key: Any) -> Any:
        key, own = jax.random.split(key)
        gradient = drawn(x, own)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient, strict=True)]
        second = [0.999 * s + 0.001 * g * g for s, g in zip(second, gradient, strict=True)]
        scale = problem.outer_lr * jnp.sqrt(1 - 0.999**k) / (1 - 0.9**k)
        x = [a - scale * m / (jnp.sqrt(s) + 1e-8) for a, m, s in zip(x, first, second, strict=True)]
        return [x, first, second, k + 1, key]

    ready: Any = jax.block_until_ready

    def step() -> None:
        state[:] = ready(outer_step(*state))

    return Contender(
        name, kind, step, lambda: [np.asarray(t) for t in jax.jit(at)(x0)], lambda: [np.asarray(t) for t in state[0]]
    )
