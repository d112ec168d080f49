"""How is a path run again under the conditions of the first? The same autocast, random numbers and module buffers.

Perturbed paths must differ from the base path in x alone (common random numbers): with other dropout masks the noise
of a path difference would grow as 1/mu^2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn


class Replay:
    """Conditions of a first evaluation, made inside `recording()`; `again()` restores them for another."""

    def __init__(self, tensors: Iterable[Tensor], modules: Iterable[nn.Module] = ()) -> None:
        self._devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self._autocast = {kind: _autocast(kind) for kind in {"cpu", *(d.type for d in self._devices)}}
        self._buffers = [buffer for module in modules for buffer in module.buffers(recurse=False)]
        self._random: dict[torch.device | None, Tensor] = {}

    def _states(self) -> dict[torch.device | None, Tensor]:
        states: dict[torch.device | None, Tensor] = {None: torch.get_rng_state()}
        for device in self._devices:
            states[device] = torch.get_device_module(device).get_rng_state(device)
        return states

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The first evaluation. The random state before it is kept if it was used."""
        before = self._states()
        yield
        if any(not torch.equal(state, before[device]) for device, state in self._states().items()):
            self._random = before

    @property
    def random(self) -> bool:
        """Whether the first evaluation drew random numbers."""
        return bool(self._random)

    @contextmanager
    def again(self) -> Iterator[None]:
        """The same conditions once more. What is drawn or written inside leaves no trace outside."""
        with ExitStack() as stack:
            for kind, (enabled, dtype) in self._autocast.items():
                if _autocast(kind) != (enabled, dtype):
                    stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype))
            if self._random:
                stack.enter_context(_random_state(self._random))
            if self._buffers:
                stack.enter_context(frozen(self._buffers))
            yield


def _autocast(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _set(states: dict[torch.device | None, Tensor]) -> None:
    for device, state in states.items():
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def _random_state(states: dict[torch.device | None, Tensor]) -> Iterator[None]:
    before: dict[torch.device | None, Tensor] = {
        device: torch.get_rng_state() if device is None else torch.get_device_module(device).get_rng_state(device)
        for device in states
    }
    _set(states)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def frozen(buffers: Iterable[Tensor]) -> Iterator[None]:
    """Whatever happens to these buffers inside is undone."""
    kept = [(buffer, buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


@contextmanager
def watched() -> Iterator[list[nn.Module]]:
    """The modules with buffers that are called inside; their buffers and the random state are restored afterwards."""
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def note(module: nn.Module, _args: object) -> None:
        if module not in seen:
            kept = [(buffer, buffer.clone()) for buffer in module.buffers(recurse=False)]
            if kept:
                seen[module] = kept

    modules: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with torch.random.fork_rng():
            yield modules
    finally:
        hook.remove()
        modules.extend(seen)
        with torch.no_grad():
            for kept in seen.values():
                for buffer, value in kept:
                    buffer.copy_(value)
