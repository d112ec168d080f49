"""What reads the files of a run, and how are they damaged? Config, metrics, result, theory and checkpoint."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import pzobo
from pzobo.bench.experiments import EXPERIMENTS
from pzobo.bench.report import markdown
from pzobo.bench.report.html_report import write_report
from pzobo.bench.report.runs import read
from pzobo.errors import PzoboError
from pzobo.runs import folder as run_folder
from pzobo.theory.measurements import Point, Sweep, Verification
from tests.fuzz.damage import JSON, Evil, other_bytes, other_json, other_trees
from tests.helpers import bowl

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


LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
ROW_LINES = st.lists(other_json(ROWS[0]), max_size=4).map(b"\n".join)
