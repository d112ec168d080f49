"""What is in a folder of runs? Each run's settings, environment, metrics and end, as far as they are written."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pzobo.errors import OptionError
from pzobo.runs import names

Row = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """One run, read from its folder; `result` is None while it runs, or if it was killed.

    `rows` has the numbers of metrics.jsonl. What was written as null is NaN there, since JSON has neither NaN nor
    infinity. Rows with an accuracy have an error too.
    """

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: tuple[Row, ...]
    result: Mapping[str, Any] | None

    @property
    def experiment(self) -> str | None:
        """None for a run that is not of the paper."""
        return self.config.get("experiment")

    @property
    def method(self) -> str:
        return str(self.config.get("method", ""))

    @property
    def failed(self) -> str | None:
        """Why it failed, as a sentence, or None."""
        if self.result is None or self.result.get("stopped") != "failed":
            return None
        return str(self.result.get("error") or "no reason was recorded")

    def column(self, x: str, y: str) -> list[tuple[float, float]]:
        """The pairs (x, y) of the rows that have both."""
        return [(row[x], row[y]) for row in self.rows if y in row and not math.isnan(row.get(x, math.nan))]


def read(folder: Path) -> list[Run]:
    """Every run in a folder and the folders below it, in the order of their names.

    Raises:
        OptionError: there is no such folder, or no run in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder. Give the folder that `pzobo run` or pzobo.fit wrote its runs to.")
    runs = [run for path in sorted(folder.rglob(names.CONFIG)) if (run := _read(path.parent)) is not None]
    if not runs:
        raise OptionError(
            f"There is no run in {folder}: no folder in it has a {names.CONFIG} that can be read. "
            "Run an experiment first (pzobo run), or give the folder that its runs were written to."
        )
    return runs


def _read(folder: Path) -> Run | None:
    written = _json(folder / names.CONFIG)
    if written is None or not isinstance(written.get("config"), dict):
        warnings.warn(f"{folder / names.CONFIG} is not a run's configuration; this folder is left out.", stacklevel=3)
        return None
    metrics = folder / names.METRICS
    # A process that was killed leaves half a line, and perhaps half a character.
    text = metrics.read_text(encoding="utf-8", errors="replace") if metrics.is_file() else ""
    return Run(
        folder,
        written["config"],
        _json(folder / names.ENVIRONMENT) or {},
        tuple(_rows(text.splitlines())),
        _json(folder / names.RESULT),
    )


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _rows(lines: Iterable[str]) -> list[Row]:
    rows: list[Row] = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if not isinstance(values, dict):
            continue
        row = {key: _number(value) for key, value in values.items() if _is_metric(value)}
        if "accuracy" in row:
            row["error"] = 1 - row["accuracy"]
        # A run that was resumed from a checkpoint does again the steps that came after it: the later ones count.
        while rows and rows[-1].get("step", 0) > row.get("step", math.inf):
            rows.pop()
        rows.append(row)
    return rows


def _is_metric(value: Any) -> bool:
    """Not a text, and not a bool such as "evaluated", which Python counts among the whole numbers."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan
