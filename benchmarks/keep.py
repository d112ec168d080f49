"""How are runs of experiments kept with the code? `python -m benchmarks.keep runs/ benchmarks/recorded/NAME.jsonl`.

Every finished run below the folder becomes a line of the file: its settings, machine and end, and its evaluated rows,
at most 20 of them. So do the rates that were searched. Lines of runs that are there already are replaced, others stay.

`--back` makes the folders again of what is in the file. `pzobo report runs/` then shows these runs, and `pzobo run ...
--resume` makes those alone that are missing: a recording goes on in another session, on another machine. With --only
TEXT, those alone are kept whose folder or name has this text, so that a large recording can have several files.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pzobo.bench.report.markdown import MACHINE
from pzobo.bench.report.summary import thin
from pzobo.files import write_atomically
from pzobo.runs import json_text, names

ROWS = 20
ABSENT = ""
Line = dict[str, Any]
"""A folder, and what is in its files by their names."""


def finished(runs: Path) -> Iterator[Line]:
    """A line for each run that has ended, and one for each file of rates."""
    for path in sorted(runs.rglob("rates-*.json")):
        yield {"folder": path.parent.relative_to(runs).as_posix(), "files": {path.name: json_text.read(path)}}
    for path in sorted(runs.rglob(names.RESULT)):
        folder = path.parent
        environment = json_text.read(folder / names.ENVIRONMENT)
        files = {
            names.CONFIG: {"config": json_text.read(folder / names.CONFIG)["config"]},
            names.ENVIRONMENT: {key: environment.get(key) for key in MACHINE},
            names.METRICS: rows(folder / names.METRICS),
            names.RESULT: json_text.read(path),
        }
        yield {"folder": folder.relative_to(runs).as_posix(), "files": files}


def rows(path: Path) -> list[dict[str, Any]]:
    """The evaluated rows, thinned; numbers have six digits."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in found if row["evaluated"]]
    picked = {int(i) for i in thin(list(map(float, range(len(kept)))), ROWS)}
    return [{key: short(value) for key, value in kept[i].items()} for i in sorted(picked)]


def short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def key(line: Line) -> tuple[str, ...]:
    return line["folder"], *line["files"]


def packed(line: Line) -> Line:
    """The same with the names of the metrics once, and not in every row. What a row lacks is ABSENT."""
    rows = line["files"].get(names.METRICS)
    if rows is None:
        return line
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = {"keys": keys, "rows": [[row.get(key, ABSENT) for key in keys] for row in rows]}
    return {**line, "files": {**line["files"], names.METRICS: table}}


def unpacked(line: Line) -> Line:
    table = line["files"].get(names.METRICS)
    if table is None:
        return line
    pairs = (zip(table["keys"], row, strict=True) for row in table["rows"])
    rows = [{key: value for key, value in row if value != ABSENT} for row in pairs]
    return {**line, "files": {**line["files"], names.METRICS: rows}}


def stored(file: Path) -> list[Line]:
    return [unpacked(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def keep(runs: Path, file: Path, only: str = "") -> int:
    """Add what has ended to the file, where its folder or name has this text; how many lines the file has."""
    new = [line for line in finished(runs) if any(only in name for name in key(line))]
    lines = {key(line): line for line in [*stored(file), *new]}
    text = "".join(json.dumps(packed(line), separators=(",", ":")) + "\n" for _, line in sorted(lines.items()))
    write_atomically(file, text.encode())
    return len(lines)


def bring_back(runs: Path, file: Path) -> int:
    """Make the folders of the file again; what is there already stays as it is."""
    for line in (lines := stored(file)):
        for name, content in line["files"].items():
            path = runs / line["folder"] / name
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            texts = map(json.dumps, content if isinstance(content, list) else [content])
            path.write_text("".join(f"{text}\n" for text in texts))
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the runs, as given to --out")
    parser.add_argument("file", type=Path, help="the file that keeps them")
    parser.add_argument("--back", action="store_true", help="from the file into the folder")
    parser.add_argument("--only", default="", metavar="TEXT", help="keep what has this text in its folder or name")
    given = parser.parse_args()
    count = bring_back(given.runs, given.file) if given.back else keep(given.runs, given.file, given.only)
    print(f"{given.file}: {count} lines")


if __name__ == "__main__":
    main()
