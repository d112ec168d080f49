"""How are libraries imported that only data needs? When they are used, and with a sentence if they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from pzobo.errors import PzoboError


class MissingExtraError(PzoboError, ImportError):
    """A library that belongs to an extra of the package is not installed."""


def need(module: str) -> Any:
    """The module of this name, as in `need("sklearn.datasets")`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.partition('.')[0]} could not be imported ({error}): install it with pip install 'pzobo[bench]'."
        ) from error
