"""Can a name mean two things? No public name is also that of a module, and the doctor needs nothing of the theory."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import pzobo

SOURCE = Path(pzobo.__file__).parent
MODULES = [info.name for info in pkgutil.walk_packages(pzobo.__path__, "pzobo.")]
PACKAGES = ["pzobo", *(name for name in MODULES if (SOURCE.parent / name.replace(".", "/")).is_dir())]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_that_of_a_module(package):
    found = importlib.import_module(package)
    public = {name for name in getattr(found, "__all__", ()) if not isinstance(getattr(found, name), ModuleType)}
    assert not public & {name.rpartition(".")[2] for name in MODULES}


def test_the_doctor_needs_no_theory():
    for path in (SOURCE / "diagnosis").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(str(name).startswith("pzobo.theory") for name in names), path
