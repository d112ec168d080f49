"""Is a run's folder safe from other runs, damage and a disk that refuses?"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import CheckpointError, OptionError, RunFolderError
from pzobo.runs import folder as run_folder
from tests.helpers import bowl, normal

X0 = normal(3)


def f(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    return y.square().sum() + x.sum()


def go(out: Path, steps: int = 4, x0: Any = X0, **options: Any) -> pzobo.Fit:
    method = options.pop("method", pzobo.Method(pzobo.GD(0.1, 4), pzobo.PZOBO(1e-3)))
    problem = options.pop("problem", pzobo.Problem(bowl, f, x0, torch.zeros(3, dtype=torch.float64)))
    return pzobo.fit(problem, method, steps, **{"lr": 0.1, "checkpoint_every": 2, **options, "out": out})


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    go(tmp_path / "run")
    return tmp_path / "run"


def test_what_is_in_it(run: Path) -> None:
    assert sorted(content(run)) == ["checkpoint.pt", "config.json", "environment.json", "metrics.jsonl", "result.json"]
    config = json.loads((run / "config.json").read_text())
    assert config["identity"]["seed"] == 0
    assert config["identity"]["method"].startswith("Method(solver=GD(lr=0.1, steps=4), jacobian=PZOBO(mu=0.001")
    assert json.loads((run / "environment.json").read_text())["torch"] == torch.__version__
    result = json.loads((run / "result.json").read_text())
    assert (result["stopped"], result["steps"], result["error"]) == ("steps", 4, None)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3, 4]
    mask = os.umask(0)
    os.umask(mask)
    assert {p.stat().st_mode & 0o777 for p in run.iterdir()} == {0o666 & ~mask}


def test_the_commit_is_that_of_the_checkout(run: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    commit = json.loads((run / "environment.json").read_text())["commit"]
    assert commit is None if not head else head.startswith(commit.rstrip("+"))


OTHERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "lr": {"lr": 0.2},
    "optimizer": {"optimizer": torch.optim.SGD},
    "scheduler": {"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 2)},
    "config": {"config": {"data": "mnist"}},
    "x0": {"x0": X0 + 1},
    "dtype": {"x0": X0.float()},
    "structure": {"x0": [X0]},
    "method": {"method": pzobo.Method(pzobo.GD(0.1, 4), pzobo.PZOBO(1e-2))},
    "loss": {"problem": pzobo.Problem(lambda x, y, b: bowl(x, y), f, X0, torch.zeros(3, dtype=torch.float64))},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("resume", [False, True])
def test_a_different_run_is_refused(name: str, resume: bool, run: Path) -> None:
    before = content(run)
    with pytest.raises(RunFolderError, match=r"holds a different run.*(there and|Choose)"):
        go(run, resume=resume, **OTHERS[name])
    assert content(run) == before


def test_what_differs_is_shown_though_it_comes_late(tmp_path: Path) -> None:
    def go(lr: float) -> None:
        method = pzobo.algorithms.SOBA(lr=lr, batch_size=None, outer_batch_size=None)
        pzobo.fit(pzobo.problems.quadratic(p=3, d=2), method, 2, out=tmp_path / "run", progress=False)

    go(0.1)
    with pytest.raises(RunFolderError, match=r"method is \.\.\..*lr=0\.1, .* there and \.\.\..*lr=0\.2, .* here"):
        go(0.2)


def test_the_same_run_needs_to_be_resumed(run: Path) -> None:
    before = content(run)
    with pytest.raises(RunFolderError, match=r"holds this run already.*resume=True"):
        go(run)
    assert content(run) == before


def test_notes_and_what_does_not_change_the_numbers_are_free(run: Path) -> None:
    go(run, 5, resume=True, notes={"why": "more"}, evaluate_every=2, checkpoint_every=0, progress=False)


class Alike:
    """An object whose repr has its address."""

    def __call__(self, x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        return x.detach().sin()


@pytest.mark.parametrize("box", [lambda: lambda x, y0, b: x.detach().sin(), Alike, lambda: Alike().__call__])
def test_functions_are_known_by_name_not_by_address(box: Any, tmp_path: Path) -> None:
    kept = []  # so that the next one has another address
    for steps in (2, 4):
        kept.append(pzobo.Method(pzobo.BlackBox(box()), pzobo.PZOBO()))
        assert go(tmp_path, steps, method=kept[-1], resume=True).steps == steps


def test_a_config_with_anything_in_it(tmp_path: Path) -> None:
    config = {"nan": float("nan"), "inf": float("inf"), "path": Path("x"), "set": (1, 2), "fn": f, "deep": {1: [None]}}
    go(tmp_path, 2, config=config)
    assert go(tmp_path, 4, config=config, resume=True).steps == 4


def test_a_run_that_failed_before_its_first_row_leaves_the_folder_free(tmp_path: Path) -> None:
    def broken(objective: Any) -> dict[str, float]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        go(tmp_path, evaluate=broken)
    assert json.loads((tmp_path / "result.json").read_text())["error"] == "mine"
    assert go(tmp_path, lr=0.2).steps == 4


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        go(tmp_path / "file")
    for name in ("metrics.jsonl", "checkpoint.pt", "environment.json"):
        (tmp_path / name[:3]).mkdir()
        (tmp_path / name[:3] / name).write_text("")
        with pytest.raises(RunFolderError, match=rf"holds {name} but no config.json"):
            go(tmp_path / name[:3], resume=True)
    for i, text in enumerate(["", "{", "[]", '{"my": "settings"}', "\0"]):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "config.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"not the config\.json of a run"):
            go(tmp_path / str(i), resume=True)
        assert (tmp_path / str(i) / "config.json").read_text() == text


# Checkpoints


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def saved(value: Any, sealed: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    if sealed:
        run_folder.seal(buffer)
    return buffer.getvalue()


def refused(run: Path, checkpoint: bytes, message: str) -> None:
    (run / "checkpoint.pt").write_bytes(checkpoint)
    before = content(run)
    with pytest.raises(CheckpointError, match=rf"(?s){message}.*left as it was"):
        go(run, 8, resume=True)
    assert content(run) == before


def test_damaged_checkpoints(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    good, choose = (run / "checkpoint.pt").read_bytes(), random.Random(0)
    refused(run, b"", "damaged")
    for _ in range(5):
        refused(run, good[: choose.randrange(len(good))], "damaged")
        refused(run, choose.randbytes(choose.randrange(3000)), "damaged")
    refused(run, pickle.dumps(Evil()), "damaged")
    refused(run, saved({"made_by": "pzobo", "x": Evil()}), "holds posix.system, which only code could load")
    assert not (run.parent / "evil").exists()


def test_one_bit_of_a_number(run: Path) -> None:
    """Torch would load it without a word."""
    good = (run / "checkpoint.pt").read_bytes()
    x = torch.load(io.BytesIO(good), weights_only=True)["x"][0].numpy().tobytes()
    place = good.index(x)
    refused(run, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], "checksum")


def test_checkpoints_of_something_else(run: Path, tmp_path: Path) -> None:
    good = torch.load(run / "checkpoint.pt", weights_only=True)
    refused(run, saved(torch.nn.Linear(2, 2).state_dict()), "not written by pzobo")
    refused(run, saved(X0), "not written by pzobo")
    refused(run, saved({**good, "format": 99}), "format 99, expected 3")
    refused(run, saved({**good, "format": torch.ones(2)}), "format tensor")
    refused(run, saved({**good, "made_by": torch.ones(2)}), "not written by pzobo")
    refused(run, saved({**good, "identity": {**good["identity"], "seed": torch.ones(2)}}), "seed is tensor")
    go(tmp_path / "other", optimizer=torch.optim.SGD)
    refused(run, (tmp_path / "other" / "checkpoint.pt").read_bytes(), r"different run.*optimizer is SGD")
    go(tmp_path / "wide", x0=normal(4)[:1])  # it could be broadcast
    foreign = torch.load(tmp_path / "wide" / "checkpoint.pt", weights_only=True)
    refused(run, saved({**foreign, "identity": good["identity"]}), r"shape \(3,\) where it has .*\(1,\)")
    refused(run, saved({**good, "x": [good["x"][0].float()]}), "float64 tensor.*float32")


PARTS = ("step", "seconds", "x", "optimizer", "scheduler", "objective", "save", "random", "pending", "metrics")
OTHER = {"text": "1", "number": -1, "none": None, "list": [1], "dict": {"a": 1}, "tensor": torch.ones(2)}


def test_a_checkpoint_has_these_parts(run: Path) -> None:
    good = torch.load(run / "checkpoint.pt", weights_only=True)
    assert good.keys() == {"made_by", "format", "identity", *PARTS}


def test_a_checkpoint_that_was_changed_by_hand(run: Path) -> None:
    """Torch would load it, and what it does to the states of optimizers and schedules only they could tell."""
    good = torch.load(run / "checkpoint.pt", weights_only=True)
    refused(run, saved(good, sealed=False), "was changed since pzobo.fit wrote it")
    good["optimizer"]["param_groups"][0]["betas"] = "no"
    refused(run, saved(good, sealed=False), "was changed since pzobo.fit wrote it")


@pytest.mark.parametrize("key", PARTS)
def test_a_part_of_a_checkpoint_is_missing_or_of_another_type(key: str, run: Path) -> None:
    good = torch.load(run / "checkpoint.pt", weights_only=True)
    refused(run, saved({k: v for k, v in good.items() if k != key}), f"has no '{key}'")
    for other in OTHER.values():
        if not (other is None and good[key] is None) and not (key == "scheduler" and isinstance(other, dict)):
            changed(run, {**good, key: other})
    changed(run, {**good, "x": [], "optimizer": {}})


@pytest.mark.parametrize("where", ["optimizer", "objective", "random", "metrics", "pending"])
def test_what_is_inside_of_a_part(where: str, tmp_path: Path) -> None:
    go(tmp_path, 6, target=lambda row: row["step"] == 3, evaluate_every=1)
    good = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert good[where], "there is something to change"
    for inner in good[where]:
        if inner != "numpy":  # it need not be installed
            changed(tmp_path, {**good, where: {k: v for k, v in good[where].items() if k != inner}})
        if (where, inner) != ("objective", "argmin"):
            changed(tmp_path, {**good, where: {**good[where], inner: "no"}})


def changed(run: Path, checkpoint: dict[str, Any]) -> None:
    """The checkpoint is refused, and nothing in the folder is changed by it."""
    (run / "checkpoint.pt").write_bytes(saved(checkpoint))
    before = content(run)
    with pytest.raises((CheckpointError, RunFolderError)):
        go(run, 8, resume=True)
    assert content(run) == before


def test_metrics_that_were_changed(run: Path) -> None:
    text = (run / "metrics.jsonl").read_bytes()
    place = text.index(b'"outer_loss": ') + 18
    digit = text[place : place + 1]
    assert digit.isdigit()
    less, more = text[:place] + text[place + 1 :], text[:place] + digit + text[place:]
    other = text[:place] + (b"1" if digit != b"1" else b"2") + text[place + 1 :]
    for changed in (
        b"",
        text[:100],
        b"x" * len(text),
        less,
        more,
        other,
        less + b'{"step"',
        text.replace(b"{", b"[", 1),
    ):
        (run / "metrics.jsonl").write_bytes(changed)
        before = content(run)
        with pytest.raises(RunFolderError, match="was changed since the checkpoint"):
            go(run, 8, resume=True)
        assert content(run) == before


def test_rows_after_the_checkpoint_may_be_anything(run: Path) -> None:
    """A process that was killed left them; they are made again."""
    expected = go(run.parent / "other", 8).history
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'3\n[]\n{}\n{"step": "a"}\n{"step": 4, "last": true}\n\xff\n' + b"[" * 100_000 + b'\n{"step": 5, ')
    found = go(run, 8, resume=True).history
    assert [row["outer_loss"] for row in found] == [row["outer_loss"] for row in expected]


# Folders and settings that are none


@pytest.mark.parametrize("out", ["", "a\0b", 3, b"bytes", "x" * 300, "half\ud800", ["list"]], ids=str)
def test_names_that_no_folder_has(out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OptionError, RunFolderError), match=r"folder|could not be written"):
        go(out)
    assert list(tmp_path.iterdir()) == []


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE


class NoText:
    def __repr__(self) -> str:
        raise ZeroDivisionError("mine")


@pytest.mark.parametrize("name", ["config", "notes"])
@pytest.mark.parametrize(
    "value",
    [3, "text", [("a", 1)], {"a": CIRCLE}, {"a": {(1, 2): 3}, (1, 2): 3}, {"a": 10**5000}, {"a": NoText()}],
    ids=["number", "text", "list", "circle", "key", "huge", "no text"],
)
def test_settings_that_are_none(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"{name}="):
        go(tmp_path / "new", **{name: value})
    assert not (tmp_path / "new").exists()


def test_a_config_with_half_a_character_goes_on(tmp_path: Path) -> None:
    go(tmp_path, 2, config={"a": "\ud800"})
    assert go(tmp_path, 3, config={"a": "\ud800"}, resume=True).steps == 3


class Odd:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@pytest.mark.parametrize("value", [Path("x"), lambda: 0, Odd], ids=["object", "function", "class"])
def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no code \(.*\).*save="):
        go(tmp_path, save={"odd": Odd(value)}, evaluate_every=0)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_save_needs_a_state() -> None:
    with pytest.raises(OptionError, match="thing is a int without state_dict"):
        pzobo.fit(
            pzobo.Problem(bowl, f, X0, X0), pzobo.Method(pzobo.GD(0.1, 2), pzobo.Unrolled()), 2, save={"thing": 3}
        )


# The disk


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    for out in (Path("/proc/pzobo"), Path("/dev/null/run")):
        with pytest.raises(RunFolderError, match="could not be written"):
            go(out)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        go(tmp_path / "file" / "run")


def test_a_disk_that_is_full(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "checkpoint.pt").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(run_folder.os, "fsync", full)
        with pytest.raises(RunFolderError, match=r"No space left on device.*still there"):
            go(run, 8, resume=True)
    assert (run / "checkpoint.pt").read_bytes() == before
    assert not list(run.glob(".*"))
    assert go(run, 8, resume=True).steps == 8


def test_only_one_at_a_time(tmp_path: Path) -> None:
    def nested(objective: Any) -> dict[str, float]:
        with pytest.raises(RunFolderError, match="in use"):
            go(tmp_path, resume=True)
        return {"asked": 1}

    found = go(tmp_path, evaluate=nested)
    assert found.history[0]["asked"] == 1
    assert go(tmp_path, 6, resume=True).steps == 6
