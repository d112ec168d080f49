"""How much memory is free, and did an operation fail for want of it?"""

from __future__ import annotations

import re
from pathlib import Path

import torch

_WANT = re.compile("allocate memory|not enough memory|out of memory|bad_alloc")


def free_bytes(device: torch.device) -> int | None:
    """What can still be used on a device; None where that cannot be told."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    if device.type != "cpu":
        return None
    try:
        found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def out_of_memory(error: BaseException) -> bool:
    """Whether this is how torch says that memory did not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or bool(_WANT.search(str(error)))
