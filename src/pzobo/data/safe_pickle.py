"""How is a pickle read without running its code? Only plain containers and NumPy arrays are let through."""

from __future__ import annotations

import io
import pickle
from typing import Any

from pzobo.data.lookup import DataError

# All that NumPy's arrays and number types name in a pickle, in its old and new module layout. None of these reaches
# other code: they fill memory from bytes, and dtype takes a description. Python 2's strings come through _codecs.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    *((f"numpy.{core}.{module}", name) for core in ("core", "_core") for module, name in (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    )),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def load_arrays(content: io.BufferedIOBase, name: str) -> Any:
    """What a pickle of plain containers and arrays holds; anything else in it is refused before it is imported.

    Args:
        content: the file, opened in binary mode.
        name: for the error.
    """
    try:
        return _Unpickler(content, encoding="latin1").load()
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(
            f"{name} is not a pickle of plain NumPy arrays ({error}); nothing in it was run, and it was left as it is."
        ) from error
