"""Where do rows of metrics go? Into a list, and line by line into a file that survives a kill."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pzobo.errors import RunFolderError
from pzobo.runs.folder import writing
from pzobo.runs.json_text import parse
from pzobo.runs.rows import Row


class Metrics:
    """Rows of numbers, appended to a file as they come (or only kept, without a file).

    Args:
        path: the file, if there is one.
        mark: what `mark()` gave when the run that goes on was saved: how much of the file counts.

    Attributes:
        rows: the rows up to there, and those added.
        after: the rows that were there after it.
    """

    def __init__(self, path: Path | None, mark: Mapping[str, Any] | None = None) -> None:
        self.rows: list[Row] = []
        self.after: list[Row] = []
        self._file = None
        self._digest = hashlib.blake2b(digest_size=16)
        if path is None:
            return
        self._path = path
        with writing(path):
            text = path.read_bytes() if path.exists() else b""
            try:
                size = self._check(text, mark)
                self.rows = [Row.of(parse(line)) for line in text[:size].splitlines()]
            except ValueError as error:
                raise RunFolderError(
                    f"{path} was changed since the checkpoint ({error}): restore it from a copy, or remove both to "
                    "start this run anew."
                ) from error
            for line in text[size:].splitlines():
                with contextlib.suppress(ValueError):  # a process that is killed may leave half a line
                    self.after.append(Row.of(parse(line)))
            path.touch()
            os.truncate(path, size)
            self._file = path.open("ab")

    def _check(self, text: bytes, mark: Mapping[str, Any] | None) -> int:
        """How many bytes of the text count, if they are those that the mark is of."""
        if mark is None:
            return 0
        size, digest = mark.get("size"), mark.get("digest")
        if type(size) is not int or size < 0:
            raise ValueError(f"the checkpoint gives its size as {size!r}")
        if len(text) < size:
            raise ValueError(f"{len(text)} bytes where {size} were written")
        self._digest.update(text[:size])
        if self._digest.hexdigest() != digest:
            raise ValueError("its rows are not those that were written")
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self._file is not None:
            line = (json.dumps(dict(row)) + "\n").encode()
            self._digest.update(line)
            with writing(self._path):
                self._file.write(line)
                self._file.flush()

    def mark(self) -> dict[str, Any]:
        """For a checkpoint: how many bytes are on the disk, and a digest of them."""
        if self._file is None:
            return {"size": 0, "digest": self._digest.hexdigest()}
        with writing(self._path):
            os.fsync(self._file.fileno())
            return {"size": self._file.tell(), "digest": self._digest.hexdigest()}
