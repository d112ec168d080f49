"""What is dy/dx at a solution? The implicit function theorem (AID), with four ways to apply the inverse Hessian."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import CurvatureError, OptionError
from pzobo.inner.kernel import Products
from pzobo.inner.problem import InnerProblem
from pzobo.inner.products import check_products
from pzobo.inner.questions import Finding
from pzobo.jacobians.audit import difference_finding, product_findings, residual_finding, solved_slope
from pzobo.jacobians.base import Jacobian, refuse_memory, refuse_random
from pzobo.jacobians.system import Place, System
from pzobo.options import freeze, in_range, positive, whole
from pzobo.tensors import trees
from pzobo.tensors.attach import Pullback
from pzobo.tensors.trees import Leaves


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

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Implicit(pzobo.CG(steps=10)))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    steps: int = 20
    tol: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        whole("CG: steps", self.steps)
        in_range("CG: tol", self.tol, 0, math.inf)
        in_range("CG: damping", self.damping, 0, math.inf)
        freeze(self)

    def apply(self, system: System, v: Leaves) -> Leaves:
        square = trees.dot(v, v)
        finite = square.isfinite()

        def start() -> Any:
            # The curvature of no direction yet: nothing to stop at, unless v is not finite.
            none = torch.where(finite, 1.0, 0.0).to(square.dtype)
            return trees.zeros(v), trees.copy(v), trees.copy(v), square, none

        given = v, self.tol**2 * square, finite, self.damping or None
        answer, (least, system.left) = system.series(
            self._turn, self._finish, self.steps, start, given, draws=1, going=self._going
        )
        curvature, length = torch.stack([least, square.to(least)]).tolist()  # together: each would wait for a device
        rounding = torch.finfo(square.dtype)
        if not rounding.tiny / rounding.eps**2 <= length < math.inf and 0 < float(trees.largest(v)) < math.inf:
            # v is finite and not zero, and its square neither is nor has digits: the system is linear.
            unit = trees.power_of_two(v)
            return trees.mul(self.apply(system, trees.mul(v, 1.0 / unit)), unit)
        if not curvature > 0:
            raise CurvatureError(
                f"Conjugate gradients met a direction of curvature {curvature:.2e}: the inner "
                "Hessian is not positive definite at y^N. Run more inner steps, regularise the inner loss, use "
                "CG(damping=...), or a Jacobian that needs no solution: Unrolled or PZOBO."
            )
        return answer

    @staticmethod
    def _going(carry: Any, given: Any) -> Tensor:
        *_, square, curvature = carry
        going: Tensor = ~(square <= given[1]) & (curvature > 0)
        return going

    @staticmethod
    def _turn(at: Place, carry: Any, given: Any) -> Any:
        q, r, p, square, before = carry
        going = CG._going(carry, given)
        into = (q, r, p) if at.owns else (None, None, None)
        hp = at.product(p)[0]
        if given[3] is not None:
            hp = trees.add(hp, p, given[3])
        bend = trees.dot(p, hp)
        length = torch.where(going, square / bend, 0.0).to(square.dtype)
        q, r = trees.add(q, p, length, into[0]), trees.add(r, hp, -length, into[1])
        after = trees.dot(r, r)
        curvature = torch.where(going, bend / trees.dot(p, p), before)
        ratio = torch.where(going, after / square, 0.0).to(square.dtype)
        return q, r, trees.add(r, p, ratio, into[2]), after, curvature

    @staticmethod
    def _finish(at: Place, carry: Any, given: Any) -> Any:
        (q, r, *_, curvature), (v, _, finite, _) = carry, given
        # From a v that is not finite the answer is not finite either, as a gradient scaler expects.
        q = tuple(torch.where(finite.to(a.device), a, b, out=a if at.owns else None) for a, b in zip(q, v, strict=True))
        return trees.mul(at.by_z(q), -1.0), (torch.where(finite, curvature, 1.0), r)


@dataclass(frozen=True)
class FixedPoint(Inverse):
    """The fixed-point iteration w <- A^T w + v of the solver's own map at y^N (AID-FP), then B^T w.

    With batches, each iteration has its own.

    Args:
        steps: how often the map's transposed derivative is applied; each costs one product with H.
        lr: takes the map of gradient descent with this step instead of the solver's own. It must be below 2 / L for
            convergence, L the largest eigenvalue of H.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Implicit(pzobo.FixedPoint(60)))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    steps: int = 20
    lr: float | None = None

    def __post_init__(self) -> None:
        whole("FixedPoint: steps", self.steps)
        if self.lr is not None:
            positive("FixedPoint: lr", self.lr)
        freeze(self)

    def needs(self) -> tuple[frozenset[str], ...]:
        return (frozenset({"map"}),) if self.lr is None else ()

    def apply(self, system: System, v: Leaves) -> Leaves:
        state = system.inner.kernel.solver.init(system.y) if self.lr is None else ()

        def start() -> Any:
            return trees.copy(v), tuple([torch.zeros_like(t, dtype=trees.wide(t.dtype)) for t in state]), v

        answer, left = system.series(self._turn, self._finish, self.steps - 1, start, (v, state, self.lr))
        system.left = left if self.steps > 1 else ()
        return answer

    @staticmethod
    def _turn(at: Place, carry: Any, given: Any) -> Any:
        w, w_state, _ = carry
        y_bar, w_state, _ = _transposed_map(at, w, w_state, given)
        into = (y_bar, w) if at.owns else (None, None)
        after = trees.add(given[0], y_bar, into=into[0])
        return after, w_state, trees.add(after, w, -1.0, into[1])

    @staticmethod
    def _finish(at: Place, carry: Any, given: Any) -> Any:
        w, w_state, left = carry
        return _transposed_map(at, w, w_state, given)[2], left


def _transposed_map(at: Place, y_bar: Leaves, state_bar: Leaves, given: Any) -> tuple[Leaves, Leaves, Leaves]:
    """The transposed derivative of the solver's step, or of a gradient step with an lr of its own."""
    _, state, rate = given
    if rate is None:
        return at.pull(state, y_bar, state_bar)
    by_y, by_z = at.product(trees.mul(y_bar, -rate))
    return trees.add(y_bar, by_y), state_bar, by_z


@dataclass(frozen=True)
class Neumann(Inverse):
    """The truncated series q = step * sum_{k <= terms} (I - step H)^k v (stocBiO).

    With batches, each term has its own.

    Args:
        step: positive, and below 2 / L for convergence, L the largest eigenvalue of H.
        terms: the highest power of the series; each costs one product with H.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Implicit(pzobo.Neumann(0.2, 60)))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    step: float
    terms: int = 20

    def __post_init__(self) -> None:
        whole("Neumann: terms", self.terms)
        positive("Neumann: step", self.step, least="a positive number, below 2 / L for convergence")
        freeze(self)

    def apply(self, system: System, v: Leaves) -> Leaves:
        def start() -> Any:
            return trees.copy(v), trees.copy(v)

        answer, system.left = system.series(self._turn, self._finish, self.terms, start, (self.step,))
        return answer

    @staticmethod
    def _turn(at: Place, carry: Any, given: Any) -> Any:
        q, r = carry
        into = carry if at.owns else (None, None)
        r = trees.add(r, at.product(r)[0], -given[0], into[1])
        return trees.add(q, r, into=into[0]), r

    @staticmethod
    def _finish(at: Place, carry: Any, given: Any) -> Any:
        return at.by_z(trees.mul(carry[0], -given[0], carry[0] if at.owns else None)), carry[1]


@dataclass(frozen=True)
class Exact(Inverse):
    """The Hessian written out and solved: for tests, and for few inner variables.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Implicit(pzobo.Exact()))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
    """

    def apply(self, system: System, v: Leaves) -> Leaves:
        sizes = [t.numel() for t in v]
        hessian = system.at(system.draw()).product

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

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> argmin = problem.argmin(pzobo.GD(lr=0.2, steps=60), pzobo.Implicit(pzobo.CG()))
        >>> x = problem.start()
        >>> problem.objective(argmin, x).backward()
        >>> torch.allclose(x.grad, problem.hypergradient(x.detach()), rtol=1e-3)
        True
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
            refuse_memory(inner, y, "Implicit")
            system = System(inner, y, self.products)
            unit = None
            if any(trees.wide(t.dtype) != t.dtype for t in v):
                # In half precision a short v has few digits, and products with it none. The system is linear: it is
                # solved for a v of about 1, in float32 but for the products.
                unit = trees.power_of_two(v)
                v = trees.mul([t.to(trees.wide(t.dtype)) for t in v], 1.0 / unit)
            with inner.replay.again():
                answer = self.inverse.apply(system, v)
            answer = answer if unit is None else trees.mul(answer, unit)
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
