"""What if a library is missing that only an extra of the package brings? A sentence says which, and the command."""

from __future__ import annotations

import importlib
from typing import Any

from pzobo.errors import MissingExtraError


def need(module: str, extra: str = "bench") -> Any:
    """The module of this name, imported now, as in `need("sklearn.datasets")`.

    Args:
        module: as in an import.
        extra: which of the package's extras brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{module} could not be imported ({error}). {advice(extra)}") from error


def advice(extra: str = "bench") -> str:
    """How to install an extra, as a sentence."""
    return (
        f"It comes with the extra {extra!r}: pip install 'pzobo[{extra}]', or in a clone pip install -e '.[{extra}]'."
    )
