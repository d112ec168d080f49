"""Are Omniglot's archives read to the pixel, its turns kept together, and its parts kept apart?"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pzobo.data import DataError, FewShotData, omniglot
from pzobo.data.lookup import Source, read
from pzobo.errors import OptionError

from .conftest import folder_with

MODULE = sys.modules["pzobo.data.read_omniglot"]


def drawing(character: int, number: int) -> Image.Image:
    """One bit, paper as 1: a dark square whose place tells which drawing it is."""
    pixels = np.ones((105, 105), dtype=bool)
    pixels[5 * number : 5 * number + 25, 7 * character : 7 * character + 25] = False
    return Image.fromarray(pixels)


def archive(name: str, characters: range, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as files:
        for i in reversed(characters):
            for k in range(3):
                png = io.BytesIO()
                drawing(i, k).save(png, "png")
                files.writestr(f"{name}/Alphabet{i % 2}/character{i:02}/{i:04}_{k:02}.png", png.getvalue())
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 5 + 4 characters of three drawings; six are not for the test."""
    sources = []
    for name, part in (("background", range(5)), ("evaluation", range(5, 9))):
        content = archive(f"images_{name}", part)
        path = tmp_path / "omniglot" / f"{name}.zip"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        sources.append(Source(f"omniglot/{name}.zip", hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(MODULE, "SOURCES", tuple(sources))
    monkeypatch.setattr(MODULE, "DRAWINGS", 3)
    monkeypatch.setattr(MODULE, "TRAIN", 6)
    return tmp_path


def characters(data: FewShotData) -> list[set[str]]:
    return [{name.rpartition("/")[0] for name in part.names} for part in data]


def test_parts_share_no_character_and_keep_its_turns_together(tiny: Path) -> None:
    data = omniglot(tiny, val=2)
    assert [len(part) for part in data] == [16, 8, 12]
    found = characters(data)
    assert [len(part) for part in found] == [4, 2, 3]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
    assert found != characters(omniglot(tiny, val=2, seed=1))
    assert found == characters(omniglot(tiny, val=2))


def test_every_image_is_the_drawing_turned_with_ink_as_255(tiny: Path) -> None:
    for part in omniglot(tiny, val=2):
        assert part.shape == (1, 28, 28)
        for row, name in zip(part.rows, part.names, strict=True):
            character, turn = int(name.split("/")[1][-2:]), int(name.split("/")[2])
            for k in range(3):
                grey = drawing(character, k).convert("L").resize((28, 28), Image.Resampling.LANCZOS)
                # Pillow turns counter-clockwise, as rot90 does.
                expected = 255 - np.asarray(grey.rotate(turn))
                assert np.array_equal(part.images[row, k, 0].numpy(), expected)


def test_images_are_decoded_once_and_mapped(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = omniglot(tiny, val=2)
    monkeypatch.setattr(MODULE, "characters", None)
    again = omniglot(val=2)
    assert torch.equal(first.train.images, again.train.images)
    assert first.test.names == again.test.names
    path = cache / "images" / "omniglot-28.npy"
    before = path.read_bytes()
    again.train.images.fill_(7)
    assert path.read_bytes() == before, "writing to the tensor changes no file"


def test_damaged_cache_is_made_again(tiny: Path, cache: Path) -> None:
    first = omniglot(tiny, val=2)
    path = cache / "images" / "omniglot-28.npy"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="made again"):
        again = omniglot(tiny, val=2)
    assert torch.equal(first.train.images, again.train.images)


def test_what_a_killed_process_left_is_removed(tiny: Path, cache: Path) -> None:
    (cache / "images").mkdir(parents=True)
    left = cache / "images" / ".omniglot-28.npy.0123.new"
    left.write_bytes(b"half of the images")
    omniglot(tiny, val=2)
    assert sorted(path.name for path in left.parent.iterdir()) == ["omniglot-28.json", "omniglot-28.npy"]


def test_cache_that_cannot_be_written_is_no_error(tiny: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be written"):
        assert len(omniglot(tiny, val=2).train) == 16


def test_the_publishers_packing_is_as_good(tmp_path: Path) -> None:
    content = archive("images_background", range(2), zipfile.ZIP_DEFLATED)
    source = Source("omniglot/a.zip", "0" * 64, None, hashlib.md5(content).hexdigest())
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / "a.zip").write_bytes(content)
    assert read(source, tmp_path) == content
    assert MODULE.decode(content).keys() == {"Alphabet0/character00", "Alphabet1/character01"}
    (tmp_path / "omniglot" / "a.zip").write_bytes(content + b"0")
    with pytest.raises(DataError, match="is damaged"):
        read(source, tmp_path)


def test_offline_message_has_both_checksums(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    sources = tuple(Source(s.path, s.sha256, "http://127.0.0.1:9/a.zip", s.md5) for s in MODULE.SOURCES)
    monkeypatch.setattr(MODULE, "SOURCES", sources)
    with pytest.raises(DataError) as caught:
        omniglot()
    for part in ("images_background.zip", sources[0].sha256, "68d2efa1b9178cc56df9314c21c6e718", str(cache)):
        assert part in str(caught.value)


def test_what_is_no_archive_is_refused() -> None:
    with pytest.raises(DataError, match=r"^a\.zip is not a whole zip archive"):
        MODULE.decode(b"no zip", "a.zip")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        files.writestr("a/b/c/d.png", b"no png")
    with pytest.raises(DataError, match=r"d\.png in .*not a picture"):
        MODULE.decode(buffer.getvalue())


def test_other_numbers_of_drawings_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "DRAWINGS", 4)
    with pytest.raises(DataError, match="another number of drawings"):
        omniglot(tiny, val=2)


@pytest.mark.parametrize("val", [0, 1200])
def test_impossible_parts_are_refused(val: int) -> None:
    with pytest.raises(OptionError, match="between 1 and 1199"):
        omniglot(val=val)


def test_real_omniglot(request: pytest.FixtureRequest) -> None:
    data = omniglot(folder_with("omniglot", request))
    assert [len(part) for part in data] == [4400, 400, 1692]
    assert data.train.per_class == 20
    names = {name for part in characters(data) for name in part}
    assert len(names) == MODULE.CHARACTERS
    assert len({name.split("/")[0] for name in names}) == 50
    assert sorted(names)[0] == "Alphabet_of_the_Magi/character01"
    # Thin strokes on paper: a tenth of the pixels, and no empty image.
    ink = data.train.images[data.train.rows[:400]].double() / 255
    assert 0.05 < ink.mean() < 0.12
    assert (ink.flatten(2).sum(2) > 5).all()
