"""What do the tests of data share? An empty cache folder, no way out, and the real data where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BESIDE = ROOT.parent / "shared" / "data"
GIVEN = os.environ.get("PZOBO_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty; PZOBO_DATA is not set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PZOBO_DATA", raising=False)
    return tmp_path / "cache" / "pzobo"


def folder_with(part: str, request: pytest.FixtureRequest) -> Path:
    """The folder with the real files, PZOBO_DATA or shared/data beside the repository; skips where it is not."""
    folder = Path(GIVEN) if GIVEN else BESIDE
    if not (folder / part).is_dir():
        pytest.skip(
            f"{request.node.name} was not run: there is no real data; set PZOBO_DATA to a folder that has {part}"
        )
    return folder


@pytest.fixture
def real_mnist(request: pytest.FixtureRequest) -> Path:
    return folder_with("MNIST/raw", request)


@pytest.fixture
def real_newsgroups(request: pytest.FixtureRequest) -> Path:
    return folder_with("scikit_learn_data", request)
