"""What is dy/dx at a solution? The implicit function theorem (AID), with four ways to apply the inverse Hessian."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pzobo.errors import CurvatureError, OptionError
from pzobo.inner.kernel import Products
from pzobo.inner.problem import InnerProblem, Point
from pzobo.inner.products import Product, Transpose, check_products, linearize, transpose
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import difference_finding, product_findings, residual_finding, solved_slope
from pzobo.jacobians.base import Jacobian, refuse_random
from pzobo.options import in_range, positive, whole
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves


class System:
    """The linear system (d2g/dy2) q = v at y^N, and where its products are taken.

    The points (z, batch) come in turn: another for each product in the stochastic case, else always the same. The last
    product, which makes the answer, may have data of its own.
    """

    def __init__(self, inner: InnerProblem, y: Leaves, products: Products) -> None:
        self.inner = inner
        self.y = y
        self.products = products
        self.left: Leaves = ()
        """What the way to apply the inverse leaves of v: v - H q, or of about its size."""
        self._turn = itertools.cycle(inner.turn)
        self._linear: tuple[int, Product] | None = None

    def draw(self) -> int:
        return next(self._turn)

    def hessian(self, index: int) -> Product:
        """Products with d2g/dy2 on one batch; the last one is kept."""
        if self._linear is None or self._linear[0] != index:
            point = self.inner.points[index]
            self._linear = (index, linearize(self.inner, point, self.y, (), self.products, self.inner.replay.rewind))
        return self._linear[1]

    def mixed(self, q: Leaves) -> Leaves:
        """-(d2g/dz dy) q."""

        def by_z(point: Point) -> Leaves:
            product = linearize(self.inner, point, self.y, point.slots, self.products, self.inner.replay.rewind)
            return trees.mul(product(q)[1], -1.0)

        return self.last(by_z)

    def last(self, by_z: Callable[[Point], Leaves]) -> Leaves:
        """The last product: on the data that it has of its own, else on the next batch in turn."""
        return self.inner.mean(self.inner.mixed or [self.draw()], by_z)


class Inverse(ABC):
    """A way to answer (dy/dz)^T v = -(d2g/dz dy) (d2g/dy2)^-1 v."""

    def needs(self) -> tuple[frozenset[str], ...]:
        """What it needs of the solver beyond the gradient."""
        return ()

    @abstractmethod
    def apply(self, system: System, v: Leaves) -> Leaves:
        """The answer, from products that the system gives."""


@dataclass(frozen=True)
class CG(Inverse):
    """Conjugate gradients on H q = v, until the residual is `tol` times |v| or `steps` are done (AID-CG).

    With batches, the system is that of one of them.

    Args:
        steps: the most iterations; each costs one product with H.
        tol: the residual to stop at, relative to |v|; 0 to make all `steps`.
        damping: added to the diagonal of H, for an H that is not positive definite; none by default.
    """

    steps: int = 20
    tol: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        whole("CG: steps", self.steps)
        in_range("CG: tol", self.tol, 0, math.inf)
        in_range("CG: damping", self.damping, 0, math.inf)

    def apply(self, system: System, v: Leaves) -> Leaves:
        hessian = system.hessian(system.draw())
        q, r, p = trees.zeros(v), v, v
        square = trees.dot(r, r)
        if not math.isfinite(float(square)):
            return system.mixed(v)  # not finite either, as a gradient scaler expects
        enough = self.tol**2 * float(square)
        for _ in range(self.steps):
            if float(square) <= enough:
                break
            hp = hessian(p)[0]
            if self.damping:
                hp = trees.add(hp, p, self.damping)
            bend = trees.dot(p, hp)
            if not float(bend) > 0:
                raise CurvatureError(
                    f"Conjugate gradients met a direction of curvature {float(bend / trees.dot(p, p)):.2e}: the inner "
                    "Hessian is not positive definite at y^N. Run more inner steps, regularise the inner loss, use "
                    "CG(damping=...), or a Jacobian that needs no solution: Unrolled or PZOBO."
                )
            length = square / bend
            q, r = trees.add(q, p, length), trees.add(r, hp, -length)
            square, before = trees.dot(r, r), square
            p = trees.add(r, p, square / before)
        system.left = r
        return system.mixed(q)


@dataclass(frozen=True)
class FixedPoint(Inverse):
    """The fixed-point iteration w <- A^T w + v of the solver's own map at y^N (AID-FP), then B^T w.

    With batches, each iteration has its own.

    Args:
        steps: how often the map's transposed derivative is applied; each costs one product with H.
        lr: takes the map of gradient descent with this rate instead of the solver's own. It must be below 2 / L for
            convergence, L the largest eigenvalue of H.
    """

    steps: int = 20
    lr: float | None = None

    def __post_init__(self) -> None:
        whole("FixedPoint: steps", self.steps)
        if self.lr is not None:
            positive("FixedPoint: lr", self.lr)

    def needs(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"map"}),) if self.lr is None else ()

    def apply(self, system: System, v: Leaves) -> Leaves:
        state = system.inner.solver.init(system.y) if self.lr is None else ()
        w, w_state = v, trees.zeros(state)
        last: tuple[int, Transpose] | None = None
        for _ in range(self.steps - 1):
            index = system.draw()
            if last is None or last[0] != index:
                last = index, self._map(system, state, system.inner.points[index], ())
            y_bar, w_state, _ = last[1](w, w_state)
            w, before = trees.add(v, y_bar), w
            system.left = trees.add(w, before, -1.0)
        return system.last(lambda point: self._map(system, state, point, point.slots)(w, w_state)[2])

    def _map(self, system: System, state: Leaves, point: Point, slots: tuple[int, ...]) -> Transpose:
        """The transposed derivative of the solver's step, or of a gradient step with the rate `lr`."""
        inner, reset = system.inner, system.inner.replay.rewind
        if self.lr is None:
            return transpose(inner, point, system.y, state, slots, system.products, reset)
        rate, product = self.lr, linearize(inner, point, system.y, slots, system.products, reset)

        def descent(y_bar: Leaves, state_bar: Leaves) -> tuple[Leaves, Leaves, Leaves]:
            by_y, by_z = product(trees.mul(y_bar, -rate))
            return trees.add(y_bar, by_y), state_bar, by_z

        return descent


@dataclass(frozen=True)
class Neumann(Inverse):
    """The truncated series q = step * sum_{k <= terms} (I - step H)^k v (stocBiO).

    With batches, each term has its own.

    Args:
        step: positive, and below 2 / L for convergence, L the largest eigenvalue of H.
        terms: the highest power of the series; each costs one product with H.
    """

    step: float
    terms: int = 20

    def __post_init__(self) -> None:
        whole("Neumann: terms", self.terms)
        positive("Neumann: step", self.step, least="a positive number, below 2 / L for convergence")

    def apply(self, system: System, v: Leaves) -> Leaves:
        q = r = v
        for _ in range(self.terms):
            r = trees.add(r, system.hessian(system.draw())(r)[0], -self.step)
            q = trees.add(q, r)
        system.left = r
        return system.mixed(trees.mul(q, self.step))


@dataclass(frozen=True)
class Exact(Inverse):
    """The Hessian written out and solved: for tests, and for few inner variables."""

    def apply(self, system: System, v: Leaves) -> Leaves:
        sizes = [t.numel() for t in v]
        hessian = system.hessian(system.draw())

        def split(flat: Tensor) -> Leaves:
            return tuple(part.reshape(t.shape).to(t.dtype) for part, t in zip(flat.split(sizes), v, strict=True))

        def join(leaves: Leaves) -> Tensor:
            return torch.cat([t.reshape(-1).to(trees.accumulator(v)) for t in leaves])

        unit = torch.eye(sum(sizes), device=v[0].device, dtype=trees.accumulator(v))
        matrix = torch.stack([join(hessian(split(row))[0]) for row in unit])
        solution, failed = torch.linalg.solve_ex(matrix, join(v))
        if int(failed):
            raise CurvatureError(
                "The inner Hessian is singular at y^N, so y has no derivative there. Regularise the inner loss, or use "
                "a Jacobian that needs no solution: Unrolled or PZOBO."
            )
        return system.mixed(split(solution))


@dataclass(frozen=True)
class Implicit(Jacobian):
    """(dy*/dz)^T v = -(d2g/dz dy) (d2g/dy2)^-1 v at y^N, which is taken for the solution.

    Args:
        inverse: how the inverse Hessian is applied: CG, FixedPoint, Neumann or Exact.
        products: how products with second derivatives are made. "autodiff" differentiates backwards twice; "forward"
            is forward over backward, as exact, and keeps no graph; "difference" takes central differences of
            first-order gradients (Hessian-free).

    With `batches=`, the products are taken on `jacobian_batches=` in turn (AID-CG-S, AID-FP-S, stocBiO), or without
    them on the inner batches again, which is cheaper and a little biased. The last product, d2g/dz dy, is taken on
    `mixed_batch=` where it is given: an outer variable that a batch does not see gets no gradient from it.
    """

    inverse: Inverse
    products: Products = "autodiff"

    own_batches = True

    def __post_init__(self) -> None:
        check_products(self.products)
        if not isinstance(self.inverse, Inverse):
            raise OptionError(f"Implicit({self.inverse!r}): give CG(...), FixedPoint(...), Neumann(...) or Exact().")

    def requirements(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"gradient"}), *self.inverse.needs())

    def run(self, inner: InnerProblem) -> tuple[Leaves, Pullback]:
        y = inner.base()
        if inner.kernel.compile:
            refuse_random(inner, "Implicit with compile")

        def pullback(v: Leaves) -> Leaves:
            system = System(inner, y, self.products)
            with inner.replay.again():
                answer = self.inverse.apply(system, v)
            if inner.questions.closely:
                inner.questions.findings += residual_finding(system.left, v)
                if self.products == "difference":
                    inner.questions.findings += difference_finding(max(p.error for p in inner.questions.probes))
            return answer

        return y, pullback

    def witness(self, inner: InnerProblem, y: Leaves, v: Leaves, answer: Leaves) -> list[Finding]:
        return [
            *product_findings(inner, y, v, self.products),
            *solved_slope(inner, y, v, answer, "The hypergradient of Implicit"),
        ]
