"""Does the documentation build without a warning, and does the site work from a file, without a network?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from filelock import FileLock
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.wait import WebDriverWait

from tests.bench.report import test_browser

ROOT = Path(__file__).parent.parent
browser = test_browser.browser  # how it is started, and where it is missing, is said there

# A string in a script that is the address of a file elsewhere, or of anything on a host that serves files.
OUTSIDE = re.compile(
    r"""["'`]((?:https?:)?//(?:unpkg|cdn|fonts)\.[^\s"'`]+"""
    r"""|(?:https?:)?//[^\s"'`]+\.(?:m?js|css|woff2?|ttf|otf|png|jpe?g|gif|webp|svg|ico))["'`]"""
)
# Named in Material's script and never loaded here: for diagrams, and for browsers older than ResizeObserver.
NEVER_LOADED = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",
    "https://unpkg.com/resize-observer-polyfill",
}


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The site, built once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        return folder if (folder / "sitemap.xml").exists() else build(folder)


class Loads(HTMLParser):
    """The addresses that a page loads: every src and the like, and every href but that of a link to follow."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "srcset", "data", "poster", "xlink:href"} | ({"href"} if tag != "a" else set())
        self.addresses += [value for name, value in attrs if name in names and value]


def files(site: Path, *kinds: str) -> Iterator[tuple[Path, str]]:
    found = [path for kind in kinds for path in site.rglob(f"*.{kind}")]
    assert found
    yield from ((path.relative_to(site), path.read_text()) for path in found)


def outside(addresses: list[str]) -> list[str]:
    return [address for address in addresses if "//" in address and not address.startswith("data:")]


def test_pages_load_nothing_from_outside(site: Path) -> None:
    for path, text in files(site, "html"):
        loads = Loads(text).addresses
        assert any(address.endswith(".css") for address in loads), path
        assert outside(loads) == [], path
        assert 'class="mermaid"' not in text, path


def test_styles_load_nothing_from_outside(site: Path) -> None:
    for path, text in files(site, "css"):
        assert "@import" not in text, path
        assert outside(re.findall(r"""url\(\s*["']?([^"')]+)""", text)) == [], path


def test_scripts_name_nothing_to_load_from_outside(site: Path) -> None:
    named = {a for _, text in files(site, "js", "html") for a in OUTSIDE.findall(text)}
    assert named <= NEVER_LOADED


def test_formulas_are_mathml(site: Path) -> None:
    for path, text in files(site, "html"):
        assert not re.search(r'class="arithmatex">\s*\\', text), f"{path} has TeX in it"
    assert "<mfrac>" in (site / "index.html").read_text()


def shown(browser: WebDriver, page: Path) -> WebDriver:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", test_browser.DESK)
    browser.get(page.as_uri())
    return browser


@pytest.mark.parametrize("page", ["index.html", "theory.html"])
def test_formulas_are_drawn(browser: WebDriver, site: Path, page: str) -> None:
    shown(browser, site / page)
    # A browser that does not know MathML writes numerator and denominator side by side.
    formulas, fractions = browser.execute_script(
        """
        const box = element => element.getBoundingClientRect();
        return [
          [...document.querySelectorAll("math")].map(formula => [box(formula).width, box(formula).height]),
          [...document.querySelectorAll("mfrac")].map(f => box(f.children[1]).top - box(f.children[0]).bottom),
        ];
        """
    )
    assert formulas
    assert all(width > 0 and height > 0 for width, height in formulas)
    assert fractions
    assert min(fractions) > -1, "a numerator is not above its denominator"


def test_no_page_is_wider_than_a_phone(browser: WebDriver, site: Path) -> None:
    """Wide tables, formulas and code scroll by themselves; the page does not."""
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    wide = {}
    for page in pages:
        browser.get(page.as_uri())
        width = browser.execute_script("return document.documentElement.scrollWidth")
        if width > screen["width"]:
            wide[str(page.relative_to(site))] = width
    assert wide == {}


def test_search_finds_a_page_from_a_file_without_a_network(browser: WebDriver, site: Path) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what other tests left
    shown(browser, site / "results" / "index.html")
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").click()
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("shrinkage")
    first = WebDriverWait(browser, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, "a.md-search-result__link"))[0]
    assert "shrinkage" in first.text.lower()
    first.click()
    WebDriverWait(browser, 30).until(lambda b: "directions.html" in b.current_url)
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Directions and shrinkage")

    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert any(url.endswith("search_index.js") for url in urls)
    assert [url for url in urls if url.startswith(("http", "ws"))] == []
