"""How much memory does a run take? The peak during its steps, above what the process had before."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import torch

_MB = 2**20


class Peak:
    """Megabytes at the peak inside of `with` blocks, above what was in use when this was made.

    On a GPU it is torch's own account. On the CPU it is Linux's account of the whole process, whose mark is set back;
    elsewhere it is None.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.highest = device, 0.0
        with contextlib.suppress(OSError, AttributeError):  # give back what is free, or its use would not be seen
            ctypes.CDLL(None).malloc_trim(0)
        self.before = self._highest() if self._reset() else None

    @property
    def megabytes(self) -> float | None:
        """The peak so far."""
        return None if self.before is None else self.highest

    def __enter__(self) -> None:
        self._reset()

    def __exit__(self, *_: object) -> None:
        now = self._highest()
        if now is not None and self.before is not None:
            self.highest = max(self.highest, now - self.before)

    def _reset(self) -> bool:
        """Set the mark back to what is in use now, if the system lets us."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return True
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _highest(self) -> float | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / _MB
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 1024
        return None
