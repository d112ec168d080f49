"""Is a data file found where it should be, verified before it is used, and never changed?"""

from __future__ import annotations

import functools
import hashlib
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pzobo.data import DataError, MissingExtraError, lookup
from pzobo.data.lookup import Source, cache_folder, read, read_local
from pzobo.extras import need

CONTENT = b"twelve bytes"
CLOSED = "http://127.0.0.1:9/file.bin"  # nothing listens at the discard port
SOURCE = Source("folder/file.bin", hashlib.sha256(CONTENT).hexdigest(), CLOSED)


def put(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / SOURCE.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_order_is_root_variable_cache_download(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places hold wrong files, so that the error says which of them was looked at first."""
    root, variable = tmp_path / "root", tmp_path / "variable"
    paths = [put(folder, b"wrong") for folder in (root, variable, cache)]
    monkeypatch.setenv("PZOBO_DATA", str(variable))
    for path in paths:
        with pytest.raises(DataError) as caught:
            read(SOURCE, root)
        assert str(caught.value).startswith(f"{path} is damaged")
        path.unlink()
    with pytest.raises(DataError, match=r"the download from .* failed"):
        read(SOURCE, root)


@pytest.mark.parametrize("place", ["root", "variable", "cache"])
def test_file_is_found_in_each_place(place: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put({"root": tmp_path / "root", "variable": tmp_path / "variable", "cache": cache}[place])
    monkeypatch.setenv("PZOBO_DATA", str(tmp_path / "variable"))
    assert read(SOURCE, tmp_path / "root") == CONTENT


def test_empty_variable_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PZOBO_DATA", "")
    assert lookup.places(None) == [cache_folder()]


def test_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path, CONTENT[:-1])
    with pytest.raises(DataError) as caught:
        read(SOURCE, tmp_path)
    for part in (str(path), SOURCE.sha256, hashlib.sha256(CONTENT[:-1]).hexdigest()):
        assert part in str(caught.value)
    assert path.read_bytes() == CONTENT[:-1]


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / SOURCE.path).mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be read"):
        read(SOURCE, tmp_path)


def test_offline_message_says_which_file_which_checksum_and_where(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(SOURCE)
    message = str(caught.value)
    for part in (SOURCE.path, SOURCE.sha256, CLOSED, str(cache / SOURCE.path), "root=", "PZOBO_DATA"):
        assert part in message
    assert "\n" not in message
    assert isinstance(caught.value, FileNotFoundError)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a web server for the folder `web`."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_download_is_verified_and_kept(server: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "web" / "file.bin").write_bytes(CONTENT)
    source = Source(SOURCE.path, SOURCE.sha256, f"{server}/file.bin")
    assert read(source) == CONTENT
    (tmp_path / "web" / "file.bin").unlink()
    assert read(source) == CONTENT
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["file.bin"]


def test_wrong_download_is_refused_and_not_kept(server: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "web" / "file.bin").write_bytes(b"another file")
    with pytest.raises(DataError, match="another checksum"):
        read(Source(SOURCE.path, SOURCE.sha256, f"{server}/file.bin"))
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"^pooch .*pip install 'pzobo\[bench\]'"):
        need("pooch")
    with pytest.raises(DataError, match=r"pzobo\[bench\]"):
        read(SOURCE)


def test_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    found = {}
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("LOCALAPPDATA", raising=False)
        found[platform] = cache_folder().relative_to(Path.home()).as_posix()
    assert found == {
        "linux": ".cache/pzobo",
        "darwin": "Library/Caches/pzobo",
        "win32": "AppData/Local/pzobo/Cache",
    }


def test_absent_file_is_none(tmp_path: Path) -> None:
    assert read_local(SOURCE, tmp_path / "not" / "there") is None
