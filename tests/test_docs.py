"""Do the README, the documentation and the examples run, and do they print what they say?

The ```python blocks of a page run in their order, in one namespace. A ```text block after one of them is what it
prints; numbers may differ by a tenth. A block after the line `<!-- no-run -->` is left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import pydoc
import re
import runpy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import pzobo
from pzobo import errors

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^(?P<before>(?:<!-- no-run -->\n+)?)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"[-+]?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    run: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(found["language"], found["code"], text.count("\n", 0, found.start("code")), not found["before"])


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_mark_for_a_later_figure_is_left() -> None:
    """A word in capital letters on a line of its own stood in a page of results where a row was to come."""
    left = re.compile(r"^[A-Z]{3,}$|\b(TODO|FIXME|XXX|TBD)\b", re.M)
    prose = {name(page): FENCE.sub("", page.read_text()) for page in PAGES}
    assert not {page: found[0] for page, text in prose.items() if (found := left.search(text))}


@pytest.fixture(autouse=True)
def _left_alone() -> Iterator[None]:
    """Random numbers, threads and the default dtype are after a page what they were before it."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with torch.random.fork_rng(), warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def assert_printed(printed: str, expected: str, where: str) -> None:
    words, words_expected = (re.sub(r"\s+", " ", NUMBER.sub("#", text)) for text in (printed, expected))
    assert words == words_expected, f"{where}, the page does not say what is printed"
    for found, number in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        whole = number.lstrip("-").isdigit()  # a shape, or a count
        close = found == number if whole else float(found) == pytest.approx(float(number), rel=0.1)
        assert close, f"{where}, {found} is printed where the page says {number}:\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_runs(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = None
    for block in blocks(page):
        if block.language == "python" and block.run:
            # The blank lines in front make a traceback show the line of the page.
            code = compile("\n" * block.line + block.code, str(page), "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "text" and printed is not None:
            assert_printed(printed.strip("\n"), block.code.strip("\n"), f"{name(page)}:{block.line}")
            printed = None


def test_every_page_but_the_api_has_an_example() -> None:
    # Results are records of runs; the examples of the API are in docstrings, and run by tests/test_docstrings.py.
    guides = [page for page in PAGES if page.parent.name not in ("results", "api")]
    without = {page.name for page in guides if not any(b.language == "python" and b.run for b in blocks(page))}
    assert without == {"api.md", "gallery.md", "glossary.md"}, "the examples of the gallery have tests of their own"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", re.sub(FENCE, "", page.read_text())):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}, which is not there"


def exceptions() -> set[str]:
    """The names of all errors and warnings of the library."""
    return {n for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)}


def test_api_pages_have_every_public_name_once() -> None:
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    listed = [dotted for page in pages for dotted in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    assert len(listed) == len(set(listed))
    wanted = {f"pzobo.{n}" for n in pzobo.__all__ if n != "theory"} | {f"pzobo.errors.{n}" for n in exceptions()}
    for package in ("algorithms", "data", "distributed", "meta", "networks", "problems", "sklearn", "theory"):
        names = importlib.import_module(f"pzobo.{package}").__all__
        wanted |= {f"pzobo.{package}.{n}" for n in names if n not in {*exceptions(), "sharp"}}
    assert wanted <= set(listed), f"missing: {sorted(wanted - set(listed))}"
    for dotted in listed:
        module, _, last = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), last), f"the API names {dotted}, which does not exist"


def test_the_walk_goes_through_names_that_exist() -> None:
    names = re.findall(r"`(pzobo\.[\w.]+)`", (ROOT / "docs" / "walk.md").read_text())
    assert len(names) > 20
    for dotted in names:
        assert pydoc.locate(dotted) is not None, f"walk.md names {dotted}, which does not exist"
    files = re.findall(r'class="f"[^>]*>([^<]+)<', (ROOT / "docs" / "walk.svg").read_text())
    for path in [p for text in files if not text.startswith("your") for p in text.split(" · ")]:
        assert list((ROOT / "src" / "pzobo").rglob(Path(path).name)), f"walk.svg names {path}, which does not exist"


def test_error_page_has_every_exception() -> None:
    headings = set(re.findall(r"^## `(\w+)`$", (ROOT / "docs" / "errors.md").read_text(), re.M))
    assert headings == exceptions() - {"PzoboError"}


@pytest.fixture
def example(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, object], str]:
    """An example's variables and what it printed; with "NAME STEPS" it makes so many outer steps."""
    name, *words = request.param.split()
    monkeypatch.setattr("sys.argv", [name, *words])
    found = runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return found, capsys.readouterr().out


@pytest.mark.parametrize("example", ["hyperparameter_optimization.py"], indirect=True)
def test_hyperparameter_optimization(example: tuple[dict, str]) -> None:
    found, printed = example[0]["found"], example[1]
    (start, direct), (_, pzobo_), (_, unrolled) = found.values()
    assert direct == start, "without a response there is no hypergradient"
    assert unrolled < pzobo_ < start
    assert unrolled < 0.6 * start
    assert printed.count("validation loss") == 3
    assert f"ordinary logistic regression {example[0]['ordinary']:.4f}" in printed


@pytest.mark.parametrize("example", ["black_box.py"], indirect=True)
def test_black_box(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["after"] < 0.9 * found["before"]
    assert f"{found['after']:.4f}" in printed


@pytest.mark.parametrize("example", ["data_reweighting.py"], indirect=True)
def test_data_reweighting(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["after"] > found["before"] + 0.05
    assert found["right"] > 0.7
    assert found["false"] < 0.3
    assert f"{found['after']:.3f}" in printed


@pytest.mark.parametrize("example", ["response_search.py"], indirect=True)
def test_response_search(example: tuple[dict, str]) -> None:
    found, printed = example
    plain, grid, searched = found["errors"].values()
    assert grid < plain
    assert searched < 0.5 * grid
    assert f"{searched:.3f}" in printed
    assert "held-out rows" in printed


@pytest.mark.parametrize("example", ["maml_sines.py"], indirect=True)
def test_maml_sines(example: tuple[dict, str]) -> None:
    found, printed = example[0]["found"], example[1]
    assert found["MAML"] < 0.5 * min(found["random start"], found["all waves"])
    assert printed.count("squared error") == 3


@pytest.mark.parametrize("example", ["mlp_decays.py"], indirect=True)
def test_mlp_decays(example: tuple[dict, str]) -> None:
    found, printed = example[0]["found"], example[1]
    assert found["25 draws, learned"][0] < min(found["25 draws"][0], found["100 draws"][0])
    assert printed.count("validation loss") == 4


@pytest.mark.parametrize("example", ["weight_net.py 8"], indirect=True)
def test_weight_net(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["after"] > 0.5, "it learns, though 60 % of the labels are random"
    weigh = found["net"](torch.tensor([[0.01], [4.0]]))
    assert weigh[0] > weigh[1], "what fits counts more than what does not"
    assert f"the ordinary CNN on all data {found['before']:.3f}" in printed


@pytest.mark.parametrize("example", ["language_sources.py 2"], indirect=True)
def test_language_sources(example: tuple[dict, str]) -> None:
    found, printed = example
    documentation, code, table = found["weights"]
    assert table < min(documentation, code), "prose learns least from a table of characters"
    assert found["losses"][-1] < found["losses"][0], "the mixture is better on new text than all alike"
    assert printed.count("alike") == 1


@pytest.mark.parametrize("example", ["long_run.py 6"], indirect=True)
def test_long_run(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["same"]
    assert 3 <= found["killed_at"] < 6
    assert "the same bits as the run that was left alone: True" in printed


@pytest.mark.parametrize("example", ["condensation.py 25"], indirect=True)
def test_condensation(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["condensed"] > found["real"] + 0.03
    assert found["everything"] > 0.9
    assert f"all 600 digits, trained as long: {found['everything']:.3f}" in printed


@pytest.mark.parametrize("example", ["augmentation.py 4"], indirect=True)
def test_augmentation(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["losses"][-1] < found["losses"][0], "on the digits that the strengths are learned on"
    assert f"the ordinary network as they are {found['plain']:.3f}" in printed


@pytest.mark.parametrize("example", ["hyper_representation.py 60"], indirect=True)
def test_hyper_representation(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["losses"][-1] < 0.5 * found["losses"][0]
    assert found["learned"] > 0.85
    assert f"the ordinary network {found['ordinary']:.3f}" in printed


@pytest.mark.parametrize("example", ["own_algorithm.py 100"], indirect=True)
def test_own_algorithm(example: tuple[dict, str]) -> None:
    found, printed = example
    (soba, _), (heavy, _) = found["found"].values()
    assert heavy < soba, "momentum is faster here"
    assert printed.count("test accuracy") == 3


@pytest.mark.parametrize("example", ["federated_weights.py 6"], indirect=True)
def test_federated_weights(example: tuple[dict, str]) -> None:
    found, printed = example
    assert found["own"] > 0.9, "nobody said who is like whom"
    accuracy = found["found"]
    assert accuracy["learned"] > max(accuracy["alone"], accuracy["all alike"], accuracy["alike, then alone"])
    assert f"alone {accuracy['alone']:.3f}" in printed


@pytest.mark.parametrize("example", ["lightning_trainer.py 10"], indirect=True)
def test_lightning_trainer(example: tuple[dict, str]) -> None:
    """The same numbers as a plain loop with the same clipping and schedule."""
    found, printed = example
    module, X, t = found["module"], *found["val"]
    argmin = pzobo.Argmin(found["inner_loss"], solver=module.argmin.solver, jacobian=pzobo.Unrolled())
    x = torch.full((64, 10), -5.0, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.cross_entropy(X @ argmin(x, torch.zeros(64, 10), found["train"]), t)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_([x], 0.1)
        optimizer.step()
        schedule.step()
    assert module.losses == pytest.approx(losses, rel=1e-5)
    assert f"logistic regression on all data {found['ordinary']:.3f}" in printed


def test_every_example_is_short_tested_and_shown() -> None:
    source = Path(__file__).read_text()
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    commands = (ROOT / "docs" / "distributed.md").read_text()  # run by tests/distributed/test_page.py
    for path in EXAMPLES:
        tested = re.search(rf'\["{path.name}(?: \d+)?"\]', source) or f"examples/{path.name}\n" in commands
        assert tested, f"{path.name} has no test"
        assert len(path.read_text().splitlines()) <= 60, f"{path.name} is too long to be an example"
        assert (ROOT / "docs" / "figures" / f"{path.stem}.svg").exists(), f"{path.name} has no figure"
        assert f"<!-- {path.stem} -->" in gallery, f"{path.name} is not in the gallery"
