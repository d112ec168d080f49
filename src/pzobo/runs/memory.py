"""How much memory does a run take? The peak during its steps; and what does not fit is refused."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from pzobo.errors import PzoboError, TooLargeError
from pzobo.tensors.room import out_of_memory

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

_MB = 2**20
_SELDOM = 0.1
_OVERFLOW = re.compile("size calculation overflow|multiplication overflow")


class Peak:
    """Megabytes at the peak outside of `aside` blocks, above what was in use when this was made.

    Of GPUs it is torch's own account, the sum over those in use. Without one it is Linux's account of the whole
    process, whose mark is set back; elsewhere it is None. Linux is asked before and after such a block, and else every
    tenth of a second: its mark keeps the peak until then, and asking takes as long as a fast step.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._gpus, self.highest = [device for device in devices if device.type == "cuda"], 0.0
        gc.collect()  # what is freed later, or is free already, would be missing from the peak
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self.before = self._highest() if self._reset() else None
        self._asked = -math.inf

    @property
    def megabytes(self) -> float | None:
        """The peak so far."""
        if self.before is None:
            return None
        if time.monotonic() - self._asked > _SELDOM:
            self._ask()
        return self.highest

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is used inside does not count."""
        self._ask()
        try:
            yield
        finally:
            self._reset()

    def _ask(self) -> None:
        now = self._highest()
        if now is not None and self.before is not None:
            self.highest = max(self.highest, now - self.before)
        self._asked = time.monotonic()

    def _reset(self) -> bool:
        """Set the mark back to what is in use now, if the system lets us."""
        if self._gpus:
            for device in self._gpus:
                torch.cuda.reset_peak_memory_stats(device)
            return True
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _highest(self) -> float | None:
        if self._gpus:
            return sum(torch.cuda.max_memory_allocated(device) for device in self._gpus) / _MB
        kilobytes = _field("/proc/self/status", "VmHWM:")
        return None if kilobytes is None else kilobytes / 1024


@contextlib.contextmanager
def within_memory() -> Iterator[None]:
    """What does not fit into the memory of this machine is a sentence, `TooLargeError`.

    Linux gives memory that it does not have, and kills the process that uses it. Inside, it refuses to give more than
    there is.
    """
    with contextlib.ExitStack() as stack:
        free = _field("/proc/meminfo", "MemAvailable:")
        used = _field("/proc/self/status", "VmData:")
        if resource is not None and free is not None and used is not None:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            wanted = int((free + used) * 1024)
            if soft == resource.RLIM_INFINITY or wanted < soft:
                resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
                stack.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))
        try:
            yield
        except PzoboError:
            raise
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) and not _OVERFLOW.search(str(error)):
                raise
            raise TooLargeError(
                f"This does not fit into the memory of this machine ({_why(error, free)}): choose smaller sizes."
            ) from error


def _why(error: BaseException, free: float | None) -> str:
    asked = re.search(r"allocate (\d+) bytes", str(error))
    if asked is None or free is None:
        return (str(error).strip().splitlines() or ["it is full"])[0][:200]
    return f"{int(asked[1]) / 2**30:.3g} GB are needed at once, {free / 2**20:.3g} GB are free"


def _field(file: str, name: str) -> float | None:
    """A number of Linux's own files, in kB."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return float(line.split()[1])
    return None
