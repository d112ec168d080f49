"""Is a slip in an algorithm of one's own told, and not passed on to the numbers?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import pzobo
from pzobo.algorithms import Algorithm, Oracles, Step, Vector
from pzobo.errors import StructureError

ONE = torch.zeros(1, dtype=torch.float64)
THREE = torch.ones(3, dtype=torch.float64)
# y of one number, x of three: what is added up in wrong shapes still gives numbers.
PROBLEM = pzobo.Problem(
    lambda x, y, batch: (y - x).square().sum(),
    lambda x, y, batch: (y - 1).square().sum() + x.square().sum(),
    THREE,
    ONE,
)


@dataclass(frozen=True)
class Kept:
    y: Vector


@dataclass(frozen=True)
class Other:
    y: Vector


class Pair(NamedTuple):
    y: Vector


@dataclass(frozen=True)
class Own(Algorithm[Any]):
    slip: str = ""

    def begin(self, at: Oracles) -> Any:
        y: Any = at.y0.leaves[0]
        return {"dict": {"y": at.y0}, "tuple": Pair(at.y0), "tensor": Kept(y)}.get(self.slip, Kept(at.y0))

    def step(self, at: Oracles, now: Any) -> Any:
        f, g = at.f(at.x, now.y, at.outer_batch()), at.g(at.x, now.y, at.inner_batch())
        carried, number = Kept(now.y.step(0.1, g.x if self.slip == "y" else g.y)), 1.0
        made: dict[str, Any] = {
            "no step": (carried, f.value, f.x),
            "number": Step(carried, number, f.x),  # type: ignore[arg-type]
            "other": Step(Other(carried.y), f.value, f.x),
            "D": Step(carried, f.value, f.y),
        }
        return made.get(self.slip, Step(carried, f.value, f.x))


def fit(slip: str, **options: Any) -> pzobo.Fit:
    return pzobo.fit(PROBLEM, Own(slip=slip, **options), 3, optimizer=torch.optim.SGD, lr=0.1, evaluate_every=0)


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("dict", "Own.begin gave a dict; expected a frozen dataclass"),
        ("tuple", "Own.begin gave a Pair"),
        ("tensor", "with a Vector y among them"),
        ("no step", r"Own.step gave tuple; expected Step\(Kept, Tensor, Vector\): what is carried"),
        ("number", r"Own.step gave Step\(Kept, float, Vector\); expected Step\(Kept, Tensor, Vector\)"),
        ("other", r"Own.step gave Step\(Other, Tensor, Vector\); expected"),
        ("y", r"Own.step gave y with the shapes \[\(3,\)\]; expected those as before, \[\(1,\)\]"),
        ("D", r"Own.step gave D with the shapes \[\(1,\)\]; expected those of x, \[\(3,\)\]"),
    ],
)
@pytest.mark.parametrize("compile", [False, True])
def test_a_slip_is_told(slip: str, told: str, compile: bool) -> None:
    with pytest.raises(StructureError, match=told):
        fit(slip, compile=compile)


def test_without_a_slip_nothing_is_told() -> None:
    assert fit("").history[-1]["outer_loss"] < fit("").history[0]["outer_loss"]
