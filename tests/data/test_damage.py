"""Is a data file that is damaged, or made to do harm, refused by one sentence?"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pzobo.data import DataError, archives, miniimagenet
from pzobo.data.cache import cached
from pzobo.data.idx import parse_idx
from pzobo.data.read_miniimagenet import from_npz, from_pickle, rows_of
from pzobo.data.read_omniglot import decode
from pzobo.data.safe_pickle import load_arrays

from .test_read_miniimagenet import make_csv


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (84, 84), (9, 8, 7)).save(buffer, "jpeg")
    return buffer.getvalue()


def npz(**changes: Any) -> bytes:
    """Two pictures of two classes, with other arrays in place of some; None for one that is not there."""
    picture = np.frombuffer(jpeg(), np.uint8)
    found = {
        "jpeg": np.concatenate([picture, picture]),
        "offsets": np.array([0, len(picture), 2 * len(picture)]),
        "labels": np.array([0, 1]),
        "wnids": np.array(["n1", "n2"]),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{key: value for key, value in {**found, **changes}.items() if value is not None})
    return buffer.getvalue()


def test_the_archive_of_these_tests_is_a_good_one() -> None:
    images, names = from_npz(npz(), "it")
    assert images.shape == (2, 1, 3, 84, 84)
    assert names == ("n1", "n2")


@pytest.mark.parametrize("key", ["jpeg", "offsets", "labels", "wnids"])
def test_arrays_of_another_form(key: str) -> None:
    others = [None, np.array(0), np.array([[0]]), np.array([], dtype=np.int64), np.array([1.5]), np.array([10**6] * 3)]
    for other in [*others, np.array(["x"]), np.array([-1, 0]), np.array([None, {}], dtype=object)]:
        with pytest.raises(DataError, match=r"^\S* ?\S* ?it |'.*' in it|npy in it"):
            from_npz(npz(**{key: other}), "it")
    for kind in (np.float64, np.bool_):  # of the right length, so that its kind alone is wrong
        good = np.load(io.BytesIO(npz()))[key]
        if good.dtype.kind != "U":
            with pytest.raises(DataError, match="does not hold jpeg files"):
                from_npz(npz(**{key: good.astype(kind)}), "it")


def test_cut_off_at_every_place() -> None:
    """Of each kind of file, its beginnings."""
    whole = npz()
    for end in range(0, len(whole), 97):
        with pytest.raises(DataError, match="it"):
            from_npz(whole[:end], "it")
    packed = gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes(5))
    for end in range(len(packed)):
        with pytest.raises(DataError, match="it "):
            parse_idx(packed[:end], "it")
    pickled = pickle.dumps({"image_data": np.zeros((1, 84, 84, 3), np.uint8), "class_dict": {"a": [0]}})
    for end in [*range(300), *range(300, len(pickled), 997), len(pickled) - 1]:
        with pytest.raises(DataError, match="it is not a pickle"):
            load_arrays(io.BytesIO(pickled[:end]), "it")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b/c.png", jpeg() * 3)
    for end in range(0, len(buffer.getvalue()), 41):
        with pytest.raises(DataError, match="it"):
            decode(buffer.getvalue()[:end], "it")


def test_empty_archives() -> None:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    assert decode(buffer.getvalue(), "it") == {}
    with pytest.raises(DataError, match="it has no array 'jpeg'"):
        from_npz(buffer.getvalue(), "it")
    with pytest.raises(DataError, match="not a whole zip archive"):
        from_npz(b"", "it")
    plain = io.BytesIO()
    np.save(plain, np.zeros(3))
    with pytest.raises(DataError, match="not a whole zip archive"):
        from_npz(plain.getvalue(), "it")


# What claims more than it has, or unpacks to more than there is


def test_headers_that_claim_too_much() -> None:
    for shape in [(10**9, 1000), (2**32 - 1, 2**32 - 1), (0, 2**32 - 1, 2**32 - 1, 2**32 - 1)]:
        content = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", n % 2**32) for n in shape)
        with pytest.raises(DataError, match="it has"):
            parse_idx(gzip.compress(content), "it")
    for claim in ("(1000000000000,)", "(0, -1)", "()", "[" * 500):
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {claim}, }}".encode()
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("jpeg.npy", array)
        with pytest.raises(DataError, match=r"jpeg\.npy in it is not a whole array|'jpeg' in it"):
            from_npz(buffer.getvalue(), "it")


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="unpacks to more than"):
        parse_idx(gzip.compress(bytes(2**29 + 10), 1), "it")
    monkeypatch.setattr(archives, "LARGEST", 10**5)
    with pytest.raises(DataError, match="would unpack to"):
        from_npz(npz(more=np.zeros(10**6)), "it")
    buffer = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(buffer, "png")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("a/b/c.png", buffer.getvalue())
    with pytest.raises(DataError, match="9000 x 9000 pixels"):
        decode(archive.getvalue(), "it")


OPCODES = {
    "a place far away": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    "an array of any size": b"\x80\x02cnumpy\nndarray\n(K\x64\x8a\x06\x00\x00\x00\x00\x00\x01t\x85R.",
    "an array of objects": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I9999999999\ntS'O'\ntR.",
    "a type of any size": b"cnumpy\ndtype\n(S'V99999999999'\ntR.",
    "objects": b"cnumpy\ndtype\n(S'O8'\ntR.",
    "another codec": b"c_codecs\nencode\n(Va\nS'bz2_codec'\ntR.",
    "too few bytes": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i8'\ntRS'abc'\ntR.",
    "bytes that are not there": b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00a.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_pickles_that_ask_for_too_much(name: str) -> None:
    with pytest.raises(DataError, match="it is not a pickle of plain NumPy arrays"):
        load_arrays(io.BytesIO(OPCODES[name]), "it")


def test_nested_lists_that_are_shared_take_no_time(tmp_path: Path) -> None:
    """2^40 numbers in forty lists."""
    rows: Any = [0]
    for _ in range(40):
        rows = [rows, rows]
    images = np.zeros((2, 84, 84, 3), np.uint8)
    for content in ({"a": rows}, {"a": rows, "b": [1]}, {"a": [0, 0, 0]}, {"a": [5]}, {}, [1], {("a",): [0]}):
        (tmp_path / "it.pkl").write_bytes(pickle.dumps({"image_data": images, "class_dict": content}))
        with pytest.raises(DataError, match="class_dict"):
            from_pickle(tmp_path / "it.pkl")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["u1", ">i4", "<f8", "?", "S3", "U2", "f2"])
def test_arrays_of_numbers_come_as_they_are(kind: str, protocol: int) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    for value in (array, array.transpose(), array[:0], array[0, 1, 2]):
        found = load_arrays(io.BytesIO(pickle.dumps(value, protocol=protocol)), "it")
        assert np.array_equal(found, value)
        assert found.dtype.newbyteorder("=") == value.dtype.newbyteorder("=")


# Labels and names


@pytest.mark.parametrize(
    "text",
    [
        "filename,label\nn1_0.jpg,\n",
        "filename,label\n,n1\n",
        "filename,label\nn1_0.jpg\n",
        'filename,label\nn1_0.jpg,"a\nb"\n',
        'filename,label\n"n1\n0.jpg",n1\n',
        "filename,label\nn1\0.jpg,n1\n",
        "filename,label\nn1_0.jpg,n\0\n",
        "filename,label\nn1_0.jpg,a\u2028b\n",
        "filename,label\n" + "x" * 200_000 + ",n1\n",
        "\0",
        "",
        "filename,label\n",
        "filename,label\n..,n1\n",
        "filename,label\n" + "x" * 300 + ",n1\n",
    ],
)
def test_rows_without_a_name_or_a_label(text: str, tmp_path: Path) -> None:
    make_csv(tmp_path / "miniimagenet")
    (tmp_path / "miniimagenet" / "train.csv").write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=r"train\.csv|images/\.\."):
        miniimagenet(tmp_path)


def test_a_csv_file_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "it.csv").write_bytes("filename,label\nä.jpg,ü\n".encode("latin1"))
    with pytest.raises(DataError, match="cannot be read as a CSV file"):
        rows_of(tmp_path / "it.csv")
    (tmp_path / "it.csv").write_bytes("filename,label\nä.jpg,ü\n".encode())
    assert rows_of(tmp_path / "it.csv") == [("ä.jpg", "ü")]


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\x1b[2J"])
def test_classes_that_have_no_name(name: str, cache: Path) -> None:
    with pytest.raises(DataError, match="names that can be printed"):
        cached("it", lambda: (np.zeros((1, 1, 1, 2, 2), np.uint8), (name,)))
    assert not (cache / "images" / "it.npy").exists()


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"[" * 10_000, "0-d", "1-d", "floats", "names"])
def test_a_damaged_cache_is_made_again(damage: Any, cache: Path) -> None:
    array = np.full((1, 1, 1, 2, 2), 7, np.uint8)
    cached("it", lambda: (array, ("a b \N{SNOWMAN}",)))
    path = cache / "images" / "it.npy"
    if damage == "names":
        path.with_suffix(".json").write_text("[3]")
    elif isinstance(damage, str):
        np.save(path, {"0-d": np.array(3), "1-d": array.reshape(-1)[:1], "floats": array.astype(float)}[damage])
    else:
        path.write_bytes(damage)
    with pytest.warns(UserWarning, match="is made again"):
        found, names = cached("it", lambda: (array, ("a b \N{SNOWMAN}",)))
    assert torch.equal(found, torch.from_numpy(array))
    assert names == ("a b \N{SNOWMAN}",)
