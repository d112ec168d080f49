"""What if a library is missing that only an extra of the package brings? A sentence says which, and the command."""

from __future__ import annotations

import importlib
from typing import Any

from pzobo.errors import MissingExtraError


def need(module: str, extra: str = "bench", least: tuple[int, ...] = ()) -> Any:
    """The module of this name, imported now, as in `need("sklearn.datasets")`.

    Args:
        module: as in an import.
        extra: which of the package's extras brings it.
        least: the first version that will do, as in `(1, 9)`.
    """
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{module} could not be imported ({error}). {advice(extra)}") from error
    if least and tuple(int(part) for part in found.__version__.split(".")[: len(least)]) < least:
        wanted = ".".join(map(str, least))
        raise MissingExtraError(f"{module} {found.__version__} is too old, {wanted} is needed. {advice(extra)}")
    return found


def advice(extra: str = "bench") -> str:
    """How to install an extra, as a sentence."""
    return (
        f"It comes with the extra {extra!r}: pip install 'pzobo[{extra}]', or in a clone pip install -e '.[{extra}]'."
    )
