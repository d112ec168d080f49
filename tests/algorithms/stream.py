"""Which rows and which random numbers come next? As in the library, but as row numbers and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pzobo.outer.minibatches import Minibatches
from pzobo.tensors.seeds import generator, mix
from tests.algorithms.problems import Array


class Stream:
    """Batches as row numbers, and random numbers, in the library's order."""

    def __init__(self, case: Any, inner: int | None, outer: int | None, seed: int) -> None:
        self.every, self.val = np.arange(case.rows), np.arange(case.val_rows)
        self._inner = inner and Minibatches(torch.arange(case.rows), inner, mix(seed, 0))
        self._outer = outer and Minibatches(torch.arange(case.val_rows), outer, mix(seed, 2))
        self.sizes, self._seed, self._draws = (inner, outer), seed, 0

    def inner(self) -> Array:
        return self._inner.next().numpy() if self._inner else self.every

    def outer(self) -> Array:
        return self._outer.next().numpy() if self._outer else self.val

    def _generator(self) -> torch.Generator:
        self._draws += 1
        return generator(mix(self._seed, 3), self._draws - 1)

    def draw(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self._generator()))

    def normal(self, count: int) -> Array:
        return torch.randn(count, generator=self._generator(), dtype=torch.float64).numpy()
