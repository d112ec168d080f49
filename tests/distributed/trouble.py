"""What happens to ranks in trouble? Scripts that a test starts with torchrun, by name, and disturbs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pzobo
from pzobo.distributed.ranks import Ranks, here
from pzobo.errors import BatchError, DriftError, RequirementError
from tests.distributed.ranked import Q, data, inner, outer, problem


def method() -> pzobo.Method:
    jacobian = pzobo.PZOBO(directions=Q, sampler=pzobo.Orthogonal(seed=2))
    return pzobo.Method(pzobo.GD(0.05, 4), jacobian, warm_start=True, batch_size=6, audit=False)


def run(out: Path | None, steps: int, **options: Any) -> pzobo.Fit:
    """A run that can be stopped and resumed, on any number of ranks."""
    torch.set_num_threads(1)
    options = {"lr": 0.05, "checkpoint_every": 5, "evaluate_every": 0, "progress": False, **options}
    return pzobo.fit(problem(), method(), steps, out=out, resume=True, split="directions", **options)


def go_on(folder: str, steps: str, before: str = "/proc/no-such-folder") -> None:
    """Resume, and say so every ten steps, with a rest in which a test can disturb it. Only rank 0 has a folder that can
    be written; the others may have that of a run before."""
    pzobo.distributed.join(timeout=float(os.environ.get("PZOBO_TEST_TIMEOUT", "60")))
    rank = here().rank

    def tell(objective: Any) -> dict[str, float]:
        if rank == 0:
            print("at work", flush=True)
        time.sleep(0.2)
        return {}

    run(Path(folder if rank == 0 else before), int(steps), evaluate=tell, evaluate_every=10)
    if rank == 0:
        print("done", flush=True)


def fails() -> None:
    """A black box that fails on one rank, in its share of the directions."""
    rank, calls = here().rank, 0

    def box(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if rank == 1 and calls > 20:
            raise ValueError("the licence has run out")
        return x.detach().sigmoid()

    how = pzobo.Method(pzobo.BlackBox(box), pzobo.PZOBO(0.1, Q))
    pzobo.fit(problem(), how, 10**6, lr=0.05, split="directions", progress=False)


def refused() -> None:
    """What all ranks refuse alike."""
    pzobo.fit(problem(), method(), 0, lr=0.05, split="directions")


def means() -> dict[str, str]:
    """Losses that are no means over rows, and batches without rows."""
    total = lambda x, y, batch: 20 * inner(x, y, batch)  # noqa: E731
    weighted = lambda x, y, batch: ((w := x.exp().sum() + batch[1].exp()) * batch[0].sum(1)).sum() / w.sum()  # noqa: E731
    noisy = lambda x, y, batch: inner(x, torch.nn.functional.dropout(y, 0.5) + 1.0, batch)  # noqa: E731
    of_sums = lambda x, y, batch: (batch[0] @ y - batch[1]).sum() ** 2 + x.sum()  # noqa: E731
    told = {}
    for name, loss in {"mean": inner, "times": total, "sum": of_sums, "weighted": weighted, "noisy": noisy}.items():
        argmin = pzobo.Argmin(loss, solver=pzobo.GD(0.01, 2), jacobian=pzobo.Unrolled(), split="data")
        try:
            argmin(torch.zeros(5, requires_grad=True), torch.zeros(5), data()[0])
        except RequirementError as error:
            told[name] = str(error)
    for name, batch in {"few": (torch.ones(1, 5), torch.ones(1)), "unlike": (torch.ones(4, 5), torch.ones(3))}.items():
        argmin = pzobo.Argmin(inner, solver=pzobo.GD(0.01, 2), jacobian=pzobo.Unrolled(), split="data")
        try:
            argmin(torch.zeros(5, requires_grad=True), torch.zeros(5), batch)
        except BatchError as error:
            told[name] = str(error)
    return told


def drifts(folder: str) -> None:
    """Ranks that hold different things; what each is told."""
    Ranks.together = lambda self: contextlib.nullcontext()  # type: ignore[assignment, method-assign]
    rank = here().rank
    told = {}

    def loop(name: str, x: Tensor, y0: Tensor, shift: float = 0.0, seed: int = 0, late: float = 0.0) -> None:
        torch.manual_seed(seed)
        train, val = data()
        argmin = pzobo.Argmin(
            inner, solver=pzobo.GD(0.05, 4), jacobian=pzobo.PZOBO(directions=2), audit=False, split="directions"
        )
        here().splits = 0
        try:
            for step in range(40 if late else 1):
                x = (x.detach() + (late * rank if step == 20 else 0.0)).requires_grad_()
                y = argmin(x, y0, train)
                (outer(x, y, val) + shift * y.sum()).backward()
        except DriftError as error:
            told[name] = f"{step}: {error}"

    zero, same = torch.zeros(5), torch.zeros(5)
    loop("alike", same, zero)
    loop("key", same, zero, seed=rank)
    loop("x", same + 1e-7 * rank, zero)
    loop("y", same, zero + 1e-7 * rank)
    loop("v", same, zero, shift=1e-3 * rank)
    loop("later", same, zero, late=1e-3)
    here().splits = 0
    try:
        other = pzobo.Problem(inner, outer, same + rank, zero, *data())
        pzobo.fit(other, method(), 1, lr=0.1, split="directions")
    except DriftError as error:
        told["run"] = str(error)
    told |= means()
    torch.save(told, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
