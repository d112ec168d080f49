"""Do imports point one way, is nothing loaded that is not used, and does every public name import?

This is the one place where the order of the rooms is written as code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pzobo

SOURCE = Path(pzobo.__file__).parent
TESTS = Path(__file__).parent

LEVELS = [
    {"errors", "options", "files", "extras", "deprecated"},
    {"tensors", "networks"},
    {"distributed"},
    {"inner", "zeroth_order", "response", "runs", "data"},
    {"solvers", "jacobians"},
    {"argmin"},
    {"outer", "algorithms", "testing"},
    {"problems", "meta", "sklearn", "diagnosis", "theory"},
    {"bench"},
    {"cli", "__init__"},
]
"""Who may import whom: what stands on the same line or above it. (DESIGN.md, Layout.)"""

LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
LAZY = {"algorithms", "data", "networks", "problems", "meta", "bench", "theory", "diagnosis", "sklearn"}
PACKAGES = ["pzobo", *(f"pzobo.{name}" for name in ("algorithms", "data", "networks", "problems", "meta", "theory"))]


def modules() -> Iterator[tuple[str, Path]]:
    """Each module below pzobo by its name, and its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts), path


def imported(path: Path) -> set[str]:
    """The modules of pzobo that a file imports, also inside of functions; not those that only a type checker reads."""
    tree = ast.parse(path.read_text())
    unread = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for child in block.body
        for node in ast.walk(child)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "pzobo":
            found |= {f"pzobo.{alias.name if alias.name in NAMES else '__init__'}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            assert node.level == 0, f"{path} imports by a relative path"
    return {name.removeprefix("pzobo.") for name in found if name.startswith("pzobo.")}


NAMES = {name.partition(".")[0] for name, _ in modules()}
"""The rooms, and the files beside them."""

ARROWS = {(name.partition(".")[0], other.partition(".")[0]) for name, path in modules() for other in imported(path)}
"""Between them."""


def test_every_room_has_its_place() -> None:
    assert LEVEL.keys() >= NAMES, f"give it a line in LEVELS: {NAMES - LEVEL.keys()}"


def test_no_arrow_points_up() -> None:
    up = sorted((a, b) for a, b in ARROWS if LEVEL[a] < LEVEL[b])
    assert not up, f"these import what is built on them: {up}"


def test_no_cycle_between_rooms() -> None:
    left = {a: {b for x, b in ARROWS if x == a and b != a} for a in LEVEL}
    while free := {a for a, others in left.items() if not others & left.keys()}:
        left = {a: others for a, others in left.items() if a not in free}
    assert not left, f"a cycle among {sorted(left)}"


def test_few_files_have_no_room() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 10


def test_tests_mirror_the_rooms() -> None:
    """Each folder of tests is a room (or a file beside the rooms that has many tests), and no room is without tests."""
    rooms = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    files = {path.stem for path in SOURCE.glob("*.py")}
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."}
    assert folders <= rooms | files, f"no such room: {folders - rooms - files}"
    tested = {folder.partition("/")[0] for folder in folders}
    assert {room.partition("/")[0] for room in rooms} <= tested


def public() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        yield from ((package, name) for name in importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", [name for name, path in modules() if path.name == "__init__.py"])
def test_no_public_name_is_that_of_a_module(package: str) -> None:
    files = {part for name, path in modules() for part in (name.rpartition(".")[2], path.parent.name)}
    found = importlib.import_module(f"pzobo.{package}".removesuffix(".__init__"))
    names = {name for name in getattr(found, "__all__", ()) if not inspect.ismodule(getattr(found, name))}
    assert not names & files


def test_the_doctor_needs_no_theory() -> None:
    assert ("diagnosis", "theory") not in ARROWS


def test_every_first_line_is_a_question_or_says_what_it_is() -> None:
    for name, path in modules():
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, f"{name} does not say what it is for"
        assert "?" in text or name == "__init__", f"{name} does not say which question it answers"


# In a process of its own


def run(code: str, *arguments: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_import_loads_only_what_it_needs() -> None:
    code = "import sys, pzobo; print([m for m in sys.modules if type(sys.modules[m]).__name__ == 'module'])"
    loaded = ast.literal_eval(run(code))
    rooms = {name.split(".")[1] for name in loaded if name.startswith("pzobo.")}
    assert not rooms & LAZY
    assert not {name.partition(".")[0] for name in loaded} & {"sklearn", "rich", "tyro", "plotly", "matplotlib"}
    assert not {"torch._dynamo", "torch._inductor"} & set(loaded), "they take seconds, and only compile=True needs them"


def test_rooms_load_when_they_are_named() -> None:
    code = "import pzobo; print(pzobo.theory.suggest.__name__, pzobo.data.digits.__name__, pzobo.doctor.__name__)"
    assert run(code).split() == ["suggest", "digits", "doctor"]


@pytest.mark.parametrize("name", ["fit", "smooth", "doctor"])
def test_a_function_is_not_hidden_by_a_module(name: str) -> None:
    code = f"import pzobo.{name}; import inspect; print(inspect.isfunction(pzobo.{name}))"
    assert run(code).strip() == "True"


def needed(package: str, seen: set[str]) -> set[str]:
    """A distribution and all that it requires, here and now, without extras."""
    if package not in seen:
        seen.add(package)
        for line in requires(package) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(canonicalize_name(requirement.name), seen)
    return seen


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as `pip install pzobo` leaves it, without extras: links to torch, optree and their needs."""
    folder = tmp_path_factory.mktemp("bare")
    wanted = needed("torch", set()) | needed("optree", set())
    for top, owners in packages_distributions().items():
        if {canonicalize_name(owner) for owner in owners} & wanted:
            for found in (distribution(owners[0]).locate_file(name) for name in (top, f"{top}.py")):
                if Path(str(found)).exists():
                    (folder / Path(str(found)).name).symlink_to(Path(str(found)))
    (folder / "pzobo").symlink_to(SOURCE)
    return folder


def test_without_extras_every_public_name_imports(bare: Path) -> None:
    names = {package: [name for p, name in public() if p == package] for package in PACKAGES}
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(bare)!r}]\n"
        f"import importlib\nfor package, names in {names!r}.items():\n"
        "    module = importlib.import_module(package)\n"
        "    for name in names: getattr(module, name)\n"
        "try: import sklearn\nexcept ImportError: print('bare')\n"
    )
    assert run(code, "-I", "-S").strip() == "bare"


def test_without_extras_what_needs_one_says_which_and_how(bare: Path) -> None:
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(bare)!r}]\n"
        "import pzobo.data, pzobo.cli\n"
        "try: pzobo.data.digits()\nexcept pzobo.data.MissingExtraError as error: print(error)\n"
        "print(pzobo.cli.main(['list']), pzobo.cli.main(['--version']))\n"
    )
    said = run(code, "-I", "-S")
    assert "pip install 'pzobo[bench]'" in said
    assert "pip install -e '.[bench]'" in said
    assert said.rstrip().endswith("2 0")
