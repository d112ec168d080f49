"""Is a missing library named, with the extra that brings it and the command that installs it?"""

import sys
import tomllib
from pathlib import Path

import pytest

from pzobo.data import MissingExtraError
from pzobo.errors import PzoboError
from pzobo.extras import advice, need

ROOT = Path(__file__).parent.parent


def test_what_is_there_is_imported():
    assert need("json.decoder") is sys.modules["json.decoder"]


@pytest.mark.parametrize(("words", "extra"), [((), "bench"), (("docs",), "docs")])
def test_a_missing_library_is_a_sentence(monkeypatch, words, extra):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError) as caught:
        need("pooch", *words)
    message = str(caught.value)
    assert message.startswith("pooch could not be imported")
    assert f"pip install 'pzobo[{extra}]'" in message
    assert f"pip install -e '.[{extra}]'" in message
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, PzoboError)


def test_the_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "pooch" in extras["bench"]
    assert "'pzobo[bench]'" in advice()


def test_no_other_file_names_the_command():
    """It stands once, so that it is right everywhere."""
    others = [path for path in (ROOT / "src").rglob("*.py") if "pip install" in path.read_text(encoding="utf-8")]
    assert [path.name for path in others] == ["extras.py"]
