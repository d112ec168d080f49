"""How is a device watched that is not there? Tensors without data ("meta") run under a mode that counts.

What is counted are the bytes alive and their peak, what the host reads (each read would wait for a device), copies from
the host and those of them that would wait for it, and operations (each would be a launch).
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class Device(TorchDispatchMode):
    """A device with no numbers: everything that is read from it is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.operations = 0
        self.peak_at = ""
        self.reads: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._storages: dict[int, Any] = {}

    def reset(self) -> None:
        """Begin to count anew; what is alive stays."""
        self.peak, self.operations = self.live, 0
        self.reads.clear(), self.sent.clear(), self.waits.clear(), self.kinds.clear()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is aten._local_scalar_dense.default and _here(args[0]):
            self.reads[_line()] += 1
            return 1.0 if args[0].is_floating_point() else 1
        if function is aten.equal.default and _here(args[0]):
            self.reads[_line()] += 1
            return True
        # Under vmap a number may stand where a tensor does.
        if function in (aten._to_copy.default, aten.copy_.default) and isinstance(args[0], Tensor):
            source, target = self._ends(function, args, kwargs)
            if _here(source) and target.type == "cpu":
                self.reads[_line()] += 1
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            if not _here(source) and target.type == "meta":
                self.sent[_line()] += source.nbytes
                if not (kwargs.get("non_blocking") or (function is aten.copy_.default and args[2:] == (True,))):
                    self.waits[_line()] += 1
        answer = function(*args, **kwargs)
        found = [leaf for leaf in tree_leaves(answer) if _here(leaf)]
        for leaf in found:
            self._see(leaf)
        # What writes into many tensors at once answers with none.
        runs_there = found or any(_here(leaf) for leaf in tree_leaves(args))
        if runs_there and not function.is_view and not any(word in str(function) for word in ("detach", "empty")):
            self.operations += 1
            self.kinds[str(function)] += 1
        return answer

    @staticmethod
    def _ends(function: Any, args: Any, kwargs: Any) -> tuple[Tensor, torch.device]:
        if function is aten.copy_.default:
            return args[1], args[0].device
        device = kwargs.get("device")
        return args[0], args[0].device if device is None else torch.device(device)

    def _see(self, leaf: Tensor) -> None:
        storage = leaf.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self.live += size

        def gone(_: Any) -> None:
            self.live -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, gone)
        if self.live > self.peak:
            self.peak, self.peak_at = self.live, _line()


def _here(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type == "meta"


def _line() -> str:
    """The line of the library that asked, for whoever wants to know where."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if "/pzobo/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.split('/pzobo/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the library"
