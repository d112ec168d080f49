"""Who else hears of a run? Signals that ask it to stop, and TensorBoard."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pzobo.errors import OptionError
from pzobo.run_folder import RunFolder

Row = dict[str, Any]


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Signals that asked for a stop, so that the step in work can end first; a second Ctrl-C stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def board(folder: RunFolder | None) -> Iterator[Callable[[Row], None]]:
    """A writer of rows for TensorBoard, or of nothing."""
    if folder is None:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError("tensorboard=True needs the package: pip install tensorboard.") from error
    writer = SummaryWriter(str(folder.path))

    def add(row: Row) -> None:
        for key, value in row.items():
            if key not in ("step", "seconds") and isinstance(value, (int, float)):
                writer.add_scalar(key, value, row["step"])

    try:
        yield add
    finally:
        writer.close()
