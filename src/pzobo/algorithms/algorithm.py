"""What is an algorithm with a memory? What it carries from step to step, and one step: `fit` runs it on a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from pzobo.algorithms.chunk import Chunk, moved, parts_of
from pzobo.algorithms.oracles import Oracles
from pzobo.algorithms.rates import check_rate
from pzobo.algorithms.vector import Vector
from pzobo.algorithms.witness import Witness
from pzobo.errors import DivergenceError, OptionError, RequirementError, StructureError
from pzobo.inner.kernel import Products
from pzobo.inner.products import check_products
from pzobo.inner.questions import Audit
from pzobo.options import check_audit, freeze, whole
from pzobo.outer.objective import Objective, Turns
from pzobo.outer.problem import Problem
from pzobo.tensors import trees
from pzobo.tensors.attach import attach
from pzobo.tensors.checks import check_x
from pzobo.tensors.replay import uncached
from pzobo.tensors.saved import no_saved_tensor_hooks


class Carried(Protocol):
    """What an algorithm carries: a frozen dataclass of `Vector`s, tensors and numbers, y among them."""

    @property
    def y(self) -> Vector:
        """The inner variables, as evaluations see them."""
        ...


C = TypeVar("C", bound=Carried)


@dataclass(frozen=True)
class Step(Generic[C]):
    """What one step gives.

    Args:
        carried: what the next step needs.
        value: f, a scalar, where the direction was taken.
        direction: D, like x, which goes into `x.grad`; the outer optimizer makes the step.

    Examples:
        >>> zero = pzobo.algorithms.Vector((torch.zeros(2),))
        >>> pzobo.algorithms.Step(carried=None, value=torch.tensor(1.0), direction=zero).direction.norm()
        tensor(0.)
    """

    carried: C
    value: Tensor
    direction: Vector


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[C]):
    """A bilevel method that carries y, and more, from one outer step to the next.

    Your own is a frozen dataclass of its numbers with two methods: `begin` says what it carries at first, `step` makes
    one step. Batches, trees, checkpoints and the outer optimizer are taken care of.

    Args:
        batch_size: rows of each batch of g; all the training data by default.
        outer_batch_size: rows of each batch of f; all the validation data by default.
        check: say that y has left the finite numbers, instead of going on.
        compile: compile a whole step, once for a run; where the optimizer of x is plain SGD, many steps run in one
            call. Losses that draw random numbers, or write into buffers of modules, are refused.
        audit: look at g after steps 1, 2, 4, 8, ...: whether its gradients are slopes of its values, and products with
            its second derivatives those of its gradients. What does not hold is a warning, or with "error" an error.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> from dataclasses import dataclass
        >>> from pzobo.algorithms import Algorithm, Step, Vector
        >>> @dataclass(frozen=True)
        ... class Carried:
        ...     y: Vector
        ...     z: Vector
        >>> @dataclass(frozen=True)
        ... class Penalty(Algorithm[Carried]):        # F2SA with one inner step and a fixed multiplier of 10
        ...     def begin(self, at):
        ...         return Carried(at.y0, at.y0)
        ...
        ...     def step(self, at, now):
        ...         f = at.f(at.x, now.y, at.outer_batch())
        ...         batch = at.inner_batch()
        ...         g, h = at.g(at.x, now.y, batch), at.g(at.x, now.z, batch)
        ...         carried = Carried(now.y - 0.1 * (f.y / 10 + g.y), now.z - 0.1 * h.y)
        ...         return Step(carried, f.value, f.x + 10 * (g.x - h.x))
        >>> found = pzobo.fit(pzobo.problems.quadratic(p=3, d=2), Penalty(), 100, lr=0.05, progress=False)
        >>> [round(row["outer_loss"], 2) for row in found.history[::50]]
        [0.35, 0.14, 0.12]
    """

    batch_size: int | None = None
    outer_batch_size: int | None = None
    check: bool = True
    compile: bool = False
    audit: bool | Literal["error"] = True

    warm_start: ClassVar[bool] = True
    """Each step goes on from the y of the one before."""

    not_compiled: ClassVar[str] = ""
    """Why a step cannot be compiled, if it cannot."""

    system: ClassVar[str] = ""
    """The name of what is carried that goes to H^-1 df/dy, or to minus that; the audit says where it goes elsewhere."""

    @abstractmethod
    def begin(self, at: Oracles) -> C:
        """What is carried before the first step. No batch is drawn here."""

    @abstractmethod
    def step(self, at: Oracles, now: C) -> Step[C]:
        """One step at `at.x`."""

    def alike(self, k: int) -> bool:
        """Whether step k asks the oracles for the same as most others: those are compiled, the rest are not.

        A step that looks at `at.k` and is to be compiled must say so here.
        """
        return True

    def _checked_step(self, at: Oracles, now: C) -> Step[C]:
        """The first step of a run: it must give what a step gives, in the shapes that are there."""
        made = self.step(at, now)
        who = f"{type(self).__name__}.step"
        wanted: tuple[type, ...] = (type(now), Tensor, Vector)
        parts = (made.carried, made.value, made.direction) if isinstance(made, Step) else ()
        if not parts or not all(isinstance(part, kind) for part, kind in zip(parts, wanted, strict=True)):
            found = f"Step({', '.join(type(part).__name__ for part in parts)})" if parts else type(made).__name__
            names = ", ".join(kind.__name__ for kind in wanted)
            raise StructureError(f"{who} gave {found}; expected Step({names}): what is carried, f, and D.")
        for name, new, like in (("y", made.carried.y, now.y), ("D", made.direction, at.x)):
            shapes, expected = ([tuple(t.shape) for t in v.leaves] for v in (new, like))
            if shapes != expected:
                what = "of x" if name == "D" else "as before"
                raise StructureError(f"{who} gave {name} with the shapes {shapes}; expected those {what}, {expected}.")
        return made

    def start(self, problem: Problem, seed: int = 0) -> Memory[C]:
        """The objective of a problem, at x0."""
        return Memory(self, problem, seed)

    def __post_init__(self) -> None:
        for name in ("batch_size", "outer_batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(f"{type(self).__name__}: {name}", getattr(self, name)))
        self._check_numbers()
        freeze(self)
        check_audit(f"{type(self).__name__}: audit", self.audit)
        if self.compile and self.not_compiled:
            raise OptionError(f"{type(self).__name__} cannot be compiled: {self.not_compiled} Use compile=False.")

    def _check_numbers(self) -> None:
        """Rates, and numbers of steps, by their names."""
        for field in fields(self):
            value, what = getattr(self, field.name), f"{type(self).__name__}: {field.name}"
            if field.name.endswith("lr") and value is not None:
                check_rate(what, value)
            if field.name in ("steps", "y_steps", "v_steps", "terms", "period"):
                whole(what, value)


@dataclass(frozen=True, kw_only=True)
class SecondOrder(Algorithm[C]):
    """An `Algorithm` that takes products with the second derivatives of g.

    Args:
        products: "autodiff" by double backward, "forward" by forward over reverse, "difference" by central differences
            of gradients, which need no second derivatives.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> isinstance(pzobo.algorithms.SOBA(products="difference"), pzobo.algorithms.SecondOrder)
        True
    """

    products: Products = "autodiff"

    def __post_init__(self) -> None:
        check_products(self.products)
        super().__post_init__()


class Memory(Objective, Generic[C]):
    """An algorithm on a problem, at an outer step: the objective that `fit` drives.

    Args:
        algorithm: the algorithm.
        problem: the problem.
        seed: of the batches and of all random numbers.

    Attributes:
        x: the outer variables, a tree like x0.
        y: the inner variables after the last step, a tree like y0.
        at: the oracles, with the number of the step and of their calls.
        carried: what the algorithm carries.

    Raises:
        RequirementError: the problem has no inner loss.
        StructureError: a tensor of the data requires a gradient, or `begin` gave no record with y.

    Examples:
        >>> problem = pzobo.problems.quadratic(p=3, d=2)
        >>> objective = pzobo.algorithms.SOBA(lr=0.1).start(problem, seed=0)
        >>> type(objective).__name__, round(objective.outer_loss().item(), 2)
        ('Memory', 0.35)
    """

    def __init__(self, algorithm: Algorithm[C], problem: Problem, seed: int) -> None:
        if problem.inner_loss is None:
            raise RequirementError(f"{type(algorithm).__name__} needs an inner loss; only a BlackBox does without.")
        self.algorithm, self.problem = algorithm, problem
        self.x = problem.start()
        sizes = (algorithm.batch_size, algorithm.outer_batch_size)
        products: Products | None = getattr(algorithm, "products", None)
        self.at = Oracles(problem, self.x, sizes, products or "autodiff", seed)
        self._witness = Witness(self.at, products, algorithm.audit)
        with torch.no_grad():
            self.carried = _record(algorithm, algorithm.begin(self.at))
        self._tried = False
        self.y = self._tree(self.carried.y)
        self._chunk: Chunk[C] | None = None
        if algorithm.compile:
            says = type(algorithm).alike is not Algorithm.alike
            like = next((k for k in range(10) if algorithm.alike(k)), None) if says else None
            self._chunk = Chunk(algorithm, self.at, sizes, self.carried, like)

    def outer_loss(self) -> Tensor:
        value, direction = self._step()
        return attach((value,), lambda v: (direction * v[0]).leaves, self.at.variables)[0]

    def hypergradient(self) -> Tensor:
        """The same without autograd: D is known."""
        value, direction = self._step()
        kept = {t.untyped_storage().data_ptr() for t in self._kept()}
        for variable, slope in zip(self.at.variables, direction.leaves, strict=True):
            if variable.grad is not None:
                variable.grad = variable.grad + slope
            else:  # x.grad is the caller's to write into: where D is needed again it gets a copy
                variable.grad = slope.clone() if slope.untyped_storage().data_ptr() in kept else slope
        return value

    def _kept(self) -> Iterator[Tensor]:
        """What the next step reads again."""
        yield from self.at.zeros.values()
        yield from self.at.x.leaves
        for part in parts_of(self.carried).values():
            yield from part.leaves if isinstance(part, Vector) else [part] if isinstance(part, Tensor) else []

    def _step(self) -> tuple[Tensor, Vector]:
        """f and D of the next step."""
        at = self.at
        if self._chunk is not None and self._chunk.ahead(1):
            return self._compiled_step(self._chunk)
        at.next()
        step = self.algorithm.step if self._tried else self.algorithm._checked_step
        with torch.no_grad(), no_saved_tensor_hooks(), uncached():
            made = step(at, self.carried)
        self._tried = True
        at.fetch()
        self._take(made.carried, at.k)
        at.k += 1
        self._look(at.k - 1)
        return made.value.detach(), made.direction

    def _compiled_step(self, chunk: Chunk[C]) -> tuple[Tensor, Vector]:
        """The same, compiled: x stays where it is."""
        at, before = self.at, self.at.k
        still = [[0.0] * len(at.variables)]
        at.x = at.present_x()
        carried, _, direction, told = chunk(self.carried, at.x.zeros(), still)
        self._take(carried, at.k - 1)
        self._look(before)
        return at.x.leaves[0].new_tensor(told.values[0]), direction

    def _take(self, carried: C, k: int) -> None:
        """What is carried after step k."""
        if self.algorithm.check and not trees.is_finite(carried.y.leaves):
            check_x(self.at.x.leaves)
            raise DivergenceError(
                f"{type(self.algorithm).__name__}: y has left the finite numbers at outer step {k}: its steps may "
                "be too long; try a smaller lr, or a smaller learning rate of the outer optimizer. Or is a NaN in the "
                "data?"
            )
        self.carried, self.y = carried, self._tree(carried.y)

    def _look(self, before: int) -> None:
        """Look at what is carried after the steps from number `before` on, if it is time."""
        name = self.algorithm.system
        self._witness.passed(before, self.carried.y, getattr(self.carried, name) if name else None)

    def leaps(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._chunk is not None and _plain_sgd(optimizer)

    def ahead(self, most: int) -> int:
        return 0 if self._chunk is None else self._chunk.ahead(most)

    def move(self, steps: Sequence[float]) -> None:
        x, d = self.at.present_x(), self._gradient()
        self._put(moved(x, d, steps))

    def _gradient(self) -> Vector:
        return Vector(tuple([torch.zeros_like(t) if t.grad is None else t.grad for t in self.at.variables]))

    def _put(self, x: Vector) -> None:
        with torch.no_grad():
            for variable, new in zip(self.at.variables, x.leaves, strict=True):
                variable.copy_(new)

    def turns(self, steps: Sequence[Sequence[float]]) -> Turns:
        assert self._chunk is not None
        at, before = self.at, self.at.k
        at.x = at.present_x()
        carried, x, d, told = self._chunk(self.carried, self._gradient(), steps)
        self._take(carried, at.k - 1)
        self._put(x)
        self._look(before)
        for variable, slope in zip(at.variables, d.leaves, strict=True):
            variable.grad = slope
        return told

    def suspects(self) -> str:
        who, parts = type(self.algorithm).__name__, parts_of(self.carried)
        lost = [name for name, part in parts.items() if isinstance(part, Vector) and not trees.is_finite(part.leaves)]
        rates = [field.name for field in fields(self.algorithm) if field.name.endswith("lr")] or ["lr of its solver"]
        advice = f"Or the own steps of {who} are too long: try a smaller {' or '.join(rates)}."
        return f"{who} carries what is not finite: {', '.join(lost)}. {advice}" if lost else advice

    @property
    def last_audit(self) -> Audit | None:
        """What the last look at g found; None before the first."""
        return self._witness.questions.audit

    def inner_loss(self) -> float | None:
        with torch.no_grad():
            return float(self.at.g_value(self.at.present_x(), self.carried.y, self.at.last_inner_batch))

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return self.problem.metrics(self.x, self.y)

    def state_dict(self) -> dict[str, Any]:
        carried = {name: _saved(part) for name, part in parts_of(self.carried).items()}
        return {"oracles": self.at.state_dict(), "carried": carried}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine, saved = parts_of(self.carried), state["carried"]
        if mine.keys() != saved.keys():
            raise StructureError(f"The saved state carries {sorted(saved)}, and this algorithm {sorted(mine)}.")
        loaded = {name: _loaded(name, part, saved[name]) for name, part in mine.items()}
        self.at.load_state_dict(state["oracles"])
        self.carried = type(self.carried)(**loaded)
        self.y = self._tree(self.carried.y)

    def _tree(self, y: Vector) -> Any:
        return self.at.y_plan.build(y.leaves)


def _plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is x - lr D, and nothing else: a hook of the user's may keep x within bounds.

    torch has no public way to ask for hooks. Where these names are gone, there may be some.
    """
    if type(optimizer) is not torch.optim.SGD:
        return False
    hooks = any(getattr(optimizer, f"_optimizer_step_{when}_hooks", True) for when in ("pre", "post"))
    more = any(group[name] for group in optimizer.param_groups for name in ("momentum", "weight_decay", "maximize"))
    return not hooks and not more


def _record(algorithm: Algorithm[C], carried: C) -> C:
    """What `begin` gave, if it is what an algorithm can carry."""
    if not (is_dataclass(carried) and isinstance(getattr(carried, "y", None), Vector)):
        raise StructureError(
            f"{type(algorithm).__name__}.begin gave a {type(carried).__name__}; expected a frozen dataclass of "
            "Vectors, tensors and numbers, with a Vector y among them."
        )
    return carried


def _saved(value: Any) -> Any:
    """A part of what is carried, as a checkpoint keeps it. Copies: a table is written into."""
    if isinstance(value, Vector):
        return [t.clone() for t in value.leaves]
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (bool, int, float)):
        return value
    raise OptionError(f"An algorithm carries a {type(value).__name__}; expected Vectors, tensors and numbers.")


def _loaded(name: str, like: Any, saved: Any) -> Any:
    """The same, read back."""
    if isinstance(like, Vector):
        leaves = [_loaded(name, t, s) for t, s in zip(like.leaves, saved, strict=True)]
        return Vector(tuple(leaves))
    if isinstance(like, Tensor):
        if (saved.shape, saved.dtype) != (like.shape, like.dtype):
            raise StructureError(f"{name} has {tuple(saved.shape)}, {saved.dtype} in the saved state.")
        return saved.to(like.device, copy=True)
    return type(like)(saved)
