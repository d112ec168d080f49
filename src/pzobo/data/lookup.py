"""Where is a data file? Under `root`, under PZOBO_DATA, in the user's cache, or at its public address."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pzobo.errors import MissingExtraError, PzoboError
from pzobo.extras import need


class DataError(PzoboError, FileNotFoundError):
    """A data file is missing, unreadable, or not the one it should be."""


@dataclass(frozen=True)
class Source:
    """A file by its path below the data folder, its sha256, and its public address if there is one.

    Where the file at the public address has the same content in another packing, `md5` is its checksum. Of a file that
    was published with that alone, sha256 is empty.
    """

    path: str
    sha256: str
    url: str | None = None
    md5: str | None = None

    @property
    def checksums(self) -> str:
        """What the file is known by, in words."""
        both = (f"sha256 {self.sha256}" if self.sha256 else "", f"MD5 {self.md5}" if self.md5 else "")
        return " or ".join(checksum for checksum in both if checksum)

    @property
    def published(self) -> str:
        """The checksum of the file at the public address, with its kind."""
        return f"md5:{self.md5}" if self.md5 else f"sha256:{self.sha256}"


def cache_folder() -> Path:
    """The folder for downloads and for what was computed from them; it need not exist."""
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "pzobo"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "pzobo" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pzobo"
    return Path.home() / ".cache" / "pzobo"


def places(root: str | os.PathLike[str] | None) -> list[Path]:
    """The data folders in their order of look-up."""
    return [*(Path(given).expanduser() for given in (root, os.environ.get("PZOBO_DATA")) if given), cache_folder()]


def read_local(source: Source, root: str | os.PathLike[str] | None = None) -> bytes | None:
    """The verified content of the first such file, or None where there is none.

    It is the bytes that are returned, not the path: what was verified is what is read.
    """
    for folder in places(root):
        path = folder / source.path
        try:
            # Not is_file(), which says of a file in a locked folder that it is not there.
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): make it readable or remove it.") from error
        found = hashlib.sha256(content).hexdigest()
        if found != source.sha256 and hashlib.md5(content, usedforsecurity=False).hexdigest() != source.md5:
            raise DataError(
                f"{path} is damaged or another file: its sha256 is {found}, expected {source.checksums}; "
                "it was left as it is, so replace or remove it."
            )
        return content
    return None


def download(source: Source) -> bytes:
    """The verified content from the public address, kept in the cache folder."""
    if source.url is None:
        raise DataError(missing(source, "has no public address"))
    target = cache_folder() / source.path
    try:
        need("pooch").retrieve(source.url, source.published, fname=target.name, path=target.parent)
    except (OSError, ValueError, MissingExtraError) as error:
        # What requests says of a lost connection is a paragraph; its name is enough.
        reason = str(error) if isinstance(error, PzoboError | PermissionError) else type(error).__name__
        if not isinstance(error, OSError | MissingExtraError):  # pooch's ValueError
            reason = "what came has another checksum"
        raise DataError(missing(source, f"the download from {source.url} failed: {reason}")) from error
    content = read_local(source, cache_folder())
    assert content is not None
    return content


def missing(source: Source, reason: str) -> str:
    """What to do about a missing file."""
    return (
        f"{source.path} ({source.checksums}) is not on this computer and {reason}; "
        f"put it at {cache_folder() / source.path}, or under the same path in a folder given as root= or PZOBO_DATA."
    )


def read(source: Source, root: str | os.PathLike[str] | None = None) -> bytes:
    """The verified content of a file, wherever it is."""
    content = read_local(source, root)
    return download(source) if content is None else content
