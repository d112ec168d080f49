"""What is in a run's folder? config.json, environment.json, metrics.jsonl, checkpoint.pt and at its end result.json."""

from __future__ import annotations

import json
import math
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from pzobo.errors import CheckpointError, RunFolderError

FORMAT = 1
_COMMENT = "pzobo"


class RunFolder:
    """The files of one run. `identity` says which run it is: another one in the same folder is refused.

    Args:
        path: the folder; it is made if it is not there.
        identity: what makes the run what it is, as JSON.
        config: anything else worth keeping, as JSON.
        resume: go on with what is there, if there is anything.
    """

    def __init__(self, path: str | os.PathLike[str], identity: dict[str, Any], config: Mapping[str, Any], resume: bool):
        self.path = Path(path)
        self.metrics, self.checkpoint = self.path / "metrics.jsonl", self.path / "checkpoint.pt"
        wanted = json.loads(json.dumps(identity))
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file; a run needs a folder of its own.")
        file = self.path / "config.json"
        self.fresh = not file.exists()
        if self.fresh:
            if self.metrics.exists() or self.checkpoint.exists():
                raise RunFolderError(
                    f"{self.path} holds a checkpoint or metrics but no config.json, so whose they are is not known. "
                    "Choose another folder, or remove them."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            write(self.path / "environment.json", json.dumps(environment(), indent=2))
            write(
                file, json.dumps({"format": FORMAT, "identity": wanted, "config": dict(config)}, indent=2, default=str)
            )
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))["identity"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunFolderError(f"{file} could not be read ({error}); choose another folder.") from error
        if found != wanted:
            raise RunFolderError(
                f"{self.path} holds a different run: {_difference(found, wanted)}. Choose another folder, or remove it."
            )
        if not resume:
            raise RunFolderError(
                f"{self.path} holds this run already. Go on with it by resume=True (on the command line: --resume), "
                "choose another folder, or remove it."
            )

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The checkpoint, or None if there is none yet. The file is only read."""
        if not self.checkpoint.exists():
            return None
        advice = (
            f"It is left as it was; remove it to start this run anew, or restore it from a copy: {self.checkpoint}."
        )
        try:
            state = torch.load(self.checkpoint, map_location=device, weights_only=True)
        except (
            pickle.UnpicklingError,
            RuntimeError,
            EOFError,
            zipfile.BadZipFile,
            OSError,
            ValueError,
            KeyError,
        ) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(
                f"The checkpoint is damaged or not a checkpoint ({reason[:120]}). {advice}"
            ) from error
        if not isinstance(state, dict) or state.get("made_by") != _COMMENT:
            raise CheckpointError(f"The checkpoint was not written by pzobo.fit. {advice}")
        if state.get("format") != FORMAT:
            raise CheckpointError(f"The checkpoint has format {state.get('format')}, expected {FORMAT}. {advice}")
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint: at any moment the old or the new one is there, whole."""
        with tempfile.NamedTemporaryFile(dir=self.path, prefix=".checkpoint-", delete=False) as file:
            try:
                torch.save({"made_by": _COMMENT, "format": FORMAT, **state}, file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, self.checkpoint)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def tidy(self) -> None:
        """Remove what a killed process left half-written."""
        for left in self.path.glob(".checkpoint-*"):
            left.unlink(missing_ok=True)

    def result(self, **found: Any) -> None:
        """Say how the run ended."""
        write(self.path / "result.json", json.dumps(found, indent=2))


class Metrics:
    """Rows of numbers, appended to a file as they come (or only kept, without a file)."""

    def __init__(self, path: Path | None, size: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self._file = None
        if path is not None:
            path.touch()
            os.truncate(path, min(size, path.stat().st_size))
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self._file = path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        clean = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()}
        self.rows.append(clean)
        if self._file is not None:
            self._file.write(json.dumps(clean) + "\n")
            self._file.flush()

    def size(self) -> int:
        """Bytes so far, on the disk."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def write(path: Path, text: str) -> None:
    """Replace a text file in one move."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def environment() -> dict[str, Any]:
    """The software and the machine that a run is made on."""
    return {
        "pzobo": _version("pzobo"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": " ".join(sys.argv),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that pzobo is used from, with "+" if files were changed since."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "pzobo" != folder:
            return None
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _difference(found: Any, wanted: Any) -> str:
    """The first few settings that differ."""
    if not isinstance(found, dict):
        return "its config.json has another form"
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return "; ".join(
        f"{key} is {str(found.get(key))[:80]} there and {str(wanted.get(key))[:80]} here" for key in keys[:3]
    )
