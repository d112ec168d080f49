"""What do the tests of few-shot learning share? Small random classes, and a small problem in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pzobo.data import FewShotData, ImageClasses
from pzobo.meta import FewShot
from pzobo.networks import CNN4


def classes(count: int, seed: int, per_class: int = 8, size: int = 16) -> ImageClasses:
    """Classes that can be told apart: noise around a picture of each."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.rand(count, 1, 1, size, size, generator=generator)
    noise = torch.rand(count, per_class, 1, size, size, generator=generator)
    images = (255 * (pictures + noise) / 2).to(torch.uint8)
    return ImageClasses(images, tuple(f"{seed}/{i}" for i in range(count)), mean=(0.5,), std=(0.25,))


@pytest.fixture
def data() -> FewShotData:
    return FewShotData(classes(7, 0), classes(5, 1), classes(6, 2))


@pytest.fixture
def problem(data: FewShotData) -> FewShot:
    """Three tasks of three classes, two shots and three queries; 142 weights."""
    return FewShot(
        data,
        partial(CNN4, filters=2),
        ways=3,
        shots=2,
        queries=3,
        meta_batch=3,
        eval_tasks=7,
        dtype=torch.float64,
    )
