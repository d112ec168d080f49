"""Is a file written whole or not at all, by several processes at once, and is what a killed one leaves removed?"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pzobo import files
from pzobo.files import remove_leftovers, replacing, write_atomically

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither flock nor SIGKILL")

HALF = """
import sys, time
from pathlib import Path
from pzobo.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""

MANY = """
import sys
from pathlib import Path
from pzobo.files import remove_leftovers, write_atomically
path, letter = Path(sys.argv[1]), sys.argv[2].encode()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    write_atomically(path, letter * 100_000)
    remove_leftovers(path.parent)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def half_written(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of writing a file."""
    with subprocess.Popen([sys.executable, "-c", HALF, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def test_the_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomically(path, b"old")
    with replacing(path) as file:
        file.write(memoryview(b"new"))
        file.flush()
        assert path.read_bytes() == b"old"
        assert len(names(path.parent)) == 2
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file"]


def test_others_may_read_it_as_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_no_trace(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def stopped() -> None:
        with replacing(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        stopped()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError):  # noqa: PT011
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_it_is_on_the_disk_before_it_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}
    for name in real:
        monkeypatch.setattr(os, name, lambda *given, name=name: (order.append(name), real[name](*given)))
    write_atomically(tmp_path / "file", b"content")
    assert order == ["fsync", "replace"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with half_written(path) as process:
        remove_leftovers(tmp_path)
        assert len(names(tmp_path)) == 2, "it is still being written"
        process.send_signal(signal.SIGKILL)
        process.wait()
        (left,) = (name for name in names(tmp_path) if name != "file")
        assert left.startswith(".file.")
        assert left.endswith(".new")
        assert (tmp_path / left).read_bytes() == b"half"
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_what_is_no_leftover_stays(tmp_path: Path) -> None:
    for name in ("file.new", ".file", "file"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".folder.new").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".file", ".folder.new", "file", "file.new"]
    remove_leftovers(tmp_path / "not there")


def test_several_processes_write_and_clean_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    command = [sys.executable, "-c", MANY, str(path)]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen([*command, letter], stdin=pipe, stdout=pipe, text=True) for letter in "abc"]
    try:
        for worker in workers:  # importing takes longer than writing: they start together
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        seen = set()
        while any(worker.poll() is None for worker in workers):
            if path.exists():
                content = path.read_bytes()
                assert len(content) == 100_000
                assert len(set(content)) == 1
                seen.add(content[:1])
            time.sleep(0.001)
        assert [worker.wait() for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert seen <= {b"a", b"b", b"c"}
    assert names(tmp_path) == ["file"]


def test_a_file_that_was_taken_for_a_leftover_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a file and its lock, another process may clean."""
    real, calls = files._locked, []

    def late(file: object, wait: bool) -> bool:
        calls.append(wait)
        if calls == [True]:
            remove_leftovers(tmp_path)
            assert names(tmp_path) == []
        return real(file, wait)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_locked", late)
    write_atomically(tmp_path / "file", b"content")
    assert calls == [True, False, True]
    assert (tmp_path / "file").read_bytes() == b"content"
    assert names(tmp_path) == ["file"]


def test_without_locks_files_are_written_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    (tmp_path / ".other.new").write_bytes(b"")
    write_atomically(tmp_path / "file", b"content")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".other.new", "file"]
