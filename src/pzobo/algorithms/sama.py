"""What is SAMA? The hypergradient through one update of the inner optimizer, Hessian-free (Choe et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pzobo.algorithms.algorithm import SecondOrder, Step
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.vector import Vector
from pzobo.errors import OptionError
from pzobo.inner.kernel import Products
from pzobo.inner.solver import Iterative
from pzobo.solvers import Adam

ADAM = Adam(lr=1e-3, steps=1)


@dataclass(frozen=True)
class SAMAState:
    """y, and the inner optimizer's moments."""

    y: Vector
    moments: Vector


@dataclass(frozen=True)
class SAMA(SecondOrder[SAMAState]):
    """SAMA, a `SecondOrder` algorithm with an inner loop, for large networks.

        y, m <- update(dg/dy(x, y), y, m)   as often as the solver has steps, with its moments m kept from step to step
        u = -(d update / d dg/dy)^T df/dy   through the last update: for Adam a diagonal matrix, for GD lr times df/dy
        D = df/dx - J^T u                   on the batch of the last update, by the difference of dg/dx at y +- e u

    It takes H for the identity, and asks only what the next update does with the gradient. With GD it is the
    first-order approximation T1-T2. D is biased, but needs three gradients of the network and no second derivatives.
    The derivative of Adam's update includes its bias corrections; e is the length of the library's difference
    products. A step costs the solver's steps and two more gradients of g, and one of f; it carries y and the moments.

    Choe, Mehta, Ahn, Neiswanger, Xie, Strubell, Xing, "Making scalable meta learning practical", NeurIPS 2023.

    Checked against the authors' code (Betty, read): it leaves out Adam's bias corrections, and lr of plain SGD.

    Args:
        solver: how y moves between two outer steps: Adam, GD or HeavyBall, with its number of steps.
        products: "difference", as in the paper; the others are as in `SecondOrder`.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.algorithms.SAMA(pzobo.GD(lr=0.1, steps=5))
        >>> found = pzobo.fit(problem, method, 100, optimizer=torch.optim.SGD, lr=0.1, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.33, 0.18, 0.11]
    """

    solver: Iterative = ADAM
    products: Products = field(default="difference", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Iterative):
            raise OptionError(f"SAMA: solver={self.solver!r}: give one that makes steps, such as pzobo.Adam(1e-3, 1).")
        s = self.solver
        if not s.constant or s.tol or (s.weight_decay and not s.decoupled):
            raise OptionError(
                f"SAMA: solver={s!r}: its numbers must be constants, without tol; put a weight decay into the inner "
                "loss, or use AdamW."
            )
        super().__post_init__()

    def begin(self, at: Oracles) -> SAMAState:
        return SAMAState(at.y0, Vector(self.solver.init(at.y0.leaves)))

    def step(self, at: Oracles, now: SAMAState) -> Step[SAMAState]:
        x, y, state = at.x, now.y.leaves, now.moments.leaves
        for _ in range(self.solver.steps):
            batch, before = at.inner_batch(), (y, state)
            slope = at.g_y(x, Vector(y), batch).leaves
            y, state = self.solver.update(slope, y, state)
        new, moments = Vector(y), Vector(state)
        f = at.f(x, new, at.outer_batch())
        bar = self.solver.pull(slope, *before, f.y.leaves, moments.zeros().leaves)[0]
        return Step(SAMAState(new, moments), f.value, f.x + at.mixed(x, new, batch, Vector(bar)))
