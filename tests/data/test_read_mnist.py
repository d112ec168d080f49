"""Are idx files read to the byte, and is MNIST what it is known to be?"""

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pzobo.data import DataError, fashion_mnist, mnist
from pzobo.data.idx import parse_idx
from pzobo.data.images import for_lenet
from pzobo.data.lookup import Source
from pzobo.errors import StructureError
from pzobo.problems import data_cleaning, deep_hr


def idx(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
    return gzip.compress(header + bytes(values.flatten().tolist()), mtime=0)


IMAGES = torch.arange(2 * 28 * 28).remainder(256).to(torch.uint8).reshape(2, 28, 28)
LABELS = torch.tensor([7, 3], dtype=torch.uint8)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder whose four files hold two images."""
    sources = {}
    for part in ("train", "test"):
        pair = []
        for name, values in (("images", IMAGES), ("labels", LABELS)):
            source = Source(f"MNIST/raw/{part}-{name}.gz", hashlib.sha256(idx(values)).hexdigest())
            path = tmp_path / source.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(idx(values))
            pair.append(source)
        sources[part] = tuple(pair)
    monkeypatch.setattr(sys.modules["pzobo.data.read_mnist"], "SOURCES", sources)
    return tmp_path


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3), (0, 5)])
def test_idx_gives_back_what_was_written(shape: tuple[int, ...]) -> None:
    values = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(parse_idx(idx(values)), values)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no gzip", "not a whole gzip file"),
        (idx(LABELS)[:-9], "not a whole gzip file"),
        (gzip.compress(b"\0\0"), "starts with 00 00"),
        (gzip.compress(b"\0\0\x0d\1" + bytes(8)), "starts with 00 00 0d 01"),
        (gzip.compress(b"\0\0\x08\3" + bytes(4)), "ends in its header"),
        (gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 5) + bytes(4)), "4 bytes of numbers"),
        (gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 5) + bytes(6)), "6 bytes of numbers"),
    ],
    # Not by their content: gzip writes the time into it, and two workers must collect the same names.
    ids=["no gzip", "cut off", "too short", "other numbers", "half a header", "one number missing", "one too many"],
)
def test_bad_idx_is_refused_with_its_name(content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=f"^labels.gz .*{says}"):
        parse_idx(content, "labels.gz")


def test_tiny_mnist(tiny: Path) -> None:
    data = mnist(tiny)
    for part in data:
        assert torch.equal(part.inputs, IMAGES)
        assert part.labels.tolist() == [7, 3]
        assert part.labels.dtype == torch.int64


def test_fashion_mnist_is_read_if_it_is_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are known by MD5 sums alone; data cleaning reads them too."""
    module = sys.modules["pzobo.data.read_mnist"]
    monkeypatch.setenv("PZOBO_DATA", str(tiny))
    with pytest.raises(DataError, match=r"FashionMNIST/raw/train-images-idx3-ubyte.gz \(MD5 8d4f\w+\) is not on"):
        fashion_mnist(tiny)
    sources = {}
    for part, pair in module.FASHION.items():
        made = []
        for source, values in zip(pair, (IMAGES, LABELS), strict=True):
            path = tiny / source.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(idx(values))
            made.append(Source(source.path, "", None, hashlib.md5(idx(values)).hexdigest()))
        sources[part] = tuple(made)
    with pytest.raises(DataError, match="is damaged or another file"):
        fashion_mnist(tiny)
    monkeypatch.setattr(module, "FASHION", sources)
    for part in fashion_mnist(tiny):
        assert torch.equal(part.inputs, IMAGES)
        assert part.labels.tolist() == [7, 3]
    problem = data_cleaning("fashion", root=tiny, rows=1, val_rows=1, corruption=0.0)
    assert sorted([int(problem.train[1]), int(problem.val[1])]) == [3, 7]


def test_lenet_images_are_padded_and_normalised(tiny: Path) -> None:
    images = mnist(tiny, lenet=True).train.inputs
    assert images.shape == (2, 1, 32, 32)
    pixels = images * 0.3081 + 0.1307
    assert torch.allclose(pixels[:, 0, 2:-2, 2:-2] * 255, IMAGES.float(), atol=1e-3)
    assert pixels.sum() * 255 == pytest.approx(IMAGES.sum().item(), rel=1e-4), "the border is black"


def test_damaged_mnist_is_refused_and_left_alone(tiny: Path) -> None:
    path = tiny / "MNIST/raw/train-labels.gz"
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"train-labels\.gz is damaged"):
        mnist(tiny)
    assert path.read_bytes() == b"damaged"


def test_other_sizes_are_refused() -> None:
    with pytest.raises(StructureError, match="s = 8, 28, 32"):
        for_lenet(torch.zeros(2, 10, 10), 0, 1)


def test_real_mnist(real_mnist: Path) -> None:
    data = mnist(real_mnist)
    assert [tuple(part.inputs.shape) for part in data] == [(60000, 28, 28), (10000, 28, 28)]
    assert data.train.inputs.dtype == torch.uint8
    # Known of MNIST: the first labels, the class sizes, and the mean and deviation that everyone normalises by.
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert data.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = data.train.inputs.float() / 255
    assert pixels.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert pixels.std().item() == pytest.approx(0.3081, abs=1e-4)


def test_real_mnist_in_the_papers_problem(real_mnist: Path) -> None:
    problem = deep_hr("mnist", root=real_mnist)
    assert [tuple(part[0].shape) for part in (problem.train, problem.val)] == [(10000, 1, 32, 32), (60000, 1, 32, 32)]
    assert problem.val[0].mean().item() == pytest.approx((0.1307 * 28**2 / 32**2 - 0.1307) / 0.3081, abs=1e-3)
    batch = tuple(part[:256] for part in problem.val)
    assert problem.outer_loss(problem.x0, problem.y0, batch).item() == pytest.approx(2.302585, rel=1e-5)
