"""How is a file written whole or not at all? Beside its place, under a name of its own, and then moved there.

A process that is killed leaves its half of a file behind: `remove_leftovers` finds it by its name, `.NAME.*.new`, and
by its lock, which ended with the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends, and vanishes if the block fails.

    Two processes may do so at once: either the one or the other is there at the end, whole. The folder is made if it
    is not there.

    Example:
        >>> with replacing(Path("images.npy")) as file:
        ...     numpy.save(file, images)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file, new = _begin(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(new, path)  # while the lock is held, so that nobody takes it for a leftover
        if fcntl is None:
            os.replace(new, path)  # Windows does not move an open file
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file or none, also when two processes do so at once."""
    with replacing(path) as file:
        file.write(content)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder; what a living one writes stays.

    Where there are no locks, nothing is removed: a leftover is better than a lost file.
    """
    for new in folder.glob(".*.new"):
        with contextlib.suppress(OSError), new.open("r+b") as file:
            if _locked(file, wait=False):
                new.unlink()


def _begin(path: Path) -> tuple[BinaryIO, Path]:
    """A new file beside `path`, locked as long as it is open."""
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        file = new.open("xb")
        _locked(file, wait=True)
        if os.fstat(file.fileno()).st_nlink > 0:
            return file, new
        file.close()  # between the two lines above, another process took it for a leftover


def _locked(file: BinaryIO, wait: bool) -> bool:
    """Lock a file for this process until it is closed; False if another process has it, or if there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
