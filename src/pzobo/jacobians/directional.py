"""What do the Jacobians from random directions share? s/Q sum_j <delta_j, v> u_j, and how the directions are run."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from pzobo.errors import OptionError, PzoboError, RequirementError
from pzobo.inner.problem import InnerProblem
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import rounding_finding, signal_finding
from pzobo.jacobians.base import Jacobian, Level
from pzobo.options import freeze
from pzobo.tensors.attach import Pullback
from pzobo.tensors.room import free_bytes, out_of_memory
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Sampler
from pzobo.zeroth_order.estimate import (
    Change,
    Changes,
    check_batching,
    check_directions,
    check_sampler,
    chunk_size,
    estimate,
)

At = Literal["auto", "x", "z"]

FEW = 8
"""Below this many directions `vmap` costs more than it saves on a CPU, so "auto" runs them one by one."""

COPIES = 11
"""What a path takes, in copies of y, at most: see tests/argmin/test_large.py."""


_BUFFERS = (
    "A module writes into its buffers there (BatchNorm in training mode?), which no transform can: give it "
    'track_running_stats=False, call eval() on it, or use PZOBO with batching="loop", or Unrolled; or at="z" '
    "where it is called in prepare."
)


class Directional(Jacobian):
    """J^T v ~ s/Q sum_j <delta_j, v> u_j from the change delta_j of y^N along random directions u_j (Eq. 4)."""

    directions: int
    sampler: Sampler
    shrink: bool | float
    at: At
    batching: str | int

    def __post_init__(self) -> None:
        check_directions(self.directions)
        check_batching(self.batching)
        if self.at not in ("auto", "x", "z"):
            raise OptionError(f'at={self.at!r}: must be "auto", "x" or "z".')
        check_sampler(self.sampler, self.shrink)
        freeze(self)

    @property
    def only_at_z(self) -> bool:
        return self.at == "z"

    def level(self, x_size: int, z_size: int) -> Level:
        if self.at == "auto":
            # A z without a graph is no function of x to autograd, but may be one to paths.
            return "z" if 0 < z_size < x_size else "x"
        return self.at

    def seeded(self, seed: int) -> Self:
        return self._with(replace(self.sampler, seed=seed, generator=None))

    def at_start(self) -> Self:
        return self._with(self.sampler.at_start())

    def _with(self, sampler: Sampler) -> Self:
        alike: Any = self
        return cast(Self, replace(alike, sampler=sampler))

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.sampler.load_state_dict(state["sampler"])

    @abstractmethod
    def change(self, inner: InnerProblem, y: Leaves, functional: bool) -> tuple[Change, float]:
        """How y^N changes along a direction, and over what width."""

    def changes(self, inner: InnerProblem, y: Leaves) -> Changes | None:
        """The same along many directions, for a solver that runs side by side."""
        return None

    def advice(self, chunk: int) -> str:
        """What to do when something in the problem cannot be transformed as this needs it."""
        return 'torch.vmap may not take something in it: use batching="loop".' if chunk > 1 else ""

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        p = sum(t.numel() for t in inner.variables)
        starts = sum(t.numel() for _, t in inner.call.starts)
        return [signal_finding(self.sampler.relative_error(p, self.directions), p, self.directions, starts)]

    def floor(self, inner: InnerProblem, y: Leaves) -> Tensor | None:
        """The length of a change that would be rounding noise, if there is one."""
        return None

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        key = self.sampler.key()
        y = inner.base()
        loop = inner.solver.opaque
        # Under torch.vmap the bits of a path may depend on how many run with it, and so on the number of ranks. Off the
        # CPU two paths at once are worth it.
        enough = FEW if inner.variables[0].device.type == "cpu" else 2
        few = inner.kernel.compile or self.directions < enough or inner.split is not None
        chunk = 1 if loop else chunk_size(self.batching, self.directions, loop=few)
        auto = self.batching == "auto" and chunk > 1
        if auto:
            chunk = _room(inner, y, min(chunk, inner.questions.most or chunk))

        def attempt(v: Leaves, chunk: int, closely: bool) -> Leaves:
            return estimate(
                *self.change(inner, y, functional=chunk > 1),
                v,
                inner.variables,
                sampler=self.sampler,
                key=key,
                directions=self.directions,
                shrink=self.shrink,
                chunk=chunk,
                floor=self.floor(inner, y) if closely else None,
                # What is wrong from the start is refused; a long run does not die of a response that has become small.
                strict=inner.questions.asked == 1,
                check=inner.check,
                changes=self.changes(inner, y),
                split=inner.split,
                base=y,
                note=lambda length: inner.questions.findings.extend(rounding_finding(length, inner.rounding(y))),
            )

        def pullback(v: Leaves) -> Leaves:
            closely = inner.check and inner.questions.closely
            size = chunk
            while True:
                try:
                    return attempt(v, size, closely)
                except PzoboError:
                    raise
                except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
                    if not auto or size == 1:
                        raise self._explained(error, size) from error
                    # "auto" takes fewer paths at once where memory does not suffice, and falls back on the loop where
                    # something in the loss has no batching rule. Nothing of the error is kept: it holds what failed.
                    size = size // 2 if out_of_memory(error) else 1
                inner.questions.most = size

        return y, pullback

    def _explained(self, error: Exception, size: int) -> Exception:
        """The error in words of this library, if there is something to advise."""
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        advice = _BUFFERS if "mutate a captured" in what else self.advice(size)
        if not advice or out_of_memory(error):
            return error
        return RequirementError(f"{type(self).__name__} failed on this problem ({what}). {advice}")


def _room(inner: InnerProblem, y: Leaves, most: int) -> int:
    """How many paths at once, of so many, there is room for, if each takes `COPIES` of y and of its variables."""
    sizes = Counter[torch.device]()
    for t in (*y, *inner.variables):
        sizes[t.device] += COPIES * t.nbytes
    rooms = [(free_bytes(device), size) for device, size in sizes.items()]
    return max(1, min([most, *(free // 2 // size for free, size in rooms if free is not None and size)]))
