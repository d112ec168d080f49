"""How does a long run show where it is? A bar with the loss, the time of a step and the time left."""

from __future__ import annotations

import sys
import time

from pzobo.errors import MissingExtraError
from pzobo.extras import advice
from pzobo.runs.rows import Row


class Progress:
    """A rich progress bar over the outer steps, or nothing."""

    def __init__(self, steps: int, done: int, wanted: bool | None) -> None:
        self._steps, self._done, self._bar = steps, done, None
        if wanted is False or (wanted is None and (sys.stderr is None or not sys.stderr.isatty())):
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
        except ImportError as error:
            if wanted:
                raise MissingExtraError(f"progress=True needs the package rich. {advice()}") from error
            return
        self._bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("outer loss {task.fields[loss]}"),
            TextColumn("{task.fields[pace]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._shown = 0.0

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps, completed=self._done, loss="", pace="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, row: Row) -> None:
        """Show a row of metrics, at most ten times a second."""
        now = time.monotonic()
        if self._bar is None or (now - self._shown < 0.1 and row.step < self._steps):
            return
        self._shown = now
        pace = f"{1e3 * row.seconds / row.step:.3g} ms a step" if row.step else ""
        self._bar.update(self._task, completed=row.step, loss=f"{row.outer_loss:.4g}", pace=pace)
