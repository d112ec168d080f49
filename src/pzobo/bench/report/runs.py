"""What is in a folder of runs? Each run's settings, environment, metrics and end, as far as they are written."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pzobo.errors import DamagedFileError, OptionError
from pzobo.runs import json_text, names

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
        name = self.config.get("experiment")
        return name if isinstance(name, str) and name else None

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
        """The pairs (x, y) of the rows that have both, in the order of x."""
        pairs = [(row[x], row[y]) for row in self.rows if y in row and not math.isnan(row.get(x, math.nan))]
        return sorted(pairs, key=lambda pair: pair[0])


def read(folder: Path) -> list[Run]:
    """Every run in a folder and the folders below it, in the order of their names.

    What is damaged is left out, with a warning; it does not hide the rest.

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
    config = _part(folder / names.CONFIG, "this folder is left out", lambda path: _config(json_text.read(path)))
    if config is None:
        return None
    return Run(
        folder,
        config,
        _part(folder / names.ENVIRONMENT, "the report does not have it", json_text.read) or {},
        tuple(_part(folder / names.METRICS, "the run is shown without metrics", _rows) or ()),
        _part(folder / names.RESULT, "the run is shown as not finished", json_text.read),
    )


def _part(path: Path, without: str, read: Callable[[Path], Any]) -> Any:
    """What a file holds; None if it is not there, and with a warning if it is damaged."""
    try:
        return read(path) if path.exists() else None
    except (DamagedFileError, OSError) as error:
        warnings.warn(f"{path} is damaged ({error}); {without}.", stacklevel=4)
        return None


def _config(written: dict[str, Any]) -> dict[str, Any]:
    """The settings; method and label are names, whatever was written."""
    config = written.get("config")
    if not isinstance(config, dict):
        raise DamagedFileError("it is not a run's configuration")
    return config | {key: str(config[key]) for key in ("method", "label") if config.get(key) is not None}


def _rows(path: Path) -> list[Row]:
    lines = json_text.text(path).split(b"\n")
    rows: list[Row] = []
    damaged = 0
    for i, line in enumerate(lines):
        try:
            values = json_text.parse(line)
        except DamagedFileError:
            values = None
        if not isinstance(values, dict):
            damaged += bool(line) and i < len(lines) - 1  # a process that was killed leaves half a line
            continue
        row = {key: _number(value) for key, value in values.items() if _is_metric(value)}
        if "accuracy" in row:
            row["error"] = 1 - row["accuracy"]
        # A run that was resumed from a checkpoint does again the steps that came after it: the later ones count.
        while rows and rows[-1].get("step", 0) > row.get("step", math.inf):
            rows.pop()
        rows.append(row)
    if damaged:
        warnings.warn(f"{path} has {damaged} lines that are no rows of metrics; they are left out.", stacklevel=5)
    return rows


def _is_metric(value: Any) -> bool:
    """Not a text, and not a bool such as "evaluated", which Python counts among the whole numbers."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: float | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else math.nan
