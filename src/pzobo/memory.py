"""How much memory does a run take? The peak since it began, above what the process had before."""

from __future__ import annotations

from pathlib import Path

import torch

_MB = 2**20


class Peak:
    """Megabytes at the peak since this was made, above what was in use then; None where the system does not tell.

    On a GPU it is torch's own account. On the CPU it is Linux's account of the whole process, whose mark is set back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before: float | None = torch.cuda.memory_allocated(device) / _MB
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5")
                self.before = _status("VmRSS")
            except OSError:
                self.before = None

    def megabytes(self) -> float | None:
        """The peak so far."""
        if self.before is None:
            return None
        now = torch.cuda.max_memory_allocated(self.device) / _MB if self.device.type == "cuda" else _status("VmHWM")
        return None if now is None else max(0.0, now - self.before)


def _status(key: str) -> float | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1]) / 1024
    return None
