"""Which modules does a piece of code call, and what does it do to their buffers? Hooks of torch tell, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules import module as torch_module

from pzobo.errors import StructureError

_MISSING: Any = object()

_OURS: set[int] = set()
"""The global hooks of this file, which are nobody else's business."""

_EVERYWHERE = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Buffers:
    """The buffers of the modules that a piece of code calls, as they were before; `restore` puts them back.

    A buffer can be written into, and it can be replaced by another one (`self.mean = 0.9 * self.mean + ...`).
    """

    def __init__(self) -> None:
        self._kept: dict[nn.Module, list[tuple[Tensor, Tensor, int]]] = {}
        self._replaced: dict[tuple[nn.Module, str], Tensor | None] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the code."""
        thread = threading.get_ident()

        last: dict[tuple[nn.Module, str], Tensor | None] = {}

        def replace(module: nn.Module, name: str, new: Tensor | None) -> None:
            if threading.get_ident() == thread:
                self._replaced.setdefault((module, name), module._buffers.get(name, _MISSING))
                last[module, name] = new

        hook = torch_module.register_module_buffer_registration_hook(replace)
        try:
            with _before_calls(self._keep):
                yield
        finally:
            hook.remove()
            for (module, name), new in last.items():
                # torch.func.functional_call has put back what was there before it.
                if module._buffers.get(name, _MISSING) is not new:
                    del self._replaced[module, name]

    def keep(self, modules: Sequence[nn.Module]) -> None:
        """Those of these modules, and of their parts."""
        for module in modules:
            self._keep(module)

    def changed(self) -> bool:
        """Whether any is not as it was."""
        return bool(self._replaced) or any(
            buffer._version != version for pairs in self._kept.values() for buffer, _, version in pairs
        )

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Inside they are as they were before."""
        values = [(buffer, buffer.clone()) for pairs in self._kept.values() for buffer, _, _ in pairs]
        there = [(module, name, module._buffers.get(name, _MISSING)) for module, name in self._replaced]
        self.restore()
        try:
            yield
        finally:
            for module, name, buffer in there:
                _place(module, name, buffer)
            _fill(values)

    def restore(self) -> None:
        """As if nothing had ever changed."""
        for (module, name), before in self._replaced.items():
            _place(module, name, before)
        _fill([(buffer, value) for pairs in self._kept.values() for buffer, value, _ in pairs])

    def _keep(self, module: nn.Module) -> None:
        if module in self._kept:
            return
        for part in module.modules():  # a module also writes into the buffers of parts that it does not call
            if part not in self._kept:
                self._kept[part] = [(b, _value(b, part), b._version) for b in part.buffers(recurse=False)]


@dataclass
class Calls:
    """What a piece of code calls."""

    modules: Sequence[nn.Module] = ()
    """With all their parts."""
    writers: Sequence[nn.Module] = ()
    """Those whose buffers it writes into or replaces."""


@contextmanager
def calls() -> Iterator[Calls]:
    """The modules that this thread calls inside; they are known at the end."""
    before: dict[nn.Module, list[tuple[Tensor, int]]] = {}

    def note(module: nn.Module) -> None:
        if module not in before:
            for part in module.modules():
                before.setdefault(part, [(buffer, buffer._version) for buffer in part.buffers(recurse=False)])

    found = Calls()
    try:
        with _before_calls(note):
            yield found
    finally:
        found.modules = tuple(before)
        found.writers = [
            module
            for module, kept in before.items()
            if any(buffer._version != version for buffer, version in kept)
            or [id(b) for b in module.buffers(recurse=False)] != [id(b) for b, _ in kept]
        ]


def conditions(modules: Sequence[nn.Module]) -> Hashable:
    """What decides how these modules are called: their hooks, those of all modules, `forward`, and whether they train.

    torch.compile looks at none of the hooks again, nor at a method of a class that is replaced.
    """
    everywhere = tuple([tuple([hook for hook in hooks if hook not in _OURS]) for hooks in _EVERYWHERE])
    return everywhere, tuple(
        [
            (m.training, getattr(type(m), "forward", None), *[tuple(getattr(m, hooks, ())) for hooks in _HOOKS])
            for m in modules
        ]
    )


@contextmanager
def _before_calls(note: Callable[[nn.Module], None]) -> Iterator[None]:
    """`note` gets each module before this thread calls it inside."""
    thread = threading.get_ident()

    def hear(module: nn.Module, _args: object) -> None:
        if threading.get_ident() == thread:
            note(module)

    hook = torch_module.register_module_forward_pre_hook(hear)
    _OURS.add(hook.id)
    try:
        yield
    finally:
        hook.remove()
        _OURS.discard(hook.id)


def _fill(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Put values into buffers; a graph that saved a buffer does not notice."""
    if not pairs:
        return
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(buffer for buffer, _ in pairs)):
        for buffer, value in pairs:
            buffer.copy_(value)


def _place(module: nn.Module, name: str, buffer: Tensor | None) -> None:
    if buffer is _MISSING:
        module._buffers.pop(name, None)
    else:
        module._buffers[name] = buffer


def _value(buffer: Tensor, module: nn.Module) -> Tensor:
    if nn.parameter.is_lazy(buffer):
        raise StructureError(
            f"{type(module).__name__} has a buffer without a size: it is a lazy module that was never called. "
            "Call it once on a batch before argmin does, so that its buffers can be kept the same on every path."
        )
    return buffer.clone()
