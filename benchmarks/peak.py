"""How much memory does an action take at its peak? It is measured in a process of its own, so that all begin alike."""

import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

from pzobo.runs.memory import Peak

SECONDS = 600
"""After which a measurement is given up."""


def peak_of(action: Callable[[], Any], before: Callable[[], Any]) -> float | None:
    """Megabytes above what was in use before it, in a process that begins where this one is.

    Args:
        action: what is measured.
        before: what is run first: what is in files, such as libraries, is not there after a fork until it is used.
    """
    gc.collect()
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()

    def run() -> None:
        before()
        peak = Peak()
        with peak:
            action()
        queue.put(peak.megabytes)

    process = fork.Process(target=run)
    process.start()
    process.join(SECONDS)
    return None if queue.empty() else queue.get()
