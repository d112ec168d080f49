"""What do the Jacobians from random directions share? s/Q sum_j <delta_j, v> u_j, and how the directions are run."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pzobo.errors import OptionError, PzoboError, RequirementError
from pzobo.inner.problem import Inner
from pzobo.jacobians.base import Jacobian, Level
from pzobo.solvers import BlackBox
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Sampler
from pzobo.zeroth_order.smoothing import Change, check_batching, check_directions, check_sampler, chunk_size, estimate

At = Literal["auto", "x", "z"]

FEW = 8
"""Below this many directions `vmap` costs more than it saves, so "auto" runs them one by one."""


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

    def level(self, x_size: int, z_size: int) -> Level:
        if self.at == "auto":
            return "z" if z_size < x_size else "x"
        return self.at

    def change(self, inner: Inner, y: Leaves, functional: bool) -> tuple[Change, float]:
        """How y^N changes along a direction, and over what width."""
        raise OptionError(f"{type(self).__name__} does not define change().")

    def advice(self, chunk: int) -> str:
        """What to do when something in the problem cannot be transformed as this needs it."""
        return 'torch.vmap may not take something in it: use batching="loop".' if chunk > 1 else ""

    def floor(self, inner: Inner, y: Leaves) -> Tensor | None:
        """The length of a change that would be rounding noise, if there is one."""
        return None

    def run(self, inner: Inner) -> tuple[Leaves, Pullback]:
        key = self.sampler.key()
        y = inner.base()
        loop = isinstance(inner.solver, BlackBox)
        few = inner.kernel.compile or self.directions < FEW
        chunk = 1 if loop else chunk_size(self.batching, self.directions, loop=few)

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
            )

        def pullback(v: Leaves) -> Leaves:
            closely = inner.check and inner.questions.look_closely()
            # "auto" falls back on the loop where something in the loss has no batching rule.
            for size in (chunk, 1) if self.batching == "auto" and chunk > 1 else (chunk,):
                try:
                    return attempt(v, size, closely)
                except PzoboError:
                    raise
                except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                    reason = error
            advice = self.advice(size)
            if not advice:
                raise reason
            what = str(reason).strip().splitlines()[0]
            raise RequirementError(f"{type(self).__name__} failed on this problem ({what}). {advice}") from reason

        return y, pullback
