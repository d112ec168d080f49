"""Where do random numbers stand? The generators of torch, Python and NumPy: seeded for a run, saved and restored."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pzobo.errors import OptionError
from pzobo.tensors.replay import forked


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Torch's, Python's and NumPy's generators seeded for a run, and afterwards as they were.

    Those of the CPU and of `devices`, and of the device that is in use now: others are left alone.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise OptionError(f"seed={seed!r}: must be a whole number of 64 bits.")
    used = dict.fromkeys([*devices, *current_devices()])
    python, numpy = random.getstate(), _numpy()
    numpy_before = None if numpy is None else numpy.random.get_state()
    with forked(seed, tuple(used)):
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpy_before)


def current_devices() -> list[torch.device]:
    """The GPU in use, if there is one and it has begun to work: to ask an idle one for its state would start it."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    return [torch.device("cuda", torch.cuda.current_device())]


def _numpy() -> Any:
    """NumPy, if it is there: a black box may draw from it."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def random_state(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Where the generators stand: torch's (those of the devices too), Python's and NumPy's."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if devices:
        state["devices"] = [torch.get_device_module(device).get_rng_state(device) for device in devices]
    if (numpy := _numpy()) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    return state


def set_random_state(state: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Let the generators go on where `random_state` was taken. Devices are told apart by their order."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    saved = state.get("devices", [state["cuda"]] if "cuda" in state else [])  # version 0.1 kept that of one GPU
    if len(saved) > len(devices):
        raise ValueError(f"it has the random numbers of {len(saved)} devices, and the run uses {len(devices)}")
    for device, mine in zip(devices, saved, strict=False):
        torch.get_device_module(device).set_rng_state(mine, device)
    if (numpy := _numpy()) is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def scalar_types() -> list[Any]:
    """What a file needs to hold NumPy's numbers: a schedule of a learning rate often makes some."""
    if (numpy := _numpy()) is None:
        return []
    return [numpy.float64(0).__reduce__()[0], numpy.dtype, *{type(numpy.dtype(code)) for code in "?bhilqBHILQefd"}]
