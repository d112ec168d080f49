"""Which inputs break a parser? `python -m tests.fuzz [--seconds 300] [TARGET ...]` tries many; `make test` tries some.

A target writes a file that is damaged in some way and reads it. The answer must be a value or an error of this library:
no other exception, nothing run that a file asks for, and no more time or memory than a file of its size can need.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import struct
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

import pzobo
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.report import markdown
from pzobo.bench.report.html_report import write_report
from pzobo.bench.report.runs import read
from pzobo.data import read_miniimagenet, read_omniglot
from pzobo.data.idx import parse_idx
from pzobo.data.safe_pickle import load_arrays
from pzobo.errors import PzoboError
from pzobo.runs import folder as run_folder
from pzobo.theory.measurements import Point, Sweep, Verification
from tests.helpers import bowl

MEGABYTES, SECONDS = 700, 20.0
"""What one input may take above what the process had, and how long."""

# Damage


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -1, 10**400, -(10**400), 1e308, 5e-324, float("nan"), float("inf")]),
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\ud800", "\0", "../../x", "</script>", "$", "|\n", "pzobo", "hr-linear", "x" * 300, "NaN"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a tree of dicts and lists."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The tree with something else at a place; Ellipsis takes away what is there."""
    if not at:
        return None if new is Ellipsis else new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and new is Ellipsis:
        del copy[at[0]]
    else:
        copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@st.composite
def other_trees(draw: st.DrawFn, good: Any, values: st.SearchStrategy[Any] = JSON) -> Any:
    """A good value with up to three places changed or gone."""
    for _ in range(draw(st.integers(1, 3))):
        good = replaced(good, draw(st.sampled_from(list(paths(good)))), draw(st.just(...) | values))
    return good


@st.composite
def other_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes, cut off, with some changed, put in or gone; or anything at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place, size = draw(st.integers(0, len(content))), draw(st.integers(0, 8))
        content[place : place + size] = draw(st.binary(max_size=8))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 3)) == 0 else content)


def other_json(good: Any) -> st.SearchStrategy[bytes]:
    written = other_trees(good).map(lambda value: json.dumps(value).encode())
    deep = st.integers(40, 3000).map(lambda n: b"[" * n + b"]" * n)
    return written | other_bytes(json.dumps(good).encode()) | deep


# Targets


@dataclass(frozen=True)
class Target:
    """How inputs are made, what reads them, and how many `make test` tries."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any], Any]
    examples: int
    tried: dict[str, int] = field(default_factory=dict)


ABOUTS = [kind.about for kind in EXPERIMENTS.values()]
CONFIG = {
    "format": 3,
    "identity": {},
    "config": {
        "experiment": "hr-linear",
        "method": "pzobo-authors",
        "label": "PZOBO",
        "seed": 0,
        "lr": 0.1,
        "d": 128,
        "N": 20,
        "command": "pzobo run hr-linear",
        "lr_search": {"0.1": 2.0},
    },
}
ROWS = [{"step": i, "seconds": 0.5 * i, "outer_loss": 4.0 / (i + 1), "memory": 3.0, "accuracy": 0.5} for i in range(4)]
RESULT = {"stopped": "failed", "error": "It was not finite.", "steps": 3, "seconds": 1.0}


def report(config: bytes, metrics: bytes, result: bytes) -> None:
    """A good run and a damaged one beside it, as a page and as Markdown: nothing is written elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        lines = "\n".join(map(json.dumps, ROWS)).encode()
        good = (json.dumps(CONFIG).encode(), lines, json.dumps(RESULT).encode())
        for kind, parts in (("good", good), ("bad", (config, metrics, result))):
            (root / "runs" / kind).mkdir(parents=True)
            for file, content in zip(("config.json", "metrics.jsonl", "result.json"), parts, strict=True):
                (root / "runs" / kind / file).write_bytes(content)
        runs = read(root / "runs")
        assert any(run.folder.name == "good" and len(run.rows) == 4 for run in runs)
        before = set(root.rglob("*"))
        page = write_report(runs, ABOUTS, root / "out" / "page.html")
        assert "PZOBO" in page.read_text(encoding="utf-8")
        markdown.write(runs, ABOUTS, root / "out" / "pages")
        new = {path.parent for path in set(root.rglob("*")) - before}
        assert new <= {root, root / "out", root / "out" / "pages"}


def theory(content: bytes) -> None:
    from pzobo.theory.presentation import page

    found = Verification.from_json(content)
    assert isinstance(found.ok, bool)
    if len(found.sweeps) < 4:
        page(found).encode()


THEORY = Verification(
    (Sweep("P", "error", "quadratic", "Q", (Point(1, 2.0, 0.1, 3.0, 2.5), Point(4, 1.0, 0.1, 3.0)), -1.0),), 3.5
)


def outer(x: Any, y: Any, batch: Any) -> Any:
    return y.square().sum() + x.sum()


def go(out: Path, steps: int) -> pzobo.Fit:
    """A run with a schedule, minibatches, a sampler and a row whose step is not made."""
    data = torch.ones(6, 3, dtype=torch.float64)
    x0 = torch.ones(3, dtype=torch.float64)
    problem = pzobo.Problem(lambda x, y, b: bowl(x, y) + 0 * b.sum(), outer, x0, x0, data, data)
    method = pzobo.Method(pzobo.GD(0.1, 2), pzobo.PZOBO(1e-3, 1, pzobo.Gaussian(seed=1)), batch_size=2)
    return pzobo.fit(
        problem,
        method,
        steps,
        lr=0.1,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
        out=out,
        resume=True,
        evaluate_every=2,
        target=lambda row: row["step"] == 2 and steps == 5,
    )


def good_run() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        go(Path(name), 5)
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


GOOD_RUN = good_run()
CHECKPOINT = torch.load(io.BytesIO(GOOD_RUN["checkpoint.pt"]), weights_only=True)
STATES = st.one_of(
    JSON,
    st.sampled_from([torch.ones(2), torch.zeros(0), torch.ones(3, dtype=torch.float64), torch.tensor(float("nan"))]),
)


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def saved(state: Any, sealed: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if sealed:
        run_folder.seal(buffer)
    return buffer.getvalue()


def trees_of_tensors(value: Any) -> Any:
    """Lists and dicts as `paths` knows them."""
    return {k: trees_of_tensors(v) for k, v in value.items()} if isinstance(value, dict) else value


@st.composite
def checkpoints(draw: st.DrawFn) -> dict[str, bytes]:
    """A run's folder whose checkpoint, or metrics, or config are others."""
    kind = draw(st.sampled_from(["bytes", "unsealed", "parts", "evil", "metrics", "config"]))
    files = dict(GOOD_RUN)
    if kind == "bytes":
        files["checkpoint.pt"] = draw(other_bytes(GOOD_RUN["checkpoint.pt"]))
    elif kind == "unsealed":
        files["checkpoint.pt"] = saved(draw(other_trees(trees_of_tensors(CHECKPOINT), STATES)), sealed=False)
    elif kind == "parts":  # whoever writes a seal knows what he does; but the parts are looked at
        part = draw(st.sampled_from(sorted(CHECKPOINT)))
        files["checkpoint.pt"] = saved({**CHECKPOINT, part: draw(STATES)}, sealed=True)
    elif kind == "evil":
        files["checkpoint.pt"] = saved({**CHECKPOINT, "x": Evil("@trap")}, sealed=draw(st.booleans()))
    elif kind == "metrics":
        files["metrics.jsonl"] = draw(other_bytes(GOOD_RUN["metrics.jsonl"]))
    else:
        files["config.json"] = draw(other_json(json.loads(GOOD_RUN["config.json"])))
    return files


def resume(files: dict[str, bytes]) -> None:
    """The run goes on in the same numbers, or it is refused and its folder is as it was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with contextlib.chdir(name):
            try:
                found = go(folder, 6)
            except PzoboError:
                assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
                raise
            finally:
                assert not (Path(name) / "@trap").exists()
        assert [row["step"] for row in found.history] == list(range(7))
        assert np.isfinite([row["outer_loss"] for row in found.history]).all()


def picture(kind: str = "jpeg") -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((84, 84), 50).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


JPEG, PNG = picture(), picture("png")


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


NPZ = {
    "jpeg.npy": npy(np.frombuffer(JPEG * 2, np.uint8)),
    "offsets.npy": npy(np.array([0, len(JPEG), 2 * len(JPEG)])),
    "labels.npy": npy(np.array([0, 1])),
    "wnids.npy": npy(np.array(["n1", "n2"])),
}
OMNIGLOT = {"images/Greek/character01/01.png": PNG, "images/Greek/character02/01.png": PNG}


def packed(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@st.composite
def other_archives(draw: st.DrawFn, good: dict[str, bytes]) -> bytes:
    """A zip file with damage in one of its files, or in itself; or a bomb."""
    kind = draw(st.sampled_from(["inside", "outside", "array", "missing", "bomb"]))
    if kind == "outside":
        return draw(other_bytes(packed(good)))
    name = draw(st.sampled_from(sorted(good)))
    if kind == "inside":
        return packed({**good, name: draw(other_bytes(good[name]))}, draw(st.sampled_from([0, 8, 12, 14])))
    if kind == "array":
        dtype = draw(st.sampled_from(["u1", "i8", "f8", "U3", "S2", "?", "c8", "M8[s]"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        return packed({**good, name: npy(np.zeros(shape, dtype))})
    if kind == "bomb":
        return packed({**good, name: good[name] + bytes(draw(st.integers(0, 2**26)))})
    return packed({key: value for key, value in good.items() if key != name})


@st.composite
def idx_files(draw: st.DrawFn) -> bytes:
    """A header that claims some shape, and some bytes; or damage to such a file."""
    shape = draw(st.lists(st.integers(0, 5) | st.sampled_from([2**31, 2**32 - 1, 10**6]), max_size=6))
    count = draw(st.just(int(np.prod([float(n) for n in shape]))) | st.integers(0, 50))
    content = bytes([0, 0, draw(st.sampled_from([8, 8, 8, 9])), draw(st.just(len(shape)) | st.integers(0, 255))])
    content += b"".join(struct.pack(">I", n) for n in shape) + bytes(min(count, 2**22))
    whole = gzip.compress(content, 1)
    return whole if draw(st.booleans()) else draw(other_bytes(whole))


GLOBALS = [
    "os system", "builtins eval", "numpy ndarray", "numpy dtype", "numpy load", "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray scalar", "numpy._core.numeric _frombuffer", "_codecs encode", "__builtin__ bytes",
]  # fmt: skip
OPCODES = st.one_of(
    st.sampled_from([b"(", b".", b"0", b"t", b"l", b"d", b"R", b"b", b"\x85", b"\x86", b"\x87", b"\x81", b"]", b"}"]),
    st.sampled_from([b"N", b"\x88", b"u", b"s", b"a", b"e", b"Q", b"2", b")", b"\x92", b"\x93", b"\x94", b"o"]),
    st.sampled_from(GLOBALS).map(lambda name: b"c" + name.replace(" ", "\n").encode() + b"\n"),
    st.integers(-(2**40), 2**40).map(lambda n: b"I%d\n" % n),
    st.sampled_from(["O8", "u1", "i8", "V9999999", "b", "latin1", "zlib", "U99999"]).map(
        lambda s: f"S'{s}'\n".encode()
    ),
    st.integers(0, 2**32 - 1).map(lambda n: b"r" + struct.pack("<I", n)),
    st.integers(0, 255).map(lambda n: b"h" + bytes([n])),
    st.integers(0, 2**63).map(lambda n: b"\x8e" + struct.pack("<Q", n)),
    st.binary(max_size=20).map(lambda b: b"\x8c" + bytes([len(b)]) + b),
)
IMAGES = {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"a": [0], "b": np.array([1])}}


@st.composite
def pickles(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["opcodes", "bytes", "values", "evil"]))
    protocol = draw(st.integers(0, 5))
    if kind == "opcodes":
        return b"".join(draw(st.lists(OPCODES, max_size=25))) + b"."
    if kind == "bytes":
        small = {**IMAGES, "image_data": np.zeros(3, np.uint8)}
        return draw(other_bytes(pickle.dumps(small, protocol)))
    if kind == "evil":
        return pickle.dumps({**IMAGES, "class_dict": Evil("@trap")}, protocol)
    return pickle.dumps(draw(other_trees({**IMAGES, "class_dict": {"a": [0], "b": [1]}})), protocol)


def unpickle(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("it.pkl").write_bytes(content)
        try:
            load_arrays(io.BytesIO(content), "it")
            images, names = read_miniimagenet.from_pickle(Path("it.pkl"))
            assert len(images) == len(names)
        finally:
            assert os.listdir() == ["it.pkl"]


def csv_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "images").mkdir()
        (Path(name) / "images" / "a.jpg").write_bytes(JPEG)
        (Path(name) / "it.csv").write_bytes(content)
        read_miniimagenet.from_csv(Path(name) / "it.csv")


CELLS = TEXTS | st.sampled_from(["a.jpg", "n1", "..", "/etc/passwd", '"', "a\nb", "\u2028"])
CSV = st.lists(st.lists(CELLS, max_size=3), max_size=4).map(
    lambda rows: ("filename,label\n" + "\n".join(map(",".join, rows))).encode("utf-8", "surrogatepass")
)
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
ROW_LINES = st.lists(other_json(ROWS[0]), max_size=4).map(b"\n".join)

TARGETS = {
    "config.json": Target(other_json(CONFIG), lambda b: report(b, LINES, json.dumps(RESULT).encode()), 15),
    "metrics.jsonl": Target(
        ROW_LINES | other_bytes(LINES),
        lambda b: report(json.dumps(CONFIG).encode(), b, json.dumps(RESULT).encode()),
        15,
    ),
    "result.json": Target(other_json(RESULT), lambda b: report(json.dumps(CONFIG).encode(), LINES, b), 8),
    "theory.json": Target(other_json(json.loads(THEORY.to_json())), theory, 100),
    "checkpoint.pt": Target(checkpoints(), resume, 60),
    "idx": Target(idx_files(), lambda content: parse_idx(content, "it"), 200),
    "npz": Target(other_archives(NPZ), lambda content: read_miniimagenet.from_npz(content, "it"), 60),
    "zip": Target(other_archives(OMNIGLOT), lambda content: read_omniglot.decode(content, "it"), 60),
    "csv": Target(CSV | other_bytes(b"filename,label\na.jpg,n1\na.jpg,n2\n"), csv_file, 100),
    "pkl": Target(pickles(), unpickle, 200),
}


def allowed(target: Target, content: Any) -> None:
    """Read one input: a value, or an error of this library, soon and without much memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            target.read(content)
            answer = "warnings" if said else "values"
        except PzoboError:
            answer = "errors"
    target.tried[answer] = target.tried.get(answer, 0) + 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"{grown:.0f} MB"
    assert time.process_time() - began < SECONDS


def run(name: str, examples: int, number: int | None = None) -> None:
    """Try so many inputs of a target; the smallest that breaks it is shown."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(TARGETS[name].inputs)
    def trial(content: Any) -> None:
        allowed(TARGETS[name], content)

    (trial if number is None else seed(number)(trial))()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Try damaged files on every parser.")
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    options = parser.parse_args()
    failed = 0
    for name in options.targets or TARGETS:
        end, number = time.monotonic() + options.seconds, int(time.time())
        try:
            while time.monotonic() < end:
                run(name, 50, number)
                number += 1
            found = "nothing found"
        except Exception as error:
            failed += 1
            found = f"broken: {type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc()  # hypothesis puts the smallest input below it
        tried = TARGETS[name].tried
        print(f"{name}: {sum(tried.values())} inputs ({tried}), seed {number}: {found}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
