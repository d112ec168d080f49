"""Where do random numbers stand? The generators of torch, Python and NumPy: seeded for a run, saved and restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pzobo.errors import OptionError


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's, Python's and NumPy's generators seeded for a run, and afterwards as they were."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise OptionError(f"seed={seed!r}: must be a whole number of 64 bits.")
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    python, numpy = random.getstate(), _numpy()
    numpy_before = None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpy_before)


def _numpy() -> Any:
    """NumPy, if it is there: a black box may draw from it."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def random_state(device: torch.device) -> dict[str, Any]:
    """Where the generators stand: torch's (the device's too), Python's and NumPy's."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if (numpy := _numpy()) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Let the generators go on where `random_state` was taken."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if (numpy := _numpy()) is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def scalar_types() -> list[Any]:
    """What a file needs to hold NumPy's numbers: a schedule of a learning rate often makes some."""
    if (numpy := _numpy()) is None:
        return []
    return [numpy.float64(0).__reduce__()[0], numpy.dtype, *{type(numpy.dtype(code)) for code in "?bhilqBHILQefd"}]
