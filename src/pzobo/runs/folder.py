"""What is in a run's folder? config.json, environment.json, metrics.jsonl, checkpoint.pt and at its end result.json."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch

from pzobo.errors import CheckpointError, DamagedFileError, OptionError, RunFolderError
from pzobo.files import remove_leftovers, write_atomically
from pzobo.runs import json_text, names
from pzobo.runs.environment import environment
from pzobo.runs.randomness import scalar_types

FORMAT = 3
"""Version 0.1 wrote 1; its minibatches came in another order. 2 had no seal."""
_MADE_BY = "pzobo"
_PARTS: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "seconds": (float,),
    "x": (list,),
    "optimizer": (dict,),
    "scheduler": (dict, type(None)),
    "objective": (dict,),
    "save": (dict,),
    "random": (dict,),
    "pending": (dict, type(None)),
    "metrics": (dict,),
}
"""What a checkpoint holds."""


class RunFolder:
    """The files of one run. `identity` says which run it is: another one in the same folder is refused.

    Only one process at a time may be in it, from here to the end of a `with` block; a process that dies lets go of it.

    Args:
        path: the folder; it is made if it is not there.
        identity: what makes the run what it is, as JSON.
        config: anything else worth keeping, as JSON.
        resume: go on with what is there, if there is anything.

    Attributes:
        saved: the outer step of the last checkpoint, None if there is none.
    """

    def __init__(self, path: str | os.PathLike[str], identity: dict[str, Any], config: Mapping[str, Any], resume: bool):
        self.path = _plain_path(path)
        self.metrics, self.checkpoint = self.path / names.METRICS, self.path / names.CHECKPOINT
        self.identity: dict[str, Any] = json.loads(_as_json(identity))
        told = _as_json({"format": FORMAT, "identity": self.identity, "config": dict(config)})
        self.saved: int | None = None
        self._loads = False
        with writing(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise RunFolderError(f"{self.path} is a file; a run needs a folder of its own.")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path)
        try:
            self._enter(told, resume)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _enter(self, told: str, resume: bool) -> None:
        """Begin a run here, told in its config.json, or find that the one that is here may go on."""
        file, machine = self.path / names.CONFIG, self.path / names.ENVIRONMENT
        others = [p.name for p in (machine, self.metrics, self.checkpoint, self.path / names.RESULT) if p.exists()]
        if not file.exists() and others:
            raise RunFolderError(
                f"{self.path} holds {' and '.join(others)} but no {names.CONFIG}, so whose they are is not known. "
                "Choose another folder, or remove them."
            )
        if file.exists():
            try:
                found = json_text.read(file)["identity"]
            except (DamagedFileError, KeyError) as error:
                raise RunFolderError(
                    f"{file} is not the {names.CONFIG} of a run ({error}); choose another folder."
                ) from error
            # A run that ended before its first row has left nothing that could be lost.
            begun = self.checkpoint.exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)
            if begun and found != self.identity:
                raise RunFolderError(
                    f"{self.path} holds a different run: {_difference(found, self.identity)}. Choose another folder, "
                    "or remove it."
                )
            if begun and not resume:
                raise RunFolderError(
                    f"{self.path} holds this run already. Go on with it by resume=True (--resume on the command line), "
                    "choose another folder, or remove it."
                )
        else:
            begun = False
        remove_leftovers(self.path)
        if not begun:
            _write(file, told)
        if not begun or not machine.exists():
            _write(machine, json.dumps(environment(), indent=2))

    def load(self) -> dict[str, Any] | None:
        """The checkpoint, or None if there is none yet. The file is only read."""
        if not self.checkpoint.exists():
            return None
        advice = f"It is left as it was: restore {self.checkpoint} from a copy, or remove it to start this run anew."
        try:
            state, sealed = _read(io.BytesIO(self.checkpoint.read_bytes()))
        except Exception as error:  # random bytes raise almost anything
            raise CheckpointError(
                f"The checkpoint is damaged, or not a checkpoint ({_why(error)}). {advice}"
            ) from error
        if not isinstance(state, dict) or not _equal(state.get("made_by"), _MADE_BY):
            raise CheckpointError(f"The checkpoint was not written by pzobo.fit. {advice}")
        if not _equal(state.get("format"), FORMAT):
            raise CheckpointError(
                f"The checkpoint has format {str(state.get('format'))[:40]}, expected {FORMAT}. {advice}"
            )
        if not _equal(state.get("identity"), self.identity):
            different = _difference(state.get("identity"), self.identity)
            raise CheckpointError(f"The checkpoint belongs to a different run: {different}. {advice}")
        if not sealed:
            raise CheckpointError(f"The checkpoint was changed since pzobo.fit wrote it. {advice}")
        for name, kinds in _PARTS.items():
            if name not in state:
                raise CheckpointError(f"The checkpoint has no {name!r}. {advice}")
            if type(state[name]) not in kinds:
                raise CheckpointError(f"The checkpoint has a {type(state[name]).__name__} as {name!r}. {advice}")
        if state["step"] < 0 or not 0 <= state["seconds"] < math.inf:
            raise CheckpointError(
                f"The checkpoint is of outer step {state['step']}, after {state['seconds']} seconds. {advice}"
            )
        self.saved = state["step"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint: at any moment the old or the new one is there, whole."""
        buffer = io.BytesIO()
        try:
            torch.save({"made_by": _MADE_BY, "format": FORMAT, "identity": self.identity, **state}, buffer)
            seal(buffer)
            if not self._loads:  # better now than when it is needed
                _read(buffer)
                self._loads = True
        except Exception as error:
            raise CheckpointError(
                f"The state of this run cannot be kept in a file that holds no code ({_why(error)}). A "
                "state_dict may hold tensors, numbers, strings, lists and dicts of them: look at those of the "
                "optimizer, of the scheduler, and in save=."
            ) from error
        with writing(self.checkpoint):
            write_atomically(self.checkpoint, buffer.getbuffer())
        self.saved = state["step"]

    def result(self, **found: Any) -> None:
        """Say how the run ended."""
        _write(self.path / names.RESULT, json.dumps(found, indent=2))

    def clear_result(self) -> None:
        """The run goes on: it has not ended."""
        with writing(self.path):
            (self.path / names.RESULT).unlink(missing_ok=True)


def saved_step(folder: Path) -> int:
    """The outer step of the checkpoint in a folder; -1 if there is none that can be read."""
    try:
        state, _ = _read(io.BytesIO((folder / names.CHECKPOINT).read_bytes()))
        return int(state["step"])
    except Exception:  # random bytes raise almost anything
        return -1


def _write(path: Path, text: str) -> None:
    """Replace a text file in one move, or say why not."""
    with writing(path):
        write_atomically(path, (text + "\n").encode())


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses, as a sentence."""
    try:
        yield
    except RunFolderError:
        raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(
            f"{path} could not be written ({reason}). Make room, or choose another folder; what was "
            "written before is still there."
        ) from error


def seal(file: BinaryIO) -> None:
    """Write a digest of a checkpoint's checksums into it: who changes it by torch.load and torch.save breaks the seal.

    What is in the states of optimizers, schedules and a user's objects is known to them alone. So it cannot be checked
    part by part, and it is not let through when it is not what they wrote.
    """
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = _digest(archive)


def _digest(archive: zipfile.ZipFile) -> bytes:
    checksums = [(part.filename, part.CRC) for part in archive.infolist()]
    return hashlib.blake2b(repr(checksums).encode(), digest_size=16).hexdigest().encode()


def _read(file: BinaryIO) -> tuple[Any, bool]:
    """What a checkpoint holds, and whether it is sealed. Nothing in it is run. Torch does not look at the checksums."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
        sealed = archive.comment == _digest(archive)
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")
    file.seek(0)
    with torch.serialization.safe_globals(scalar_types()):
        return torch.load(file, map_location="cpu", weights_only=True), sealed


def _plain_path(path: Any) -> Path:
    """What was given as out=, if it can be the name of a folder."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise OptionError(f"out={path!r}: give the name of a folder, as in out='runs/first'.")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise OptionError(f"out={path!r} is no name of a folder; give one, as in out='runs/first'.")
    return Path(path)


def _as_json(value: dict[str, Any]) -> str:
    """JSON that can be read again, or a sentence that it cannot be."""
    try:
        return json.dumps(json_text.parse(json.dumps(value, default=str)), indent=2)
    except Exception as error:  # texts of a user's objects are made here too
        raise OptionError(
            f"config= or notes= cannot be kept as JSON ({_why(error)}): give strings, numbers, lists and dicts of them."
        ) from error


def _why(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    found = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
    if found:
        return f"it holds {found[1]}, which only code could load"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _lock(folder: Path) -> int | None:
    """Take the folder for this process as long as it lives, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise RunFolderError(
            f"{folder} is in use by a run that is not over; choose another folder, or wait."
        ) from error
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def _equal(found: Any, wanted: Any) -> bool:
    """Whether something from a file is what is wanted; a tensor among it has an equality of its own."""
    try:
        return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def _difference(found: Any, wanted: Any) -> str:
    """The first few settings that differ; of a dict of settings, those inside that do."""
    if not isinstance(found, dict):
        return f"its {names.CONFIG} has another form"
    told = []
    for key in {**found, **wanted}:
        there, here = found.get(key), wanted.get(key)
        if not _equal(there, here):
            inside = isinstance(there, dict) and isinstance(here, dict)
            texts = _shown(str(there), str(here))
            told.append(_difference(there, here) if inside else "{} is {} there and {} here".format(key, *texts))
    return "; ".join(told[:3])


def _shown(*texts: str) -> list[str]:
    """Texts of a line or so: where they begin, if they differ there, else from some words before they do."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    start = sum(1 for _ in same) - 40
    if start < 0:
        return [f"{text:.80}" for text in texts]
    return [f"...{text[start : start + 80]}" for text in texts]
