"""How is a path run again under the conditions of the first? The same autocast, random numbers and module buffers.

Perturbed paths must differ from the base path in x alone (common random numbers): with other dropout masks the noise
of a path difference would grow as 1/mu^2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

States = tuple[tuple[torch.device | None, Tensor], ...]


class Replay:
    """Conditions of a first evaluation, between `start()` and `stop()`; `again()` restores them for another."""

    def __init__(self, tensors: Sequence[Tensor], modules: Sequence[nn.Module] = (), compiled: bool = False) -> None:
        self._devices = tuple({t.device for t in tensors if t.device.type not in ("cpu", "meta")})
        kinds = ("cpu", *{device.type for device in self._devices}) if self._devices else ("cpu",)
        self._autocast = [(kind, *_autocast(kind)) for kind in kinds]
        self._tensors, self._modules = tensors, modules
        self._compiled = compiled
        self._before: States = ()
        self._random: States = ()

    def fresh(self) -> Replay:
        """For another first evaluation of the same."""
        return Replay(self._tensors, self._modules, self._compiled)

    def start(self) -> None:
        self._before = _states(self._devices)

    def stop(self) -> None:
        """The random state before the first evaluation is kept if that used it."""
        if any(not torch.equal(a[1], b[1]) for a, b in zip(self._before, _states(self._devices), strict=True)):
            self._random = self._before

    @property
    def random(self) -> bool:
        """Whether the first evaluation drew random numbers."""
        return bool(self._random)

    def now(self) -> States:
        """The random state at this moment, for `rewind`."""
        return _states(self._devices)

    def rewind(self, states: States = ()) -> None:
        """Inside of `again`: draw once more what was drawn after `now` gave these states, or from the start."""
        if self._random:
            _set(states or self._random)

    def again(self) -> AbstractContextManager[Any]:
        """The same conditions once more. What is drawn or written inside leaves no trace outside."""
        stack = ExitStack()
        for kind, enabled, dtype in self._autocast:
            if _autocast(kind) != (enabled, dtype):
                stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype))
        if self._compiled:  # such code does not call hooks: the modules that were seen at the first look must do
            stack.enter_context(random_state_kept(self._devices))
            stack.enter_context(frozen(buffers(self._modules)))
        else:
            stack.enter_context(watched(self._devices))
        if self._random:
            _set(self._random)
        return stack


def _autocast(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _states(devices: Sequence[torch.device]) -> States:
    """The random state of the CPU, and of these devices."""
    cpu = ((None, torch.default_generator.get_state()),)
    return cpu + tuple((device, torch.get_device_module(device).get_rng_state(device)) for device in devices)


def _set(states: States) -> None:
    for device, state in states:
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def rewinder(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """A function that puts the random state, of the CPU and of these tensors' devices, back to what it is now."""
    states = Replay(tensors).now()
    return lambda: _set(states)


@contextmanager
def random_state_kept(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """What is drawn inside, on the CPU and on these devices, leaves no trace."""
    before = _states(devices)
    try:
        yield
    finally:
        _set(before)


def buffers(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The modules' own buffers."""
    return [buffer for module in modules for buffer in module.buffers(recurse=False)]


@contextmanager
def uncached() -> Iterator[None]:
    """Autocast without its cache, which would keep a copy of every y of a path."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def frozen(buffers: Iterable[Tensor]) -> Iterator[None]:
    """Whatever happens to these buffers inside is undone."""
    kept = [(buffer, buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        _restore(kept)


def _restore(kept: list[tuple[Tensor, Tensor]]) -> None:
    """Put values back as if they had never changed: a graph that saved the buffer must not notice."""
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(buffer for buffer, _ in kept)):
        for buffer, value in kept:
            buffer.copy_(value)


@contextmanager
def watched(devices: Sequence[torch.device] = ()) -> Iterator[list[nn.Module]]:
    """The modules with buffers that this thread calls inside; their buffers and the random state are restored after."""
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    thread = threading.get_ident()

    def note(module: nn.Module, _args: object) -> None:
        if module not in seen and threading.get_ident() == thread:
            kept = [(buffer, buffer.clone()) for buffer in module.buffers(recurse=False)]
            if kept:
                seen[module] = kept

    modules: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with random_state_kept(devices):
            yield modules
    finally:
        hook.remove()
        modules.extend(seen)
        _restore([pair for kept in seen.values() for pair in kept])


@contextmanager
def writers() -> Iterator[list[nn.Module]]:
    """The modules that this thread calls inside and that write into their own buffers."""
    before: dict[nn.Module, list[tuple[Tensor, int]]] = {}
    thread = threading.get_ident()

    def note(module: nn.Module, _args: object) -> None:
        if module not in before and threading.get_ident() == thread:
            before[module] = [(buffer, buffer._version) for buffer in module.buffers(recurse=False)]

    found: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()
        found.extend(
            module
            for module, kept in before.items()
            if any(buffer._version != version for buffer, version in kept)
            or [id(b) for b in module.buffers(recurse=False)] != [id(b) for b, _ in kept]
        )
