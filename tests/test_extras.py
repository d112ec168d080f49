"""Is a missing library named, with the extra that brings it and the command that installs it?"""

import importlib
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


@pytest.mark.parametrize(("version", "enough"), [("1.8.0", False), ("1.9.1", True), ("1.10.0rc1", True), ("2.0", True)])
def test_a_library_that_is_too_old_is_a_sentence(monkeypatch, version, enough):
    """With scikit-learn 1.8 a search ended in an AttributeError."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr("sklearn.__version__", version)
    if enough:
        assert need("sklearn", "sklearn", least=(1, 9)) is sys.modules["sklearn"]
        return
    for module in [name for name in sys.modules if name.startswith("pzobo.sklearn")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=r"sklearn 1\.8\.0 is too old, 1\.9 is needed\. .*pzobo\[sklearn\]"):
        importlib.import_module("pzobo.sklearn")


def test_the_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["sklearn"] == ["scikit-learn>=1.9"]
    assert "pooch" in extras["bench"]
    assert "'pzobo[bench]'" in advice()


def test_no_other_file_names_the_command():
    """It stands once, so that it is right everywhere."""
    others = [path for path in (ROOT / "src").rglob("*.py") if "pip install" in path.read_text(encoding="utf-8")]
    assert [path.name for path in others] == ["extras.py"]
