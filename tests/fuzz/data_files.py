"""What reads files of data, and how are they damaged? Archives, arrays, tables and pickles."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from pzobo.data import read_miniimagenet
from pzobo.data.safe_pickle import load_arrays
from tests.fuzz.damage import TEXTS, Evil, other_bytes, other_trees


def picture(kind: str = "jpeg") -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((84, 84), 50).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


JPEG, PNG = picture(), picture("png")


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


NPZ = {
    "jpeg.npy": npy(np.frombuffer(JPEG * 2, np.uint8)),
    "offsets.npy": npy(np.array([0, len(JPEG), 2 * len(JPEG)])),
    "labels.npy": npy(np.array([0, 1])),
    "wnids.npy": npy(np.array(["n1", "n2"])),
}
OMNIGLOT = {"images/Greek/character01/01.png": PNG, "images/Greek/character02/01.png": PNG}


def packed(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@st.composite
def other_archives(draw: st.DrawFn, good: dict[str, bytes]) -> bytes:
    """A zip file with damage in one of its files, or in itself; or a bomb."""
    kind = draw(st.sampled_from(["inside", "outside", "array", "missing", "bomb"]))
    if kind == "outside":
        return draw(other_bytes(packed(good)))
    name = draw(st.sampled_from(sorted(good)))
    if kind == "inside":
        return packed({**good, name: draw(other_bytes(good[name]))}, draw(st.sampled_from([0, 8, 12, 14])))
    if kind == "array":
        dtype = draw(st.sampled_from(["u1", "i8", "f8", "U3", "S2", "?", "c8", "M8[s]"]))
        shape = draw(st.just([2]) | st.lists(st.integers(0, 4), max_size=3))
        return packed({**good, name: npy(np.full(shape, draw(st.integers(-2, 5))).astype(dtype))})
    if kind == "bomb":
        return packed({**good, name: good[name] + bytes(draw(st.integers(0, 2**26)))})
    return packed({key: value for key, value in good.items() if key != name})


@st.composite
def idx_files(draw: st.DrawFn) -> bytes:
    """A header that claims some shape, and some bytes; or damage to such a file."""
    shape = draw(st.lists(st.integers(0, 5) | st.sampled_from([2**31, 2**32 - 1, 10**6]), max_size=6))
    count = draw(st.just(int(np.prod([float(n) for n in shape]))) | st.integers(0, 50))
    content = bytes([0, 0, draw(st.sampled_from([8, 8, 8, 9])), draw(st.just(len(shape)) | st.integers(0, 255))])
    content += b"".join(struct.pack(">I", n) for n in shape) + bytes(min(count, 2**22))
    whole = gzip.compress(content, 1)
    return whole if draw(st.booleans()) else draw(other_bytes(whole))


GLOBALS = [
    "os system", "builtins eval", "numpy ndarray", "numpy dtype", "numpy load", "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray scalar", "numpy._core.numeric _frombuffer", "_codecs encode", "__builtin__ bytes",
]  # fmt: skip
OPCODES = st.one_of(
    st.sampled_from([b"(", b".", b"0", b"t", b"l", b"d", b"R", b"b", b"\x85", b"\x86", b"\x87", b"\x81", b"]", b"}"]),
    st.sampled_from([b"N", b"\x88", b"u", b"s", b"a", b"e", b"Q", b"2", b")", b"\x92", b"\x93", b"\x94", b"o"]),
    st.sampled_from(GLOBALS).map(lambda name: b"c" + name.replace(" ", "\n").encode() + b"\n"),
    st.integers(-(2**40), 2**40).map(lambda n: b"I%d\n" % n),
    st.sampled_from(["O8", "u1", "i8", "V9999999", "b", "latin1", "zlib", "U99999"]).map(
        lambda s: f"S'{s}'\n".encode()
    ),
    st.integers(0, 2**32 - 1).map(lambda n: b"r" + struct.pack("<I", n)),
    st.integers(0, 255).map(lambda n: b"h" + bytes([n])),
    st.integers(0, 2**63).map(lambda n: b"\x8e" + struct.pack("<Q", n)),
    st.binary(max_size=20).map(lambda b: b"\x8c" + bytes([len(b)]) + b),
)
IMAGES = {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"a": [0], "b": np.array([1])}}


@st.composite
def pickles(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["opcodes", "bytes", "values", "evil"]))
    protocol = draw(st.integers(0, 5))
    if kind == "opcodes":
        return b"".join(draw(st.lists(OPCODES, max_size=25))) + b"."
    if kind == "bytes":
        small = {**IMAGES, "image_data": np.zeros(3, np.uint8)}
        return draw(other_bytes(pickle.dumps(small, protocol)))
    if kind == "evil":
        return pickle.dumps({**IMAGES, "class_dict": Evil("@trap")}, protocol)
    return pickle.dumps(draw(other_trees({**IMAGES, "class_dict": {"a": [0], "b": [1]}})), protocol)


def unpickle(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("it.pkl").write_bytes(content)
        try:
            load_arrays(io.BytesIO(content), "it")
            images, names = read_miniimagenet.from_pickle(Path("it.pkl"))
            assert len(images) == len(names)
        finally:
            assert os.listdir() == ["it.pkl"]


def csv_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "images").mkdir()
        (Path(name) / "images" / "a.jpg").write_bytes(JPEG)
        (Path(name) / "it.csv").write_bytes(content)
        _, names = read_miniimagenet.from_csv(Path(name) / "it.csv")
        assert all(name and name.encode() in content for name in names)


CELLS = TEXTS | st.sampled_from(["a.jpg", "n1", "..", "/etc/passwd", '"', "a\nb", "\u2028"])
CSV = st.lists(st.lists(CELLS, max_size=3), max_size=4).map(
    lambda rows: ("filename,label\n" + "\n".join(map(",".join, rows))).encode("utf-8", "surrogatepass")
)
