"""What is dy/dx by the difference of two paths? PZOBO and PZOBO-S (Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from pzobo.inner.problem import InnerProblem
from pzobo.jacobians.directional import At, Directional
from pzobo.tensors.trees import Leaves
from pzobo.zeroth_order.directions import Gaussian, Sampler
from pzobo.zeroth_order.estimate import Change, Changes, check_mu, difference, differences
from pzobo.zeroth_order.noise import check_noise, noise_floor


@dataclass(frozen=True)
class PZOBO(Directional):
    """delta_j = (y^N(x + mu u_j) - y^N(x)) / mu: two optimization paths, no second derivative of anything.

    Args:
        mu: the length of the perturbation.
        directions: Q. Each costs one path (two with `antithetic`), run in the backward pass.
        sampler: how the directions are drawn.
        shrink: True scales the estimate for least mean squared error, by 1 / (1 + its relative squared error); False is
            the paper's unbiased one, whose noise is (p + 1) / Q times the signal; a number is taken as it is.
        at: perturb "x" as in the paper, or "z" = prepare(x, batch), from which autograd carries the answer on to x;
            "auto" takes the smaller, and "x" where numbers of the solver are functions of it.
        batching: "loop" runs the paths one by one, "vmap" together, a number that many at a time; "auto" is "loop" for
            fewer than 8 directions or with compile=True, and else at most 64 at a time.
        antithetic: central differences, (y^N(x + mu u) - y^N(x - mu u)) / 2 mu.

    Raises:
        SmoothingError: `mu` is not positive.
        DirectionsError: `directions` is not a whole number of at least 1.
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.PZOBO(1e-4, 3, pzobo.Orthogonal()))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    mu: float = 0.01
    directions: int = 1
    sampler: Sampler = field(default_factory=Gaussian)
    shrink: bool | float = True
    at: At = "auto"
    batching: str | int = "auto"
    antithetic: bool = False

    def __post_init__(self) -> None:
        check_mu(self.mu)
        super().__post_init__()

    def change(self, inner: InnerProblem, y: Leaves, functional: bool) -> tuple[Change, float]:
        return difference(lambda w: inner.again(w, functional), y, inner.variables, self.mu, self.antithetic)

    def changes(self, inner: InnerProblem, y: Leaves) -> Changes | None:
        if not inner.solver.side_by_side:
            return None
        return differences(inner.again_all, y, inner.variables, self.mu, self.antithetic)

    def floor(self, inner: InnerProblem, y: Leaves) -> Tensor | None:
        check_noise(inner.variables, self.mu, self.sampler)
        return noise_floor(inner.rounding(y), y, self.directions)
