"""Where do rows of metrics go? Into a list, and line by line into a file that survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Self

from pzobo.errors import RunFolderError
from pzobo.runs.folder import writing
from pzobo.runs.rows import Row


class Metrics:
    """Rows of numbers, appended to a file as they come (or only kept, without a file).

    Args:
        path: the file, if there is one.
        size: bytes of it to go on from.

    Attributes:
        rows: the rows up to there, and those added.
        after: the rows that were there after it.
    """

    def __init__(self, path: Path | None, size: int = 0) -> None:
        self.rows: list[Row] = []
        self.after: list[Row] = []
        self._file = None
        if path is None:
            return
        self._path = path
        with writing(path):
            text = path.read_bytes() if path.exists() else b""
            try:
                if len(text) < size:
                    raise ValueError(f"{len(text)} bytes where {size} were written")
                self.rows = [Row.of(json.loads(line)) for line in text[:size].splitlines()]
            except ValueError as error:
                raise RunFolderError(
                    f"{path} was changed since the checkpoint ({error}): restore it from a copy, or remove both to "
                    "start this run anew."
                ) from error
            for line in text[size:].splitlines():
                with contextlib.suppress(ValueError):  # a process that is killed may leave half a line
                    self.after.append(Row.of(json.loads(line)))
            path.touch()
            os.truncate(path, size)
            self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self._file is not None:
            with writing(self._path):
                self._file.write(json.dumps(dict(row)) + "\n")
                self._file.flush()

    def size(self) -> int:
        """Bytes so far, on the disk."""
        if self._file is None:
            return 0
        with writing(self._path):
            os.fsync(self._file.fileno())
            return self._file.tell()
