"""Where do the perturbed paths go? Samplers of directions u with E[u u^T] = I, and how noisy each is.

A sampler draws one key for each call from its stream; direction j of the call is a pure function of (key, j). So a
direction can be made again in the backward pass instead of being kept, and the batching does not change it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from pzobo.errors import OptionError
from pzobo.tensors import trees
from pzobo.tensors.seeds import generator, mix, shuffled


@dataclass(frozen=True)
class Space:
    """The space that directions live in: the sizes of its tensors, and where and how precisely numbers are drawn."""

    sizes: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, variables: Sequence[Tensor]) -> Space:
        return cls(tuple(v.numel() for v in variables), variables[0].device, trees.accumulator(variables))

    @property
    def dim(self) -> int:
        """p, the number of outer variables."""
        return sum(self.sizes)

    def empty(self) -> Tensor:
        return torch.empty(self.dim, device=self.device, dtype=self.dtype)

    def split(self, flat: Tensor, like: Sequence[Tensor]) -> trees.Leaves:
        """A vector of this space as tensors like those it was made from (leading batch dimensions are kept)."""
        batch = flat.shape[:-1]
        parts = flat.split(self.sizes, dim=-1) if len(self.sizes) > 1 else (flat,)
        return tuple(part.reshape(batch + v.shape).to(v.device) for part, v in zip(parts, like, strict=True))


@dataclass(frozen=True)
class Sampler(ABC):
    """Draws directions. `seed=` or `generator=` gives it a stream of its own; else it follows `torch.manual_seed`.

    The same seed gives other directions on a CPU, on a GPU, and on a GPU of another kind, since torch draws other
    numbers there. `portable=True` gives the same everywhere.

    Args:
        seed: of a stream of its own, which begins anew with every run.
        generator: a stream to draw from, instead of a seed; it goes on where it stands.
        portable: draw on the CPU, and copy each direction to where x is.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> x = torch.ones(3, requires_grad=True)
        >>> def gradient(sampler):
        ...     return torch.autograd.grad(pzobo.smooth(torch.sum, x, mu=0.1, sampler=sampler), x)[0]
        >>> torch.equal(gradient(pzobo.Gaussian(seed=1)), gradient(pzobo.Gaussian(seed=1)))
        True
    """

    seed: int | None = None
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)
    portable: bool = False

    def __post_init__(self) -> None:
        if self.seed is not None and self.generator is not None:
            raise OptionError(f"{type(self).__name__} got both seed= and generator=; give one of them.")
        if self.seed is not None and (isinstance(self.seed, bool) or not hasattr(self.seed, "__index__")):
            raise OptionError(f"{type(self).__name__}: seed={self.seed!r}: must be a whole number.")
        if self.seed is not None:
            object.__setattr__(self, "generator", torch.Generator().manual_seed(self.seed))

    def key(self) -> int:
        """The key of the next call: all its randomness."""
        device = "cpu" if self.generator is None else self.generator.device
        return int(torch.randint(2**63 - 1, (), generator=self.generator, device=device))

    @abstractmethod
    def draw(self, key: int, j: int, count: int, space: Space) -> Tensor:
        """Direction j of `count`, as one flat vector of the space: a pure function of its arguments."""

    def at_start(self) -> Self:
        """The same sampler at the start of its stream, if it has a seed."""
        if self.seed is None:
            return self
        alike = copy.copy(self)
        object.__setattr__(alike, "generator", torch.Generator().manual_seed(self.seed))
        return alike

    def length(self, sizes: Sequence[int]) -> float:
        """The root mean square length of a direction for tensors of these sizes."""
        return math.sqrt(sum(sizes))

    def relative_error(self, p: int, count: int) -> float:
        """E|estimate - J^T v|^2 / |J^T v|^2 of the unbiased estimate from `count` directions, for a linear response."""
        return (p - 1) / count

    def shrinkage(self, p: int, count: int) -> float:
        """The factor of least mean squared error, 1 / (1 + relative_error)."""
        return 1.0 / (1.0 + self.relative_error(p, count))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, for a checkpoint (empty without a stream of its own)."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if ("generator" in state) != (self.generator is not None):
            raise OptionError(
                f"The checkpoint and this {type(self).__name__} do not agree on having a stream of their own: "
                "construct the sampler with seed= or generator= exactly if the saved one was."
            )
        if self.generator is not None:
            self.generator.set_state(state["generator"])


def drawn_by(sampler: Sampler, key: int, j: int, count: int, space: Space) -> Tensor:
    """Direction j of `count`, where the space is: drawn there, or on the CPU to be the same everywhere."""
    if not sampler.portable:
        return sampler.draw(key, j, count, space)
    found = sampler.draw(key, j, count, replace(space, device=torch.device("cpu")))
    return found.to(space.device, non_blocking=True)


class Independent(Sampler):
    """Directions that know nothing of each other."""

    def draw(self, key: int, j: int, count: int, space: Space) -> Tensor:
        return self.sample(generator(key, j, space.device), space)

    @abstractmethod
    def sample(self, generator: torch.Generator, space: Space) -> Tensor:
        """One direction."""


@dataclass(frozen=True)
class Gaussian(Independent):
    """u ~ N(0, I), as in Eq. 4 of the paper. Relative squared error (p + 1) / Q.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.Gaussian(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        5.5
    """

    def sample(self, generator: torch.Generator, space: Space) -> Tensor:
        return space.empty().normal_(generator=generator)

    def relative_error(self, p: int, count: int) -> float:
        return (p + 1) / count


@dataclass(frozen=True)
class Sphere(Independent):
    """u uniform on the sphere of radius sqrt(p). Relative squared error (p - 1) / Q.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.Sphere(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        4.5
    """

    def sample(self, generator: torch.Generator, space: Space) -> Tensor:
        u = space.empty().normal_(generator=generator)
        return u.mul_(math.sqrt(space.dim) / torch.linalg.vector_norm(u))


@dataclass(frozen=True)
class Rademacher(Independent):
    """u of independent signs. Relative squared error (p - 1) / Q.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.Rademacher(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        4.5
    """

    def sample(self, generator: torch.Generator, space: Space) -> Tensor:
        return space.empty().bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


class _Basis(Sampler):
    """Vectors of an orthogonal basis, of length sqrt(p), without replacement; a new basis every p of them."""

    def draw(self, key: int, j: int, count: int, space: Space) -> Tensor:
        basis, position = divmod(j, space.dim)
        index = shuffled(mix(key, basis), position, space.dim)
        return self.vector(index, generator(key, basis, space.device), space)

    @abstractmethod
    def vector(self, index: int, generator: torch.Generator, space: Space) -> Tensor:
        """The vector of this number, of the basis that the generator makes."""

    def relative_error(self, p: int, count: int) -> float:
        rest = count % p
        return rest * (p - rest) / count**2


@dataclass(frozen=True)
class Orthogonal(_Basis):
    """Orthogonal directions of length sqrt(p): rows of a cosine transform with random signs, drawn without replacement.

    Relative squared error p / Q - 1 for Q <= p; exact for a linear response at Q = p. Each row is computed from its
    number, so Q orthogonal directions never need Q copies of x, nor a factorisation: twice the memory of a Gaussian
    direction while it is made.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.Orthogonal(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        4.0
    """

    def vector(self, index: int, generator: torch.Generator, space: Space) -> Tensor:
        row = phases(index, space.dim, space.device).to(space.dtype).mul_(math.pi / (2 * space.dim)).cos_()
        signs = space.empty().bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        return row.mul_(signs).mul_(math.sqrt(2) if index else 1.0)


def phases(k: int, p: int, device: torch.device) -> Tensor:
    """(2i + 1) k mod 4p for i < p: exact in integers, so that angles keep full precision however large p is.

    With i = a s + b and s about sqrt(p) it is a sum of two short vectors, and needs no more than 32 bits a number.
    """
    side, whole = math.isqrt(p - 1) + 1, 4 * p
    number = torch.arange(side, device=device)
    rows, columns = number * (2 * side * k % whole) % whole, (2 * number + 1) * k % whole
    kind = torch.int32 if 2 * whole < 2**31 else torch.int64
    return (rows.to(kind).unsqueeze(1) + columns.to(kind)).flatten()[:p].remainder_(whole)


@dataclass(frozen=True)
class Coordinate(_Basis):
    """sqrt(p) e_i for random coordinates i, without replacement: finite differences.

    Relative squared error p / Q - 1 for Q <= p.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.Coordinate(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        4.0
    """

    def vector(self, index: int, generator: torch.Generator, space: Space) -> Tensor:
        u = space.empty().zero_()
        u[index] = math.sqrt(space.dim)
        return u


@dataclass(frozen=True)
class UnitPerTensor(Independent):
    """The authors' code: a Gaussian direction, each tensor's part divided by its norm and not scaled back.

    The estimate of tensor i is J_i^T v / p_i in expectation: a shrinkage already, so `shrink=True` adds none.

    Args:
        seed: of a stream of its own; by default the directions follow `torch.manual_seed`.
        generator: a stream to draw from, instead of a seed.
        portable: draw on the CPU, so that all devices get the same directions.

    Raises:
        OptionError: both `seed` and `generator` are given, or `seed` is no whole number.

    Examples:
        >>> pzobo.UnitPerTensor(seed=0).relative_error(10, 2)        # p = 10, Q = 2
        0.8550000000000001
    """

    def sample(self, generator: torch.Generator, space: Space) -> Tensor:
        u = space.empty().normal_(generator=generator)
        for part in u.split(space.sizes):
            part.div_(torch.linalg.vector_norm(part))
        return u

    def length(self, sizes: Sequence[int]) -> float:
        return math.sqrt(len(sizes))

    def relative_error(self, p: int, count: int) -> float:
        """For one tensor of p elements: the bias (1 - 1/p)^2 and the variance of a mean of `count`."""
        return (1 - 1 / p) ** 2 + (1 / p - 1 / p**2) / count

    def shrinkage(self, p: int, count: int) -> float:
        return 1.0
