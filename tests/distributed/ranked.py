"""What do many ranks compute? Run by torchrun, or on its own: each case is written as bits, for tests to compare."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optree
import torch
from torch import Tensor

import pzobo
import pzobo.data
import pzobo.meta
import pzobo.networks
from pzobo.distributed.ranks import here
from tests.helpers import normal
from tests.meta.conftest import classes
from tests.outer.resumed import inner, outer

Q = 7


def data(dtype: torch.dtype = torch.float32) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    rows = normal(40, 5).to(dtype)
    labels = rows @ torch.ones(5, dtype=dtype) + normal(40, seed=1).to(dtype)
    return (rows[:20], labels[:20]), (rows[20:], labels[20:])


def problem(dtype: torch.dtype = torch.float32) -> pzobo.Problem:
    train, val = data(dtype)
    return pzobo.Problem(inner, outer, torch.zeros(5, dtype=dtype), torch.zeros(5, dtype=dtype), train, val)


def hypergradients(jacobian: Any, steps: int = 3, **options: Any) -> Tensor:
    """The path of a plain loop, as one tensor."""
    torch.manual_seed(3)
    train, val = data()
    argmin = pzobo.Argmin(inner, solver=pzobo.GD(0.05, 8), jacobian=jacobian, **options)
    x, found = torch.zeros(5, requires_grad=True), []
    for _ in range(steps):
        (slope,) = torch.autograd.grad(outer(x, argmin(x, torch.zeros(5), train), val), x)
        found.append(slope)
        x = (x.detach() - 0.1 * slope).requires_grad_()
    return torch.cat([*found, x.detach()])


def smoothed(**options: Any) -> Tensor:
    torch.manual_seed(4)
    x = torch.linspace(-1, 1, 6).requires_grad_()
    loss = pzobo.smooth(lambda x: (x.cos() * x).sum(), x, mu=0.01, directions=Q, antithetic=True, **options)
    loss.backward()
    assert x.grad is not None
    return x.grad


def formula(x: Tensor, batch: Any) -> Tensor:
    """The solution of the inner problem."""
    rows, labels = batch
    n, d = rows.shape
    return torch.linalg.solve(rows.T @ rows / n + torch.diag(x.exp()) / d, rows.T @ labels / n)


def features(x: Tensor, batch: Any) -> Any:
    """Rows scaled by x, and x itself."""
    return batch[0] * (1 + 0.1 * x), x


def inner_on_features(z: Any, y: Tensor, batch: Any) -> Tensor:
    rows, x = z
    return (rows @ y - batch[1]).square().mean() + (x.exp() * y.square()).mean()


def rows_split(
    jacobian: Any, solver: Any = None, prepare: Any = None, sparse: bool = False, rough: bool = False
) -> Tensor:
    """Hypergradients with the data on many ranks. What takes differences is made in float64."""
    torch.manual_seed(5)
    dtype = torch.float64 if rough else torch.float32
    (rows, labels), val = data(dtype)
    argmin = pzobo.Argmin(
        inner if prepare is None else inner_on_features,
        solver=solver or pzobo.GD(0.05, 6),
        jacobian=jacobian,
        prepare=prepare,
        split="data",
    )
    x = torch.linspace(-0.5, 0.5, 5, dtype=dtype, requires_grad=True)
    batch = (pzobo.SparseMatrix.from_torch(rows) if sparse else rows, labels)
    y = argmin(x, torch.zeros(5, dtype=dtype), batch)
    outer(x, y, val).backward()
    assert x.grad is not None
    return torch.cat([y.detach(), x.grad])


def few_shot() -> pzobo.meta.FewShot:
    parts = (classes(7, 0), classes(5, 1), classes(6, 2))
    return pzobo.meta.FewShot(
        pzobo.data.FewShotData(*parts),
        functools.partial(pzobo.networks.CNN4, filters=2),
        ways=3,
        shots=2,
        queries=3,
        meta_batch=4,
        eval_tasks=9,
        dtype=torch.float64,
    )


def learned(learner: Any, what: Any) -> Tensor:
    found = pzobo.fit(few_shot(), learner, 2, lr=0.01, evaluate_every=0, progress=False, split=what)
    last = found.history[-1]
    numbers = [row["outer_loss"] for row in found.history] + [last["accuracy"], last["loss"], last["inner_loss"] or 0.0]
    leaves: list[Any] = optree.tree_leaves(found.x)
    return torch.cat([*(t.detach().flatten() for t in leaves), torch.tensor(numbers, dtype=torch.float64)])


def fitted(method: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    found = pzobo.fit(problem(dtype), method, 4, lr=0.05, progress=False, **options)
    return torch.cat([found.x.detach(), torch.tensor([row["outer_loss"] for row in found.history])])


def split(**options: Any) -> dict[str, Any]:
    return {"split": "directions", **options}


CASES: dict[str, Callable[[], Tensor]] = {
    "pzobo": lambda: hypergradients(pzobo.PZOBO(directions=Q), **split()),
    "one direction": lambda: hypergradients(pzobo.PZOBO(), **split()),
    "antithetic, orthogonal": lambda: hypergradients(
        pzobo.PZOBO(directions=Q, antithetic=True, sampler=pzobo.Orthogonal(seed=1)), **split()
    ),
    "forward mode": lambda: hypergradients(pzobo.ForwardMode(directions=Q), **split()),
    "in chunks of 2": lambda: hypergradients(pzobo.PZOBO(directions=Q, batching=2), **split()),
    "vector": lambda: hypergradients(pzobo.PZOBO(directions=Q), **split(wire="vector")),
    "smooth": lambda: smoothed(**split()),
    "fit": lambda: fitted(
        pzobo.Method(pzobo.GD(0.05, 4), pzobo.PZOBO(directions=Q), warm_start=True, batch_size=6, outer_batch_size=7),
        **split(),
    ),
    "hozog": lambda: fitted(pzobo.HOZOG(pzobo.GD(0.05, 4), directions=Q, batch_size=6), **split()),
}
CASES |= {
    f"data, {name}": lambda how=how: rows_split(**how)  # type: ignore[misc]
    for name, how in {
        "PZOBO": {"jacobian": pzobo.PZOBO(directions=3), "rough": True},
        "PZOBO in chunks": {"jacobian": pzobo.PZOBO(directions=4, batching=2), "rough": True},
        "ForwardMode": {"jacobian": pzobo.ForwardMode(directions=3)},
        "Unrolled": {"jacobian": pzobo.Unrolled()},
        "Unrolled, checkpoint, HeavyBall": {
            "jacobian": pzobo.Unrolled(checkpoint=True),
            "solver": pzobo.HeavyBall(0.05, 0.5, 8),
        },
        "Unrolled, forward": {"jacobian": pzobo.Unrolled(products="forward")},
        "Unrolled, difference": {"jacobian": pzobo.Unrolled(products="difference"), "rough": True},
        "Unrolled, Adam": {"jacobian": pzobo.Unrolled(), "solver": pzobo.Adam(0.05, 6)},
        "Implicit, CG": {"jacobian": pzobo.Implicit(pzobo.CG(5, 1e-3))},
        "Implicit, forward, Neumann": {"jacobian": pzobo.Implicit(pzobo.Neumann(0.05, 5), products="forward")},
        "Implicit, FixedPoint": {"jacobian": pzobo.Implicit(pzobo.FixedPoint(5))},
        "Nudged": {"jacobian": pzobo.Nudged(), "rough": True},
        "closed form": {"jacobian": pzobo.Implicit(pzobo.CG(5, 1e-3)), "solver": pzobo.ClosedForm(formula)},
        "prepare, PZOBO": {"jacobian": pzobo.PZOBO(directions=3, at="x"), "prepare": features, "rough": True},
        "prepare, Unrolled": {"jacobian": pzobo.Unrolled(), "prepare": features},
        "prepare, Implicit": {"jacobian": pzobo.Implicit(pzobo.CG(5, 1e-3)), "prepare": features},
        "sparse": {"jacobian": pzobo.Unrolled(), "sparse": True},
    }.items()
}
DATA: dict[str, Any] = {"split": "data"}
CASES |= {
    "data, fit": lambda: fitted(
        pzobo.Method(pzobo.GD(0.05, 4), pzobo.Implicit(pzobo.CG(3, 1e-2)), warm_start=True, batch_size=7), **DATA
    ),
    "data, hozog": lambda: fitted(pzobo.HOZOG(pzobo.GD(0.05, 4), directions=3), torch.float64, **DATA),
}
ALGORITHMS = [
    getattr(pzobo.algorithms, name)
    for name in pzobo.algorithms.__all__
    if dataclasses.is_dataclass(getattr(pzobo.algorithms, name)) and hasattr(getattr(pzobo.algorithms, name), "lr")
]
CASES |= {
    f"data, {algorithm.__name__}": lambda algorithm=algorithm: fitted(  # type: ignore[misc]
        algorithm(0.02, batch_size=7, outer_batch_size=10), torch.float64, **DATA
    )
    for algorithm in ALGORITHMS
}
CASES["data, SAMA"] = lambda: fitted(pzobo.algorithms.SAMA(batch_size=7), torch.float64, **DATA)
LEARNERS: dict[str, Any] = {
    "PZOBO": pzobo.meta.HeadLearner(pzobo.GD(0.1, 3)),
    "ANIL": pzobo.meta.ANIL(steps=2),
    "MAML": pzobo.meta.MAML(steps=2),
    "ProtoNet": pzobo.meta.ProtoNet(),
    "MetaOptNet": pzobo.meta.MetaOptNet(),
    "ES-MAML": pzobo.meta.ESMAML(steps=2, directions=3),
}
CASES |= {f"tasks, {name}": lambda how=how: learned(how, "tasks") for name, how in LEARNERS.items()}  # type: ignore[misc]
CASES["directions, ES-MAML"] = lambda: learned(LEARNERS["ES-MAML"], "directions")

ROUNDED = {"vector", *(name for name in CASES if name.startswith(("data", "tasks")))}
"""Cases that are equal to rounding only."""
TO_ROUNDING = 1e-6


def main(folder: str) -> None:
    torch.set_num_threads(1)
    found = {name: case() for name, case in CASES.items()}
    ranks = here()
    torch.save(found, Path(folder) / f"{ranks.count}-{ranks.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
