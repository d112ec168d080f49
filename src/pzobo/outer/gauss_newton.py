"""What is a step by the whole response? Levenberg-Marquardt on the measured J, where outer variables are few."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import optree
import torch
from torch import Tensor

from pzobo.argmin import Argmin
from pzobo.distributed.jobs import call_all
from pzobo.errors import AuditWarning, DivergenceError, NoResponseWarning, OptionError, RequirementError
from pzobo.jacobians.direct import Direct
from pzobo.jacobians.pzobo import PZOBO
from pzobo.options import freeze, positive
from pzobo.outer.bilevel import Batches, Bilevel
from pzobo.outer.problem import Problem
from pzobo.response.levenberg_marquardt import LevenbergMarquardt, Terms
from pzobo.response.roughness import ROUGH, kappa
from pzobo.runs.randomness import seeded
from pzobo.solvers import BlackBox, Solver
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.checks import scalar
from pzobo.tensors.trees import Leaves, Plan, Tree
from pzobo.zeroth_order.directions import Coordinate, Gaussian, Space

ENOUGH = 1e-9
"""A step that promises fewer nats than this is not made: the search is over."""


@dataclass(frozen=True)
class GaussNewton:
    """min_s f(x + s, r + J s), where r is y^N(x), or what f sees of it, and J = dr/dx is measured: a method for `fit`.

    J is PZOBO's with a direction for each coordinate of x: p trainings. It is kept: each later step renews its
    `jacobian.directions` oldest columns, and every training corrects it along its own step (Broyden, 1965). f is known,
    so its own curvature costs no training. Steps are damped (Levenberg-Marquardt) and stay in the box. A step that does
    not make f, with the prior's penalty, smaller is not taken, nor one to where the training diverges. So x is always
    the best so far by these two together;
    f alone may rise when the evidence finds a stronger prior. `fit`'s optimizer, `lr` and scheduler move nothing.

    The first step takes p + 1 trainings (and two that look at the smoothness), each later one 1 + directions.

    Args:
        solver: how y^N is reached.
        jacobian: a PZOBO: its `mu` is the width of differences in x, its `directions` how many columns a step renews
            (p are all of them), and `antithetic` takes them both ways.
        outputs: what f sees of y, as `outputs(x, y, val) -> tensor`: the logits of a network, say. f is nearer to a
            quadratic in them. By default it is y itself, which is right where a black box gives predictions.
        loss: f as a function of them, `loss(outputs, val) -> scalar`; together with `outputs`.
        low: the lower bound of every x.
        high: the upper bound of every x.
        prior: a Gaussian prior at x0: "evidence" finds its strength, a number sets it, None is none.
        rows: n, how many observations f is a mean over: n f are the nats that the prior and the damping are weighed
            against. By default the length that all tensors of the validation data have; where there is none, a prior
            needs it.
        compile: as in `Argmin`.
        check: as in `Argmin`; and two more trainings at the start tell whether y changes smoothly.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> method = pzobo.GaussNewton(pzobo.GD(lr=0.2, steps=60), pzobo.PZOBO(mu=1e-3, directions=3), prior=None)
        >>> found = pzobo.fit(problem, method, steps=5, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::5]]
        [0.38, 0.05]
    """

    solver: Solver
    jacobian: PZOBO
    outputs: Callable[[Any, Any, Any], Tensor] | None = None
    loss: Callable[[Tensor, Any], Tensor] | None = None
    low: float = -math.inf
    high: float = math.inf
    prior: float | Literal["evidence"] | None = "evidence"
    rows: float | None = None
    compile: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.jacobian, PZOBO):
            raise OptionError(
                f"jacobian={self.jacobian!r}: GaussNewton measures the response by PZOBO(mu=..., directions=...)."
            )
        if not isinstance(self.jacobian.sampler, (Gaussian, Coordinate)) or self.jacobian.only_at_z:
            raise OptionError(
                "GaussNewton's directions are the coordinates of x: give PZOBO no sampler, and no at='z'."
            )
        if (self.outputs is None) != (self.loss is None):
            raise OptionError("GaussNewton needs outputs= and loss= together: f is loss(outputs(x, y, val), val).")
        if self.prior not in (None, "evidence"):
            positive("prior", self.prior, least='a positive number, "evidence" or None')
        if self.rows is not None:
            positive("rows", self.rows)
        if not self.low < self.high:
            raise OptionError(f"low={self.low!r} must be below high={self.high!r}.")
        freeze(self)

    def start(self, problem: Problem, seed: int = 0) -> Stepped:
        """The objective of a problem, at x0."""
        return Stepped(self, problem, seed)


def _argmin(method: GaussNewton, problem: Problem, solver: Solver) -> Argmin:
    return problem.argmin(solver, Direct(), compile=method.compile, check=method.check, audit=False)


def _said(answer: Tree, *arguments: Tree) -> Tree:
    """A black box that was asked before."""
    return answer


class Stepped(Bilevel):
    """f(x, y^N(x)) at the best x so far; `move` makes the next step.

    Attributes:
        trainings: how often the inner problem was solved.
    """

    def __init__(self, method: GaussNewton, problem: Problem, seed: int) -> None:
        super().__init__(problem, _argmin(method, problem, method.solver), Batches(), warm_start=False, seed=seed)
        self.method, self.seed, self.trainings = method, seed, 0
        self._leaves, self._plan = Plan.take(self.x)
        self._variables = trees.unique(self._leaves)
        self._space = Space.of(self._variables)
        self._r_like: list[Tensor] = []
        self._roughness, self._largest = math.nan, 0.0
        x0, mu = self._flat(self._variables), method.jacobian.mu
        low, high = (self._held(torch.full_like(x0, b)) for b in (method.low, method.high))
        if not bool(((x0 >= low) & (x0 <= high)).all()):
            raise OptionError(f"x0 is not between low={method.low:g} and high={method.high:g}.")
        if method.high - method.low < 4 * mu:
            raise OptionError(f"mu={mu:g} does not fit four times between low={method.low:g} and high={method.high:g}.")
        terms = Terms(self._loss, self._rows(), "nats", method.prior)
        renew = min(method.jacobian.directions, len(x0))
        self.steps = LevenbergMarquardt(terms, x0, low, high, mu, renew, method.jacobian.antithetic, ENOUGH)

    def outer_loss(self) -> Tensor:
        steps, x = self.steps, self._flat(self._variables)
        if steps.base is None:
            self.y, r = self._solved(x)
            steps.begin(x, r)
        elif not torch.equal(x, steps.best.x):
            raise RequirementError(
                "x was moved by something else: GaussNewton makes its own steps, and takes no ReduceLROnPlateau, and "
                "no scaler."
            )
        value = torch.as_tensor(steps.best.value, dtype=self._variables[0].dtype, device=self._variables[0].device)
        return attach((value,), self._pullback, self._variables)[0]

    def _pullback(self, v: Leaves) -> Sequence[Tensor]:
        """J^T df/dy + df/dx, with the columns of J measured that are due."""
        with torch.no_grad():
            probes = [(j, [self._held(point) for point in self.steps.probe(j)]) for j in self.steps.due()]
            found = iter(self._all_solved([point for _, points in probes for point in points]))
            for j, points in probes:
                self.steps.measure(j, points, [next(found) for _ in points])
            if self.method.check and math.isnan(self._roughness):
                self._look_at_smoothness()
        slope = self._gradient() * v[0].to(torch.float64).cpu()
        parts = self._space.split(slope.to(self._space.device, self._space.dtype), self._variables)
        return [part.to(t.dtype) for part, t in zip(parts, self._variables, strict=True)]

    def _gradient(self) -> Tensor:
        try:
            with torch.enable_grad():
                if self.method.check and self.steps.step == 0:
                    self.steps.terms.check(self.steps.best)
                return self.steps.gradient().detach()
        except (RuntimeError, NotImplementedError) as error:
            raise RequirementError(
                f"GaussNewton takes second derivatives of the outer loss by torch.func, and that failed ({error}). "
                "Write f in plain tensor operations, or give outputs= and loss=."
            ) from error

    def leaps(self, optimizer: torch.optim.Optimizer) -> bool:
        return True  # no optimizer moves x; `move` does

    def move(self, steps: Sequence[float]) -> None:
        engine = self.steps
        x = engine.propose().detach()
        if engine.done():
            return
        x = self._held(x)
        y, r = self._solved(x)
        if engine.judge(x, r):
            self.y = y
            with torch.no_grad():
                for variable, new in zip(self._variables, self._parts(x), strict=True):
                    variable.copy_(new)

    def evaluate(self) -> dict[str, float]:
        return {**super().evaluate(), "trainings": float(self.trainings), "prior": float(self.steps.alpha)}

    def audit(self) -> dict[str, float]:
        return {} if math.isnan(self._roughness) else {"roughness": self._roughness}

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "steps": self.steps.state_dict(),
            "x": [t.detach().clone() for t in self._variables],
            "numbers": [self.trainings, self._roughness],
            "largest": self._largest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps.load_state_dict(state["steps"])
        self.trainings, self._roughness = int(state["numbers"][0]), float(state["numbers"][1])
        self._largest = float(state.get("largest", 0.0))  # older checkpoints have none
        with torch.no_grad():
            for variable, saved in zip(self._variables, state["x"], strict=True):
                variable.copy_(saved)
            if state["steps"]["base"] is not None:
                self._r_like = self._outputs_of(self.x, self.y)

    # From flat vectors to trees and back

    def _flat(self, tensors: Leaves) -> Tensor:
        return torch.cat([t.detach().reshape(-1).to("cpu", torch.float64) for t in tensors])

    def _parts(self, flat: Tensor) -> Leaves:
        parts = self._space.split(flat.to(self._space.device), self._variables)
        return tuple(part.to(t.dtype) for part, t in zip(parts, self._variables, strict=True))

    def _held(self, flat: Tensor) -> Tensor:
        """What x can hold of it, which is what is evaluated: in float32 .1 is a little above .1."""
        return self._flat(self._parts(flat))

    def _tree(self, flat: Tensor) -> Tree:
        return self._plan.build(trees.substitute(self._leaves, self._variables, self._parts(flat)))

    def _outputs_of(self, x: Tree, y: Tree) -> list[Tensor]:
        if self.method.outputs is None:
            return [t for t in optree.tree_leaves(y) if isinstance(t, Tensor)]
        found = self.method.outputs(x, y, self.problem.val)
        if not isinstance(found, Tensor):
            raise OptionError(
                f"outputs(x, y, val) returned {type(found).__name__}: it must be one tensor, what f sees of y. Several "
                "can be joined by torch.cat, and taken apart in loss=."
            )
        return [found]

    def _solved(self, flat: Tensor, argmin: Argmin | None = None) -> tuple[Tree, Tensor]:
        """y^N at x and r of it, NaN where the training diverges; every training draws the same random numbers."""
        x = self._tree(flat)
        self.trainings += 1
        with torch.no_grad(), seeded(self.seed):
            try:
                y = (argmin or self.argmin)(x, self.problem.y0, self.problem.train)
            except DivergenceError:
                if self.steps.base is None:
                    raise
                return self.y, torch.full_like(self.steps.best.r, math.nan)
            parts = self._outputs_of(x, y)
            self._check_outputs(x, y, parts[0])
        self._r_like = [t.detach() for t in parts]
        return y, self._flat(tuple(parts))

    def _all_solved(self, points: Sequence[Tensor]) -> list[Tensor]:
        """r at many x: side by side where the black box has `jobs`."""
        solver, problem = self.method.solver, self.problem
        if not isinstance(solver, BlackBox) or not solver.side_by_side:
            return [self._solved(point)[1] for point in points]
        calls = [(self._tree(point), optree.tree_map(trees.copied, problem.y0), problem.train) for point in points]
        with torch.no_grad(), seeded(self.seed):
            answers = call_all(solver.fn, calls, solver.jobs, torch.get_rng_state())
        # What the jobs answered is looked at as any other answer is.
        answered = [_argmin(self.method, problem, BlackBox(partial(_said, answer))) for answer in answers]
        return [self._solved(point, argmin)[1] for point, argmin in zip(points, answered, strict=True)]

    def _loss(self, x: Tensor, r: Tensor, c: Tensor) -> Tensor:
        """f(x, r)."""
        sizes = [t.numel() for t in self._r_like]
        parts = [
            part.reshape(t.shape).to(t.device, t.dtype) for part, t in zip(r.split(sizes), self._r_like, strict=True)
        ]
        if self.method.loss is not None:
            value = self.method.loss(parts[0], self.problem.val)
        else:
            y = Plan.take(self.problem.y0)[1].build(parts)
            value = self.problem.outer_loss(self._tree(x), y, self.problem.val)
        return scalar(value, "The outer loss").to("cpu", torch.float64)

    def _rows(self) -> float:
        if self.method.rows is not None:
            return float(self.method.rows)
        sizes = [len(t) for t in optree.tree_leaves(self.problem.val) if isinstance(t, Tensor) and t.ndim]
        if self.method.prior is not None and len(set(sizes)) != 1:
            found = f"tensors of {', '.join(map(str, sizes))} rows" if sizes else "no tensor with rows"
            raise OptionError(
                f"The validation data has {found}, so how many observations f is a mean over is not known, and the "
                "prior is weighed against them: give GaussNewton(rows=...), or prior=None."
            )
        return float(sizes[0]) if sizes else 1.0

    # What is looked at

    def _check_outputs(self, x: Tree, y: Tree, outputs: Tensor) -> None:
        """At each training, which costs far more: what f has of x alone is nothing at many a start."""
        if self.method.loss is None:
            return
        f = float(self.problem.outer_loss(x, y, self.problem.val))
        found = float(self.method.loss(outputs, self.problem.val))
        rounding = 100 * torch.finfo(outputs.dtype).eps * self._largest  # near the end f may be little else
        if math.isfinite(f) and not abs(f - found) <= max(1e-4 * max(abs(f), abs(found)), rounding):
            raise OptionError(
                f"loss(outputs(x, y, val), val) is {found:g} at training {self.trainings}, and the problem's outer "
                f"loss {f:g}: make them one. What f has of x alone cannot be in `loss`: leave both out then."
            )
        self._largest = max(self._largest, abs(f)) if math.isfinite(f) else self._largest

    def _look_at_smoothness(self) -> None:
        """kappa along the mean direction of all coordinates."""
        steps, width = self.steps, self.method.jacobian.mu
        here = steps.best
        u = torch.where(here.x + 2 * width <= steps.high, 1.0, -1.0).to(here.x) / math.sqrt(len(here.x))
        found = [self._solved(here.x + t * width * u)[1] for t in (1, 2)]
        self._roughness = kappa(here.r, *found)
        if math.isnan(self._roughness) and not bool(steps.J.any()):
            warnings.warn(
                f"y does not change with x at all: either it does not respond, or differences of mu={width:g} are lost "
                "in its rounding, or in that of x. The response is zero, and x stays where f has nothing of x alone.",
                NoResponseWarning,
                stacklevel=2,
            )
        if not all(bool(r.isfinite().all()) for r in found):
            warnings.warn(
                f"The training diverges {2 * width:g} or less away from x0: differences of mu={width:g} tell nothing "
                "there. Try a smaller mu, or shorter steps of the solver.",
                AuditWarning,
                stacklevel=2,
            )
        elif self._roughness >= ROUGH:
            warnings.warn(
                f"y changes by jumps, or by chance, with x: kappa = {self._roughness:.2g} (.02 to .07 is smooth) for "
                f"differences of mu={width:g}. Steps by the response mean little here: try a larger mu, a longer or "
                "more exact training, or a search that needs no response (Optuna).",
                AuditWarning,
                stacklevel=2,
            )
