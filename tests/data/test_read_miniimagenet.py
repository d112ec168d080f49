"""Do the three forms of miniImageNet agree, and is no code of a pickle ever run?"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pzobo.data import DataError, miniimagenet
from pzobo.data.lookup import Source
from pzobo.data.read_miniimagenet import CSV_SHA256, NPZ, load
from pzobo.data.safe_pickle import load_arrays
from pzobo.errors import OptionError

from .conftest import folder_with

MODULE = sys.modules["pzobo.data.read_miniimagenet"]
CLASSES = {"train": ("n1", "n2", "n3"), "val": ("n4", "n5"), "test": ("n6", "n7")}
COUNT = 3


def picture(name: str, k: int) -> Image.Image:
    """A smooth one, which jpeg keeps well."""
    rows, columns = np.mgrid[0:84, 0:84]
    number = 10 * int(name[1:]) + k
    return Image.fromarray(np.stack([rows + number, columns + number, 0 * rows + number], 2).astype(np.uint8))


def jpeg(name: str, k: int) -> bytes:
    buffer = io.BytesIO()
    picture(name, k).save(buffer, "jpeg", quality=95)
    return buffer.getvalue()


def pixels(name: str, k: int) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg(name, k))))


def make_csv(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    for part, names in CLASSES.items():
        rows = [(f"{name}_{k}.jpg", name) for k in range(COUNT) for name in names]
        lines = [f"{file},{name}" for file, name in rows]
        (folder / f"{part}.csv").write_text("\n".join(["filename,label", *lines]) + "\n")
    for name in (name for names in CLASSES.values() for name in names):
        for k in range(COUNT):
            (folder / "images" / f"{name}_{k}.jpg").write_bytes(jpeg(name, k))


def make_pickle(folder: Path, protocol: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, names in CLASSES.items():
        images = np.stack([pixels(name, k) for name in names for k in range(COUNT)])
        places = {name: list(range(COUNT * i, COUNT * (i + 1))) for i, name in enumerate(names)}
        content = pickle.dumps({"image_data": images, "class_dict": places}, protocol=protocol)
        (folder / f"mini-imagenet-cache-{part}.pkl").write_bytes(content)


def make_npz(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, names in CLASSES.items():
        files = [jpeg(name, k) for name in names for k in range(COUNT)]
        path = folder / f"miniimagenet_{part}_200.npz"
        np.savez(
            path,
            jpeg=np.frombuffer(b"".join(files), np.uint8),
            offsets=np.cumsum([0, *(len(file) for file in files)]),
            labels=np.repeat(np.arange(len(names)), COUNT),
            wnids=np.array(names),
        )
        source = Source(f"miniimagenet/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest())
        monkeypatch.setitem(MODULE.NPZ, part, source)


@pytest.mark.parametrize("form", ["csv", "pickle", "pickle of Python 2's time", "newest pickle", "npz"])
def test_every_form_gives_the_same(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "miniimagenet"
    if form == "csv":
        make_csv(folder)
    elif form == "npz":
        make_npz(folder, monkeypatch)
    else:
        make_pickle(folder, {"pickle": 4, "newest pickle": 5}.get(form, 2))
    for _ in range(2):  # decoded, and from the cache
        data = miniimagenet(tmp_path)
        for part, names in zip(data, CLASSES.values(), strict=True):
            assert part.names == names
            assert part.shape == (3, 84, 84)
            for i, name in enumerate(names):
                for k in range(COUNT):
                    assert np.array_equal(part.images[i, k].numpy(), pixels(name, k).transpose(2, 0, 1))


def test_large_pictures_are_made_small_and_grey_ones_coloured(tmp_path: Path) -> None:
    make_csv(tmp_path / "miniimagenet")
    path = tmp_path / "miniimagenet" / "images" / "n1_0.jpg"
    large = picture("n1", 0).convert("L").resize((200, 120))
    large.save(path)
    with Image.open(path) as saved:
        expected = np.asarray(saved.convert("RGB").resize((84, 84), Image.Resampling.LANCZOS))
    found = miniimagenet(tmp_path).train.images[0, 0].numpy()
    assert np.array_equal(found, expected.transpose(2, 0, 1))


def test_changed_pictures_are_decoded_again(tmp_path: Path) -> None:
    make_csv(tmp_path / "miniimagenet")
    before = miniimagenet(tmp_path).train.images[0, 0].clone()
    path = tmp_path / "miniimagenet" / "images" / "n1_0.jpg"
    path.write_bytes(jpeg("n9", 2))
    os.utime(path, ns=(1, 1))
    assert not np.array_equal(before, miniimagenet(tmp_path).train.images[0, 0])


class Malicious:
    """What a harmful pickle looks like: it runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["alone", "in the dict", "in an array"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_code_in_a_pickle_is_not_run(where: str, protocol: int, tmp_path: Path) -> None:
    make_pickle(tmp_path / "miniimagenet")
    trap = tmp_path / "trap"
    harm: Any = Malicious(trap)
    if where == "in the dict":
        harm = {"image_data": np.zeros(3), "class_dict": harm}
    elif where == "in an array":
        harm = {"image_data": np.array([harm], dtype=object), "class_dict": {}}
    path = tmp_path / "miniimagenet" / "mini-imagenet-cache-train.pkl"
    content = pickle.dumps(harm, protocol=protocol)
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"train\.pkl is not a pickle of plain NumPy arrays .*(mkdir|'O8').*nothing in it"
    ):
        miniimagenet(tmp_path)
    assert not trap.exists()
    assert path.read_bytes() == content
    pickle.loads(content)
    assert trap.exists(), "the trap is one"


@pytest.mark.parametrize("name", ["builtins eval", "numpy load", "numpy.core.multiarray fromfile", "os system"])
def test_other_functions_are_not_even_found(name: str) -> None:
    module, _, function = name.partition(" ")
    with pytest.raises(DataError, match=f"{module}.{function}"):
        load_arrays(io.BytesIO(f"c{module}\n{function}\n.".encode()), "it")


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({"image_data": 1})])
def test_what_is_no_such_pickle_is_refused(content: bytes, tmp_path: Path) -> None:
    make_pickle(tmp_path / "miniimagenet")
    (tmp_path / "miniimagenet" / "mini-imagenet-cache-val.pkl").write_bytes(content)
    with pytest.raises(DataError, match=r"val\.pkl"):
        miniimagenet(tmp_path)


def test_damaged_npz_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_npz(tmp_path / "miniimagenet", monkeypatch)
    path = tmp_path / "miniimagenet" / "miniimagenet_test_200.npz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged"):
        miniimagenet(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,class\na,b\n", "columns filename and label"),
        ("filename,label\nnone.jpg,n1\n", r"not there: .*none\.jpg"),
        ("filename,label\n../train.csv,n1\n", "not a file of the folder"),
        ("filename,label\nn1_0.jpg,n1\nn1_1.jpg,n1\nn2_0.jpg,n2\n", "different numbers"),
        ("filename,label\nn4_0.jpg,n4\n", r"share classes \(n4\)"),
    ],
    ids=["columns", "missing picture", "outside", "uneven", "mixed"],
)
def test_wrong_csv_is_refused(text: str, says: str, tmp_path: Path) -> None:
    make_csv(tmp_path / "miniimagenet")
    (tmp_path / "miniimagenet" / "train.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        miniimagenet(tmp_path)


def test_missing_data_is_one_sentence_with_files_folder_and_checksums(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        miniimagenet()
    message = str(caught.value)
    for part in (*CSV_SHA256.values(), *(source.sha256 for source in NPZ.values()), str(cache), "root=", "PZOBO_DATA"):
        assert part in message
    assert "mini-imagenet-cache-train.pkl" in message
    assert "\n" not in message
    with pytest.raises(DataError) as caught:
        miniimagenet(form="pickle")
    assert "csv" not in str(caught.value)
    with pytest.raises(OptionError, match="form='zip'"):
        miniimagenet(form="zip")  # type: ignore[arg-type]


def test_real_validation_part(request: pytest.FixtureRequest) -> None:
    """The smallest part of the compact form: decoding all would take twenty seconds."""
    folder = folder_with("miniimagenet", request)
    part = load("npz", "val", folder / NPZ["val"].path, folder)
    assert (len(part), part.per_class, part.shape) == (16, 200, (3, 84, 84))
    listed = {row[1] for row in MODULE.rows_of(folder / "miniimagenet" / "val.csv")}
    assert set(part.names) == listed
    # Near what everyone normalises by, which is of the training part.
    values = part.images[:, :40].double() / 255
    for channel in range(3):
        assert values[:, :, channel].mean().item() == pytest.approx(part.mean[channel], abs=0.05)
        assert values[:, :, channel].std().item() == pytest.approx(part.std[channel], abs=0.05)
