"""Are digits dealt to the parts by digit, and what is not few-shot data refused?"""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from pzobo.data import ImageClasses, digits_few_shot
from pzobo.errors import OptionError, StructureError


def test_digits_are_in_one_part_each() -> None:
    data = digits_few_shot()
    assert [len(part) for part in data] == [16, 6, 6]
    digits = [{name.split("/")[0] for name in part.names} for part in data]
    assert [len(part) for part in digits] == [4, 3, 3]
    assert len(set.union(*digits)) == 10
    assert {name.split("/")[1] for name in data.train.names} == {"0", "90", "180", "270"}
    assert {name.split("/")[1] for name in data.test.names} == {"0", "90"}
    assert digits != [{name.split("/")[0] for name in part.names} for part in digits_few_shot(seed=1)]


def test_digits_are_scikit_learns_enlarged_and_turned() -> None:
    bunch = load_digits()
    part = digits_few_shot().test
    for row, name in zip(part.rows, part.names, strict=True):
        digit, turn = (int(word) for word in name.split("/"))
        first = torch.tensor(bunch.images[bunch.target == digit][:174]) * 255 / 16
        upright = part.images[row, :, 0].rot90(-turn // 90, (-2, -1)).double()
        # Enlargement keeps the mean of an image, but for rounding.
        assert torch.allclose(upright.mean((1, 2)), first.mean((1, 2)), atol=0.5)
        corners = upright[:, ::15, ::15]
        assert torch.allclose(corners, first[:, ::7, ::7], atol=0.5), "corners are kept"


def test_digits_are_normalised() -> None:
    data = digits_few_shot()
    pixels = torch.cat([part.images[part.rows].flatten() for part in data]).double() / 255
    assert pixels.mean().item() == pytest.approx(data.train.mean[0], abs=0.01)
    assert pixels.std().item() == pytest.approx(data.train.std[0], abs=0.01)


def test_what_are_no_classes_of_images_is_refused() -> None:
    with pytest.raises(StructureError, match="expected uint8 of classes"):
        ImageClasses(torch.zeros(3, 2, 1, 4, 4), ("a", "b", "c"))
    with pytest.raises(StructureError, match="2 names for 3 classes"):
        ImageClasses(torch.zeros(3, 2, 1, 4, 4, dtype=torch.uint8), ("a", "b"))


def test_a_shrunk_image_has_the_means_of_areas() -> None:
    part = digits_few_shot().test
    small = part.shrunk(8)
    assert small.shape == (1, 8, 8)
    assert small.names == part.names
    whole = part.images[part.rows].double()
    means = sum(whole[..., i::2, j::2] for i in (0, 1) for j in (0, 1)) / 4
    assert (small.images[small.rows].double() - means).abs().max() <= 0.5, "but for rounding"
    with pytest.raises(OptionError, match="from 1 to 16"):
        part.shrunk(17)
