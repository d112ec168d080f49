"""Are the digits split as said, and is nothing lost on the way to LeNet?"""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from pzobo.data import digits
from pzobo.data.read_digits import MEAN, STD
from pzobo.errors import OptionError


def test_parts_are_a_permutation_of_scikit_learns_digits() -> None:
    data = digits(train=100, val=200)
    assert [len(part.labels) for part in data] == [100, 200, 1497]
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    bunch = load_digits()
    rows = torch.cat([images.flatten(1) * 16, labels[:, None]], 1)
    expected = torch.cat([torch.tensor(bunch.data).float(), torch.tensor(bunch.target)[:, None]], 1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_seed_decides() -> None:
    first, again, other = digits(), digits(), digits(seed=1)
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.labels, other.train.labels)


def test_lenet_images() -> None:
    small, large = digits(), digits(lenet=True)
    assert large.train.inputs.shape == (600, 1, 32, 32)
    assert torch.equal(small.train.labels, large.train.labels)
    everything = torch.cat([part.inputs.flatten() for part in small])
    assert (everything.mean().item(), everything.std().item()) == pytest.approx((MEAN, STD), abs=1e-4)
    # Bilinear enlargement keeps every image's mean.
    enlarged = (large.val.inputs * STD + MEAN).mean((1, 2, 3))
    inner = small.val.inputs.mean((1, 2))
    assert torch.allclose(enlarged, inner, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1000, 797)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match="below 1797"):
        digits(train=sizes[0], val=sizes[1])
