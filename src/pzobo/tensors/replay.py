"""How is a path run again under the conditions of the first? The same autocast, random numbers and module buffers.

Perturbed paths must differ from the base path in x alone (common random numbers): with other dropout masks the noise
of a path difference would grow as 1/mu^2. Buffers count as well: spectral normalisation goes on with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pzobo.tensors.modules import Buffers

States = tuple[tuple[torch.device | None, Tensor], ...]


def devices_of(leaves: Iterable[Any]) -> tuple[torch.device, ...]:
    """The devices, other than the CPU, that have random numbers of their own and hold some of these tensors."""
    found = dict.fromkeys(leaf.device for leaf in leaves if isinstance(leaf, Tensor))
    return tuple([device for device in found if device.type not in ("cpu", "meta")])


class Replay:
    """Conditions of a first evaluation, inside of `first()`; `again()` restores them for another.

    `start()` and `stop()` note the random state alone, for those who never evaluate all of it again.
    """

    def __init__(self, tensors: Sequence[Tensor], modules: Sequence[nn.Module] = (), compiled: bool = False) -> None:
        self._devices = devices_of(tensors)
        kinds = ("cpu", *{device.type for device in self._devices}) if self._devices else ("cpu",)
        self._autocast = [(kind, *_autocast(kind)) for kind in kinds]
        self._tensors, self._modules = tensors, modules
        self._compiled = compiled
        self._buffers: Buffers | None = None
        self._at_first = Buffers()
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

    @contextmanager
    def first(self) -> Iterator[None]:
        """Around the first evaluation."""
        self.start()
        self._at_first = Buffers()
        if self._compiled:  # such code does not call hooks: the modules that it called at the first look must do
            self._at_first.keep(self._modules)
            self._buffers = self._at_first
            try:
                yield
            finally:
                self._buffers = None
        else:
            with self._at_first.noted():
                yield
        self.stop()

    @property
    def autocast(self) -> dict[str, torch.dtype]:
        """What devices autocast to, where they do."""
        return {kind: dtype for kind, enabled, dtype in self._autocast if enabled}

    @property
    def random(self) -> bool:
        """Whether the first evaluation drew random numbers."""
        return bool(self._random)

    @property
    def wrote(self) -> bool:
        """Whether buffers of modules are not as they were before the first evaluation."""
        return self._at_first.changed()

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
        if self._at_first.changed():
            stack.enter_context(self._at_first.put_back())
        if self._compiled:
            stack.enter_context(random_state_kept(self._devices))
            stack.enter_context(self._undoing())
        else:
            stack.enter_context(watched(self._devices))
        if self._random:
            _set(self._random)
        return stack

    def eager(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs beside compiled code, as `prepare` does: what it writes into buffers inside of `again()`
        is undone. Compiled code itself cannot write into buffers, and must not be called where there are hooks."""
        if not self._compiled:
            return function

        def noted(*args: Any) -> Any:
            if self._buffers is None:
                return function(*args)
            with self._buffers.noted():
                return function(*args)

        return noted

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        around, self._buffers = self._buffers, Buffers()
        try:
            yield
        finally:
            self._buffers.restore()
            self._buffers = around


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


class random_state_kept:
    """What is drawn inside, on the CPU and on these devices, leaves no trace."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._devices = devices

    def __enter__(self) -> None:
        self._before = _states(self._devices)

    def __exit__(self, *error: object) -> None:
        _set(self._before)


@contextmanager
def forked(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Random numbers of the CPU and of these devices begin anew at a seed inside, and go on after as if nothing were.

    Other devices are left alone; without any, one that begins to work inside is seeded too.
    """
    with random_state_kept(devices):
        if not devices:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        for device in devices:
            module = torch.get_device_module(device)
            with module.device(device):
                module.manual_seed(seed)
        yield


class uncached:
    """Autocast without its cache, which would keep a copy of every y of a path."""

    def __enter__(self) -> None:
        self._before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch.set_autocast_cache_enabled(self._before)


@contextmanager
def watched(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Buffers of the modules that this thread calls inside, and the random state, are restored after."""
    buffers = Buffers()
    try:
        with random_state_kept(devices), buffers.noted():
            yield
    finally:
        buffers.restore()
