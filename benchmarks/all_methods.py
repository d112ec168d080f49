"""What has every method on every problem? `python -m benchmarks.all_methods docs/results`.

Reads the tables of the pages of results, and makes one table of them in `docs/results/README.md`: a row for each
method, a column for each problem. Only that part of the page changes. Where a method has several rows on a page, as
with two optimizers, the best one counts. The best of a column that is no control is bold.
"""

import argparse
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pzobo.bench.experiments.memory import DataCleaning, Quadratics
from pzobo.bench.report.markdown import table

HEADING = "## All methods on all problems"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
CONTROLS = (
    "Direct (no Jacobian)",
    "Exact",
    "Ordinary model, all data",
    "Ordinary model, clean data alone",
)
KNOWN = {named.label for named in {**DataCleaning.menu, **Quadratics.menu}.values()} | set(CONTROLS)
ALIASES = {
    "Direct": CONTROLS[0],
    "the network, all sources alike": CONTROLS[0],
    "exact (unrolled)": "ITD-R",
    "PZOBO, a direction for each source": "PZOBO, Q = p directions",
    "Gauss-Newton on the measured response": "Gauss-Newton on PZOBO's response",
    "CMA-ES": "CMA-ES",
    "TPE": "TPE",
    "Logistic regression, all data": CONTROLS[2],
    "logistic regression, all data": CONTROLS[2],
    "Logistic regression, both halves, strength by cross-validation": CONTROLS[2],
    "Logistic regression, training and validation data, strength by cross-validation": CONTROLS[2],
    "Logistic regression, clean data": CONTROLS[3],
    "logistic regression, target data alone": CONTROLS[3],
    "Logistic regression, validation half alone": CONTROLS[3],
    "Logistic regression, the clean validation data alone": CONTROLS[3],
}
"""What a page calls a method, where that is another name than the experiments'."""


@dataclass(frozen=True)
class Column:
    """A problem, and where its numbers stand.

    Args:
        head: the head of the column.
        page: the page.
        parts: headings of the page's parts, as far as they begin so.
        cells: the columns of a table that are read, as far as their heads begin so: the first of them that is there.
        least: whether the least is best.
        apart: the number follows a colon, as in "0.1: 0.02".
    """

    head: str
    page: str
    parts: tuple[str, ...]
    cells: tuple[str, ...]
    least: bool = True
    apart: bool = False


COLUMNS = (
    Column("[linear features](hr-linear.md): f after 100 steps", "hr-linear", ("Fig. 2 (a)",), ("final",)),
    Column("the same: f, inner problem solved", "hr-linear", ("Algorithms with a memory",), ("solved",)),
    Column("[two layers](hr-two-layer.md): f after 100 steps", "hr-two-layer", ("Fig. 2 (d, e)",), ("final",)),
    Column("the same: f, inner problem solved", "hr-two-layer", ("What x is worth",), ("solved",)),
    Column("[LeNet](hr-lenet.md): accuracy after 80 s", "hr-lenet", ("Fig. 3 (a, b)",), ("final",), least=False),
    Column("the same: after 12 s", "hr-lenet", ("What beats Direct",), ("12 s",), least=False),
    Column(
        "[20 Newsgroups](ho-logistic.md): test accuracy after 180 s",
        "ho-logistic",
        ("Fig. 5: newsgroups, N = 5", "The ordinary model"),
        ("test accuracy",),
        least=False,
    ),
    Column(
        "[reweighting](reweight.md): test accuracy",
        "reweight",
        ("Reweighting", "The ordinary model", "Algorithms with a memory"),
        ("final", "test accuracy"),
        least=False,
    ),
    Column(
        "[data cleaning](data-cleaning.md), 0.5: loss, solved / test error in %",
        "data-cleaning",
        ("Random labels: a share of 0.5",),
        ("inner problem solved", "60 s"),
    ),
    Column("the same, 0.9", "data-cleaning", ("Random labels: a share of 0.9",), ("inner problem solved", "60 s")),
    Column(
        "[quadratics](quadratics.md): squared gradient",
        "quadratics",
        ("Squared gradient",),
        ("SGD", "Adam"),
        apart=True,
    ),
    Column(
        "[source weights](source-weights.md), K = 8: test accuracy",
        "source-weights",
        ("Test accuracy", "Algorithms with a memory"),
        ("K = 8",),
        least=False,
    ),
    Column(
        "the same, K = 64",
        "source-weights",
        ("Test accuracy", "Algorithms with a memory"),
        ("K = 64",),
        least=False,
    ),
)


def tables(text: str, parts: tuple[str, ...]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Head and rows of each table in those parts of a page."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        if not part.startswith(parts) or part.startswith("Test accuracy after"):
            continue
        for found in re.finditer(r"(?:^\|.*\n)+", part, flags=re.M):
            lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
            yield lines[0], lines[2:]


def names(label: str) -> list[str]:
    """The methods of a row: one, or several with commas between them."""
    label = label.replace("-S,", ",").removesuffix("-S")
    label = re.sub(r", (rate|initial).*| \(\d+ did not.*", "", label)
    label = ALIASES.get(label, label)
    if label in KNOWN or label in ALIASES.values():
        return [label]
    several = [ALIASES.get(part, part) for part in label.split(", ")]
    return several if all(part in KNOWN for part in several) else []


def value(cell: str, apart: bool) -> tuple[float, str] | None:
    """What to rank by, and what to show: the first number, or the median where there are only numbers."""
    cell = cell.replace("*", "")
    text = cell.rpartition(": ")[2] if apart else cell
    found = NUMBER.findall(text)
    if not found:
        return None
    if re.fullmatch(r"[\d.e+\-\s]+", text.strip()) and len(found) > 1:
        middle = statistics.median(map(float, found))
        return middle, f"{middle:.3f}"
    if " / " in text:
        return float(found[0]), text
    return float(found[0]), f"{float(found[0]):.3g}" if len(found[0]) > 6 else found[0]


def read(column: Column, folder: Path) -> dict[str, tuple[float, str]]:
    """The best of each method in a column."""
    best: dict[str, tuple[float, str]] = {}
    sign = 1 if column.least else -1
    for head, rows in tables((folder / f"{column.page}.md").read_text(), column.parts):
        places = [next((i for i, h in enumerate(head) if h.startswith(start)), None) for start in column.cells]
        for row in rows:
            values = [value(row[i], column.apart) for i in places if i is not None]
            there = [v for v in values if v is not None]
            for method in names(row[0]) if there else []:
                new = min(there, key=lambda v: sign * v[0]) if column.apart else there[0]
                if method not in best or sign * new[0] < sign * best[method][0]:
                    best[method] = new
    return best


def made(folder: Path) -> str:
    """The table: controls first, and then the methods in the order of the experiments' menu."""
    found = [read(column, folder) for column in COLUMNS]
    labels = [named.label for named in {**DataCleaning.menu, **Quadratics.menu}.values()]
    others = sorted({method for column in found for method in column} - set(labels) - set(CONTROLS))
    order = [*CONTROLS, *(label for label in labels if label not in CONTROLS), *others]
    rows = []
    for method in order:
        cells = []
        for column, best in zip(COLUMNS, found, strict=True):
            ranked = [v[0] for name, v in best.items() if name not in CONTROLS]
            first = (min if column.least else max)(ranked)
            number, text = best.get(method, (None, ""))
            cells.append(f"**{text}**" if number == first and method not in CONTROLS else text)
        if any(cells):
            rows.append([method, *cells])
    return table(["", *(column.head for column in COLUMNS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the pages")
    folder = parser.parse_args().folder
    page = folder / "README.md"
    before, heading, rest = page.read_text().partition(f"{HEADING}\n")
    text, bar, after = rest.partition("\n| ")
    if not (heading and bar):
        raise SystemExit(f"{page} has no part '{HEADING}' with a table.")
    kept = after.partition("\n\n")[2]
    page.write_text(f"{before}{heading}{text}\n{made(folder)}\n\n{kept}")


if __name__ == "__main__":
    main()
