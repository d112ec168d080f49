"""Who else hears of a run? Signals that ask it to stop, and TensorBoard."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pzobo.errors import MissingExtraError
from pzobo.extras import advice
from pzobo.runs.folder import RunFolder
from pzobo.runs.rows import Row

Listener = Callable[[Row], None]


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

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What is ignored (a shell's background job ignores Ctrl-C), or not Python's, stays as it is.
    ours = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in ours:
            signal.signal(number, ask)
        yield asked
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def obey(asked: Sequence[int]) -> None:
    """Stop, if a signal asked for it."""
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])


@contextmanager
def explained(sentence: Callable[[], str]) -> Iterator[None]:
    """A Ctrl-C inside gets a message that says what is saved; the innermost one counts.

    It is no class of its own: only a KeyboardInterrupt itself ends a process as a shell expects it of Ctrl-C, so that a
    loop of the shell ends too.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(str(stop) or sentence()) from None


def summary_writer() -> Any:
    """TensorBoard's writer, if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(f"tensorboard=True needs the package tensorboard. {advice('tensorboard')}") from error
    return SummaryWriter


@contextmanager
def board(kind: Any, folder: RunFolder | None, history: Sequence[Row]) -> Iterator[Listener]:
    """A writer of rows for TensorBoard, or of nothing.

    The history is written again on a resume: what a killed process had not yet written is not missing, and what it had
    written after its checkpoint does not count.
    """
    if kind is None or folder is None:
        yield lambda row: None
        return
    writer = kind(str(folder.path), purge_step=0)

    def add(row: Row) -> None:
        for key, value in row.items():
            if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                writer.add_scalar(key, value, row.step)

    try:
        for row in history:
            add(row)
        yield add
    finally:
        writer.close()
