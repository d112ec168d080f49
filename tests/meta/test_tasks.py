"""Are tasks fair, without overlap, and the same for everyone?"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from pzobo.data import FewShotData, ImageClasses
from pzobo.errors import OptionError
from pzobo.meta import Tasks

# Each image is its own number: 12 classes of 9 images.
NUMBERED = ImageClasses(
    torch.arange(108, dtype=torch.uint8).reshape(12, 9, 1, 1, 1), tuple("abcdefghijkl"), std=(1 / 255,)
)


def test_support_and_query_are_different_images_of_the_same_classes() -> None:
    episodes = Tasks(NUMBERED, ways=4, shots=3, queries=5, seed=3).batch(0, 200)
    support, query = (images.flatten(1).round().long() for images in (episodes.support, episodes.query))
    assert support.shape == episodes.support_labels.shape == (200, 12)
    assert query.shape == episodes.query_labels.shape == (200, 20)
    for i in range(200):
        drawn = torch.cat([support[i], query[i]])
        assert len(drawn.unique()) == 32, "an image was drawn twice"
        # One class for each label, in both sets.
        both = torch.cat([episodes.support_labels[i], episodes.query_labels[i]])
        pairs = set(zip((drawn // 9).tolist(), both.tolist(), strict=True))
        assert len(pairs) == 4
        assert {label for _, label in pairs} == {0, 1, 2, 3}
    assert episodes.support_labels[0].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_task_is_a_function_of_its_seed_and_number() -> None:
    tasks = Tasks(NUMBERED, ways=4, shots=2, queries=2, seed=5)
    whole = tasks.batch(0, 12)
    for first, count in ((0, 1), (3, 5), (11, 1)):
        for part, all_of_it in zip(tasks.batch(first, count), whole, strict=True):
            assert torch.equal(part, all_of_it[first : first + count])
    assert not torch.equal(whole.support, Tasks(NUMBERED, ways=4, shots=2, queries=2, seed=6).batch(0, 12).support)
    assert not torch.equal(whole.support[:6], whole.support[6:])


def test_drawn_numbers_are_the_same_in_another_process() -> None:
    code = (
        "import torch; from pzobo.data import ImageClasses; from pzobo.meta import Tasks;"
        "images = ImageClasses(torch.zeros(1000, 50, 1, 1, 1, dtype=torch.uint8), ('',) * 1000);"
        "torch.rand(7); print(Tasks(images, seed=9).draw(10**6, 2))"
    )
    images = ImageClasses(torch.zeros(1000, 50, 1, 1, 1, dtype=torch.uint8), ("",) * 1000)
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(Tasks(images, seed=9).draw(10**6, 2))
    # And next year: these values are part of every recorded result.
    assert Tasks(images, seed=9).draw(10**6, 1)[0].tolist() == [[682, 907, 450, 307, 138]]


def test_classes_and_images_are_drawn_evenly() -> None:
    classes, images = Tasks(NUMBERED, ways=3, shots=1, queries=1, seed=0).draw(0, 6000)
    # Each of 12 classes is in a given place of 1 in 12 tasks: 500, with a standard deviation of 21.4.
    for place in range(3):
        assert classes[:, place].bincount(minlength=12).sub(500).abs().max() < 4.5 * 21.4
    # 18,000 draws of each of two places over 9 images: 2,000 each, deviation 42.2.
    for place in range(2):
        assert images[..., place].flatten().bincount(minlength=9).sub(2000).abs().max() < 4.5 * 42.2
    # Pairs of classes: 6,000 / 132 = 45.5 for each ordered pair, deviation 6.7.
    pairs = (classes[:, 0] * 12 + classes[:, 1]).bincount(minlength=144).reshape(12, 12)
    assert pairs.diagonal().sum() == 0
    assert (pairs[~torch.eye(12, dtype=torch.bool)] - 45.5).abs().max() < 5 * 6.7


def test_neighbouring_seeds_and_tasks_are_unrelated() -> None:
    draws = torch.stack([Tasks(NUMBERED, ways=2, shots=1, queries=1, seed=s).draw(0, 2000)[0][:, 0] for s in (0, 1)])
    # Two independent draws agree in 1 of 12 cases: 167 of 2,000, deviation 12.4.
    for a, b in ((draws[0], draws[1]), (draws[0, 1:], draws[0, :-1]), (draws[0, 1:], draws[1, :-1])):
        assert abs(int((a == b).sum()) - 167) < 4.5 * 12.4


def test_total_begins_again() -> None:
    tasks = Tasks(NUMBERED, ways=3, shots=2, queries=2, total=5)
    twice = tasks.batch(3, 7)
    assert torch.equal(twice.query[:2], twice.query[5:])
    assert torch.equal(twice.query[2:5], tasks.batch(0, 3).query)


def test_images_are_normalised_by_channel() -> None:
    images = torch.randint(256, (4, 3, 2, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tasks = Tasks(
        ImageClasses(images, tuple("abcd"), mean=(0.1, 0.2), std=(0.5, 2.0)), 2, 1, 2, seed=1, dtype=torch.float64
    )
    classes, drawn = tasks.draw(4, 1)
    expected = images[classes[0, 1], drawn[0, 1, 2]].double() / 255
    expected = torch.stack([(expected[0] - 0.1) / 0.5, (expected[1] - 0.2) / 2.0])
    assert torch.allclose(tasks.batch(4, 1).query[0, 3], expected, atol=1e-12)


def test_only_the_named_classes_are_drawn(data: FewShotData) -> None:
    part = ImageClasses(NUMBERED.images, ("c", "f", "g"), torch.tensor([2, 5, 6]), std=(1 / 255,))
    seen = Tasks(part, ways=2, shots=1, queries=1).batch(0, 100).support.round().long() // 9
    assert set(seen.flatten().tolist()) == {2, 5, 6}


@pytest.mark.parametrize(
    ("options", "says"),
    [({"ways": 13}, "only 12 classes"), ({"shots": 5, "queries": 5}, "the 9 images"), ({"ways": 0}, "at least 1")],
)
def test_impossible_tasks_are_refused(options: dict[str, int], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Tasks(NUMBERED, **{"ways": 3, "shots": 2, "queries": 2, **options})


def test_five_way_five_shot_tasks_are_made_fast_enough() -> None:
    """2,000 a second on a quiet core; a test only sees that it is not another order of magnitude."""
    images = ImageClasses(torch.zeros(4400, 20, 1, 28, 28, dtype=torch.uint8), ("",) * 4400)
    tasks = Tasks(images)
    tasks.batch(0, 16)
    began = time.process_time()
    for i in range(10):
        tasks.batch(16 * i, 16)
    assert time.process_time() - began < 160 / 400
