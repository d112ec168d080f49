"""Does a fit go on with every optimizer and schedule in the same bits, and tell a schedule what it needs?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import OptionError
from tests.outer.test_fitting import METHOD, PROBLEM, TREE, momentum

SCHEDULES = torch.optim.lr_scheduler


def test_plateaus_hear_the_outer_loss() -> None:
    made = []

    def schedule(optimizer: Any) -> Any:
        made.append(SCHEDULES.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.0))
        return made[0]

    found = pzobo.fit(PROBLEM, METHOD, 12, lr=6.0, optimizer=torch.optim.SGD, scheduler=schedule)
    assert made[0].best == min(row["outer_loss"] for row in found.history[:-1])
    assert made[0].optimizer.param_groups[0]["lr"] < 6.0


SCHEDULERS: dict[str, Any] = {
    "lambda": lambda o: SCHEDULES.LambdaLR(o, lambda k: 0.9**k),
    "plateau": lambda o: SCHEDULES.ReduceLROnPlateau(o, patience=0),
    "one cycle": lambda o: SCHEDULES.OneCycleLR(o, 0.1, total_steps=9),
    "cosine": lambda o: SCHEDULES.CosineAnnealingLR(o, 9),
    "milestones": lambda o: SCHEDULES.MultiStepLR(o, [2, 6]),
    "sequence": lambda o: SCHEDULES.SequentialLR(o, [SCHEDULES.LinearLR(o), SCHEDULES.ExponentialLR(o, 0.9)], [4]),
}


class Master(torch.optim.Optimizer):
    """An optimizer of one's own: two groups, float64 copies of the parameters, a counter."""

    def __init__(self, tensors: list[Tensor], lr: float) -> None:
        super().__init__([{"params": tensors[:1]}, {"params": tensors[1:], "lr": 2 * lr}], {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("exact", p.detach().double())
                state["count"] = state.get("count", 0) + 1
                state["exact"] -= group["lr"] * p.grad.double() / state["count"]
                with torch.no_grad():
                    p.copy_(state["exact"])


OPTIMIZERS: dict[str, Any] = {
    **{
        name: getattr(torch.optim, name)
        for name in ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Adafactor")
    },
    "momentum": momentum,
    "tensor rate": lambda tensors, lr: torch.optim.Adam(tensors, torch.tensor(lr)),
    "own": Master,
}


@pytest.mark.parametrize("kind", [*SCHEDULERS, *OPTIMIZERS])
def test_every_optimizer_and_schedule_goes_on_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "lr": 0.05,
        "optimizer": OPTIMIZERS.get(kind, momentum),
        "scheduler": SCHEDULERS.get(kind),
    }
    expected = pzobo.fit(TREE, METHOD, 9, **options)
    pzobo.fit(TREE, METHOD, 5, out=tmp_path, **options)
    found = pzobo.fit(TREE, METHOD, 9, out=tmp_path, resume=True, **options)
    assert torch.equal(found.x["a"], expected.x["a"])
    assert torch.equal(found.x["b"][0], expected.x["b"][0])
    assert not torch.equal(found.x["a"], TREE.x0["a"])


def test_an_optimizer_that_needs_a_closure() -> None:
    with pytest.raises(OptionError, match=r"LBFGS.*closure.*Adam"):
        pzobo.fit(PROBLEM, METHOD, 3, optimizer=torch.optim.LBFGS)
