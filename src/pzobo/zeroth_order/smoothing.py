"""How does any function get a derivative without derivatives? `smooth`, the primitive of which HOZOG is one use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pzobo.distributed.splits import Split, Wire, ambient, together
from pzobo.errors import StructureError
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.checks import check_x
from pzobo.tensors.precision import dtype_eps, working_eps
from pzobo.tensors.replay import Replay
from pzobo.tensors.trees import Leaves, Plan, Tree, substitute, unique
from pzobo.zeroth_order.directions import Gaussian, Sampler
from pzobo.zeroth_order.estimate import (
    check_batching,
    check_directions,
    check_mu,
    check_sampler,
    chunk_size,
    difference,
    estimate,
)
from pzobo.zeroth_order.noise import check_noise, noise_floor


def smooth(
    fn: Callable[[Tree], Tree],
    x: Tree,
    *,
    mu: float,
    directions: int = 1,
    sampler: Sampler | None = None,
    shrink: bool | float = False,
    antithetic: bool = False,
    batching: str | int = "loop",
    split: Literal["directions"] | None = None,
    wire: Wire = "scalars",
) -> Tree:
    """fn(x), with a zeroth-order derivative: the backward is (1/Q) sum_j <(fn(x + mu u_j) - fn(x)) / mu, v> u_j.

    Around a whole bilevel objective this is HOZOG (and ES-MAML); around an inner solve it is PZOBO. `fn` may be any
    code that gives tensors for tensors; the perturbed evaluations are made in the backward pass, under the random
    numbers of the first, so nothing is evaluated that is not needed and nothing is kept.

    Args:
        fn: any code that takes a tree like x and gives a tree of tensors.
        x: where it is evaluated: a tensor, or a tree of tensors. Those that need no gradient are constants.
        mu: the length of the perturbation.
        directions: Q. Each costs one evaluation (two with `antithetic`), in the backward pass.
        sampler: how the directions are drawn; `Gaussian()` by default.
        shrink: False is the paper's unbiased estimate; True scales it for least mean squared error; a number is taken
            as it is.
        antithetic: central differences, (fn(x + mu u) - fn(x - mu u)) / 2 mu.
        batching: "loop" evaluates one by one, "vmap" all together, a number that many at a time.
        split: "directions" splits them over the ranks of torchrun; each rank has the whole answer.
        wire: what crosses the network then, as in `Argmin`.

    Returns:
        fn(x), a tree of tensors in the structure that `fn` gives.

    Raises:
        SmoothingError: `mu` is not positive, or so small that differences are rounding noise.
        DirectionsError: `directions` is not a whole number of at least 1.
        NonFiniteError: x holds NaN or infinity.
        StructureError: `fn` gives something that is no tensor, or x is no tree of real tensors.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> x = torch.zeros(3, requires_grad=True)
        >>> loss = pzobo.smooth(lambda x: (x - 1).square().sum(), x, mu=1e-3, directions=3, sampler=pzobo.Orthogonal())
        >>> loss.backward()
        >>> x.grad.round(decimals=1)
        tensor([-2., -2., -2.])
    """
    mu = check_mu(mu)
    check_directions(directions)
    check_batching(batching)
    sampler = Gaussian() if sampler is None else sampler
    check_sampler(sampler, shrink)
    shared = Split.of(split, wire, ("directions",)) or ambient("directions")
    leaves, plan = Plan.take(x)
    variables = unique(leaves)
    structure: list[Plan] = []

    def evaluate(values: Leaves) -> Leaves:
        # Whatever fn writes into is not what the caller has, nor what the other evaluations see.
        copy = plan.build(trees.copied(leaf) for leaf in substitute(leaves, variables, values))
        with torch.enable_grad():
            answer = fn(copy)
        outputs, plan_of_answer = Plan.take(answer)
        if structure and structure[0] != plan_of_answer:
            raise StructureError("smooth(fn, ...): fn's answer at a perturbed x has another structure than at x.")
        structure[:] = [plan_of_answer]
        for output in outputs:
            if not isinstance(output, Tensor):
                raise StructureError(f"smooth(fn, ...): fn returned a {type(output).__name__}; expected tensors.")
        # Copies: fn may give the same memory each time, filled anew.
        return tuple(output.detach().clone() for output in outputs)

    active = torch.is_grad_enabled() and bool(variables)
    key = sampler.key() if active else 0
    values = tuple(t.detach() for t in variables)
    if active:
        check_x(values)
    eps = working_eps(values) if values else 0.0
    replay = Replay(values)
    with replay.first():
        base = evaluate(values)
    rebuild = structure[0].build
    if not active:
        return rebuild(base)

    def pullback(v: Leaves) -> Leaves:
        check_noise(values, mu, sampler)

        def again(values: Leaves) -> Leaves:
            with replay.again():
                return evaluate(values)

        with together(shared):
            return estimate(
                *difference(again, base, values, mu, antithetic),
                v,
                values,
                sampler=sampler,
                key=key,
                directions=directions,
                shrink=shrink,
                chunk=chunk_size(batching, directions, loop=True),
                floor=noise_floor(trees.norm(base) * max(eps, dtype_eps(base)), base, directions),
                split=shared,
                base=base,
            )

    constants = [t for t in leaves if isinstance(t, Tensor) and not trees.is_variable(t)]
    return rebuild(attach(base, pullback, variables, fixed=constants))
