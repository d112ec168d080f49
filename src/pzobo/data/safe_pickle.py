"""How is a pickle read without running its code? Only plain containers and NumPy arrays of numbers are let through.

Nothing of NumPy's own is called with what the file says: it makes room for any shape, and for arrays of objects, before
it looks whether the file has that many bytes.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import pickletools
from typing import IO, Any

from pzobo.data.lookup import DataError
from pzobo.extras import need


class _Dtype:
    """numpy.dtype(code), and the state that sets its byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code[:1] not in "biufSU" or not code[1:].isdecimal() or len(code) > 6:
            raise pickle.UnpicklingError(f"it asks for numbers of type {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "="

    def made(self) -> Any:
        return need("numpy").dtype(self.order + self.code)


class _Kind:
    """numpy.ndarray, as an argument that cannot be called."""


def _filled(raw: Any, dtype: _Dtype, shape: Any, order: str = "C") -> Any:
    """An array from its bytes, which must be as many as its shape needs."""
    content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)  # a str: from Python 2
    made = dtype.made()
    if math.prod(shape) * made.itemsize != len(content) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise pickle.UnpicklingError(f"it has an array of shape {shape} with {len(content)} bytes")
    return need("numpy").frombuffer(content, made).reshape(shape, order=order)


@functools.cache
def _array_type() -> Any:
    """An array that is filled by the state that follows it in the file."""

    class Filled(need("numpy").ndarray):  # type: ignore[misc]
        def __setstate__(self, state: Any) -> None:
            shape, dtype, fortran, raw = state[-4:]
            found = _filled(raw, dtype, shape, "F" if fortran else "C")
            super().__setstate__((1, found.shape, found.dtype, False, found.tobytes()))

    return Filled


def _reconstruct(kind: Any, shape: Any, code: Any) -> Any:
    if shape != (0,):
        raise pickle.UnpicklingError(f"it asks for an array of shape {shape} without its bytes")
    return _array_type()(0, "b")


def _scalar(dtype: _Dtype, raw: Any) -> Any:
    return _filled(raw, dtype, (1,))[0]


def _encode(text: str, encoding: str) -> bytes:
    """How bytes come in old pickles: by this encoding; no other codec is looked for."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


def _nothing() -> bytes:
    """How no bytes come in old pickles."""
    return b""


# All that NumPy's arrays and numbers name in a pickle, in its old and new module layout.
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Kind(),
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _nothing,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _filled for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]


def load_arrays(content: IO[bytes], name: str) -> Any:
    """What a pickle of plain containers and arrays holds; anything else in it is refused, and nothing is imported.

    Args:
        content: the file, opened in binary mode.
        name: for the error.
    """
    try:
        _check_places(content)
        return _Unpickler(content, encoding="latin1").load()
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(
            f"{name} is not a pickle of plain NumPy arrays ({error}); nothing in it was run, and it was left as it is."
        ) from error


def _check_places(content: IO[bytes]) -> None:
    """Refuse a place in the memo beyond all that can be in it: Python would make room for any."""
    start = content.tell()
    for count, (opcode, place, _) in enumerate(pickletools.genops(content)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not (isinstance(place, int) and 0 <= place <= count):
            raise pickle.UnpicklingError(f"it has a place {place} after {count} steps")
    content.seek(start, io.SEEK_SET)
