"""Is a value what it must be? One floating-point number, or finite; a sentence if it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pzobo.errors import NonFiniteError, ScalarLossError
from pzobo.tensors import trees


def scalar(value: Any, what: str) -> Tensor:
    """A loss's value, if it is one floating-point number."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point():
        return value
    found = f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value))
    raise ScalarLossError(
        f"{what} returned {found}; expected one floating-point number: reduce it with .mean() or .sum()."
    )


def check_x(variables: Sequence[Tensor]) -> None:
    """Refuse an x that is not finite."""
    if not trees.is_finite(variables):
        raise NonFiniteError("x holds NaN or infinity; look at the last step of the outer optimizer.")
