"""Does the outer loop do what the same loop written by hand does, and say what it did?"""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pzobo
from pzobo.errors import MissingExtraError, NonFiniteError, OptionError, RequirementError, ScalarLossError
from pzobo.outer.objective import Objective
from tests.helpers import LR, STEPS, bowl, descend, normal

ZERO = torch.zeros(3, dtype=torch.float64)
METHOD = pzobo.Method(pzobo.GD(LR, STEPS), pzobo.Unrolled())
SCHEDULES = torch.optim.lr_scheduler


def f(x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
    return (y - 1).square().sum() + 0.1 * x.square().sum()


PROBLEM = pzobo.Problem(bowl, f, normal(3), ZERO)


def pair(x: Any, y: Tensor, batch: Any = None) -> Tensor:
    return bowl(x["a"] * x["b"][0].to(x["a"]), y)


TREE = pzobo.Problem(
    pair, lambda x, y, b: f(x["a"], y), {"a": normal(3, dtype=torch.float32), "b": (torch.ones(()),)}, ZERO.float()
)


def momentum(tensors: list[Tensor], lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr, momentum=0.9)


# Values


def test_the_same_as_the_loop_by_hand() -> None:
    x = normal(3).requires_grad_()
    optimizer = torch.optim.Adam([x], 0.05)
    schedule = SCHEDULES.StepLR(optimizer, 3, 0.5)
    losses, norms, inner = [], [], []
    for _ in range(8):
        y = descend(lambda y: bowl(x, y), ZERO)
        loss = f(x, y)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(x.grad.norm().item())
        inner.append(bowl(x.detach(), y.detach()).item())
        optimizer.step()
        schedule.step()
    y = descend(lambda y: bowl(x, y), ZERO)
    found = pzobo.fit(
        PROBLEM, METHOD, 8, lr=0.05, scheduler=lambda o: SCHEDULES.StepLR(o, 3, 0.5), evaluate_every=1, progress=False
    )
    torch.testing.assert_close(found.x, x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.y, y.detach(), rtol=1e-10, atol=1e-12)
    assert [row["step"] for row in found.history] == list(range(9))
    assert [row["outer_loss"] for row in found.history] == pytest.approx([*losses, f(x, y).item()], rel=1e-10)
    assert [row["hypergradient_norm"] for row in found.history[:-1]] == pytest.approx(norms, rel=1e-9)
    assert [row["inner_loss"] for row in found.history[:-1]] == pytest.approx(inner, rel=1e-10)
    assert found.history[-1]["hypergradient_norm"] is None
    assert [row["val_loss"] for row in found.history] == [row["outer_loss"] for row in found.history]
    assert (found.steps, found.stopped) == (8, "steps")
    assert 0 < found.seconds == found.history[-1]["seconds"]
    assert torch.equal(PROBLEM.x0, normal(3)), "the problem's own tensors are not touched"


# What x may be


def test_x_of_many_kinds() -> None:
    """Module parameters, a frozen and a tied tensor, several dtypes, integers and constants."""
    layer = nn.Linear(3, 1)
    layer.bias.requires_grad_(False)
    x0 = {
        "layer": dict(layer.named_parameters()),
        "tied": [layer.weight, normal(3).requires_grad_()],
        "index": torch.tensor([2, 0, 1]),
        "name": "x",
    }

    def read(x: Any) -> Tensor:
        return (x["layer"]["weight"][0].double() + x["tied"][1])[x["index"]] + x["layer"]["bias"].double()

    problem = pzobo.Problem(lambda x, y, b: bowl(read(x), y), lambda x, y, b: f(x["tied"][0].double(), y), x0, ZERO)
    x = pzobo.fit(problem, METHOD, 3, lr=0.1).x
    assert x["layer"]["weight"] is x["tied"][0]
    assert not torch.equal(x["tied"][0], layer.weight)
    assert not torch.equal(x["tied"][1], x0["tied"][1])
    assert torch.equal(x["layer"]["bias"], layer.bias)
    assert torch.equal(x["index"], x0["index"])
    assert x["name"] == "x"
    assert (x["tied"][0].dtype, x["tied"][1].dtype) == (torch.float32, torch.float64)


def test_an_x_without_variables() -> None:
    with pytest.raises(OptionError, match="nothing to optimize"):
        pzobo.fit(pzobo.Problem(bowl, f, torch.tensor([1, 2, 3]), ZERO), METHOD, 3)


def test_variables_that_get_no_gradient() -> None:
    class Half(Objective):
        x = (torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))

        def outer_loss(self) -> Tensor:
            return self.x[0].square().sum()

    class Start:
        def start(self, problem: Any, seed: int = 0) -> Objective:
            return Half()

    found = pzobo.fit(None, Start(), 1, lr=0.1)
    assert found.history[0]["hypergradient_norm"] == pytest.approx(math.sqrt(8))
    assert torch.equal(found.x[1], torch.ones(2))


def test_x_can_be_written_into_a_module() -> None:
    layer = nn.Linear(3, 1, dtype=torch.float64)
    before = layer.weight.detach().clone()
    x0 = dict(layer.named_parameters())
    problem = pzobo.Problem(
        lambda x, y, b: bowl(x["weight"][0] + x["bias"], y), lambda x, y, b: f(x["weight"], y), x0, ZERO
    )
    found = pzobo.fit(problem, METHOD, 3, lr=0.1)
    assert torch.equal(layer.weight, before), "fit does not do it by itself"
    found.copy_to(dict(layer.named_parameters()))
    assert torch.equal(layer.weight, found.x["weight"])
    assert torch.equal(layer.bias, found.x["bias"])
    assert not torch.equal(layer.weight, before)
    assert layer.weight.requires_grad
    assert layer.weight.grad_fn is None
    again = pzobo.fit(problem, METHOD, 1, lr=0.1)
    assert again.history[0]["outer_loss"] == found.history[-1]["outer_loss"], "a new run starts where the last ended"


def test_x_can_be_written_into_any_tree_of_its_structure() -> None:
    found = pzobo.fit(TREE, METHOD, 2, lr=0.1)
    tree = {"b": (torch.zeros(()),), "a": torch.zeros(3)}
    found.copy_to(tree)
    assert torch.equal(tree["a"], found.x["a"])
    assert torch.equal(tree["b"][0], found.x["b"][0])
    whole = {"b": (torch.zeros(()),), "a": torch.zeros(3)}
    others = [nn.Linear(3, 1), torch.zeros(3), {"a": whole["a"]}, {**whole, "a": torch.zeros(1)}, {**whole, "a": None}]
    for other in [*others, {**whole, "a": torch.zeros(3, dtype=torch.float64)}, {**whole, "b": (1.0,)}]:
        with pytest.raises(pzobo.errors.StructureError, match="copy_to got"):
            found.copy_to(other)
    assert not whole["a"].any()
    assert not whole["b"][0], "nothing is written when anything is refused"


# Evaluation


def test_what_evaluate_may_return(tmp_path: Path) -> None:
    values = {"tensor": torch.tensor(1.5), "one": torch.ones(1), "nan": math.nan, "int": 3, "none": None, "yes": True}
    found = pzobo.fit(PROBLEM, METHOD, 2, evaluate=lambda o: values, evaluate_every=0, out=tmp_path)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row == found.history[-1]
    assert [row[key] for key in values] == [1.5, 1.0, None, 3, None, True]
    assert "tensor" not in found.history[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, "returned a float; expected a dict"),
        (None, "returned a NoneType"),
        ({1: 2.0}, "the key 1"),
        ({"a": 10**400}, "'a' as a int"),
        ({"a": "b"}, "'a' as a str"),
        ({"a": torch.ones(2)}, "one number"),
        ({"step": 1}, "rename"),
        ({"audit_ratio": 1.0}, "rename"),
    ],
)
def test_what_evaluate_may_not_return(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pzobo.fit(PROBLEM, METHOD, 2, evaluate=lambda o: value)


def test_evaluations_leave_no_trace_but_see_the_gradient() -> None:
    seen = []

    def evaluate(objective: Any) -> dict[str, float]:
        seen.append(None if objective.x.grad is None else float(objective.x.grad.norm()))
        torch.rand(5)
        with torch.enable_grad():
            objective.outer_loss().backward()
        return {}

    method = pzobo.Method(pzobo.GD(LR, STEPS), pzobo.PZOBO(1e-3), warm_start=True)
    plain = pzobo.fit(PROBLEM, method, 6, lr=0.1, evaluate_every=0)
    found = pzobo.fit(PROBLEM, method, 6, lr=0.1, evaluate_every=1, evaluate=evaluate)
    assert torch.equal(found.x, plain.x)
    assert seen == [pytest.approx(row["hypergradient_norm"]) for row in found.history[:-1]] + [None]


# When to stop


def test_targets() -> None:
    whole = pzobo.fit(PROBLEM, METHOD, 30, lr=0.05, evaluate_every=3).history
    target = whole[10]["outer_loss"]
    assert target == min(row["outer_loss"] for row in whole[:11])
    found = pzobo.fit(PROBLEM, METHOD, 30, lr=0.05, evaluate_every=3, target=target)
    assert (found.stopped, found.steps) == ("target", 12)
    assert found.history[-1]["outer_loss"] == pytest.approx(f(found.x, found.y).item(), rel=1e-12)
    found = pzobo.fit(PROBLEM, METHOD, 30, lr=0.05, evaluate_every=3, target=lambda row: row["val_loss"] <= target)
    assert (found.stopped, found.steps) == ("target", 12)
    assert pzobo.fit(PROBLEM, METHOD, 11, lr=0.05, evaluate_every=0, target=target).stopped == "target"
    assert pzobo.fit(PROBLEM, METHOD, 5, lr=0.05, target=-1.0).stopped == "steps"


def test_a_time_budget_counts_the_steps_alone() -> None:
    found = pzobo.fit(PROBLEM, METHOD, 10**9, lr=1e-4, seconds=0.05, evaluate_every=7)
    assert found.stopped == "seconds"
    before, last = found.history[-2:]
    assert before["seconds"] < 0.05 <= last["seconds"]
    assert "val_loss" in last


def test_the_clock_runs_in_loss_gradient_and_step_alone() -> None:
    """A clock that goes on by one whenever it is read: two readings a piece, two pieces a step."""
    readings = iter(range(10**6))
    found = pzobo.fit(PROBLEM, METHOD, 5, lr=0.1, clock=lambda: next(readings), evaluate_every=1, warm_up=True)
    assert [row["seconds"] for row in found.history] == [2 * k for k in range(6)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"evaluate_every": -1}, "evaluate_every=-1"),
        ({"checkpoint_every": 1.5}, r"checkpoint_every=1\.5"),
        ({"seconds": 0}, "seconds=0"),
        ({"target": "low"}, "target='low'"),
        ({"seed": 0.5}, r"seed=0\.5"),
        ({"resume": True}, "out="),
        ({"tensorboard": True}, "out="),
        ({"scheduler": lambda o: 3}, "scheduler is a int"),
        ({"scheduler": "cosine"}, "scheduler='cosine': give a function"),
        ({"scheduler": lambda: 3}, "scheduler= cannot be made"),
        ({"lr": "0.1"}, r"lr='0\.1'"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": math.inf}, "lr=inf"),
        ({"lr": -1.0}, r"lr=-1\.0"),
        ({"optimizer": "adam"}, "optimizer='adam': give a class of torch"),
        ({"optimizer": torch.optim.Adam([torch.ones(1)])}, "optimizer=Adam .*: give a class of torch"),
        ({"optimizer": lambda tensors: 3}, "optimizer= made a int"),
        ({"optimizer": lambda: 3}, "optimizer= cannot be made"),
        ({"optimizer": torch.optim.SGD, "lr": 0.1, "method": 3}, "method=3: give a method"),
        ({"method": pzobo.algorithms.SOBA}, r"method=<class '.*SOBA'>: give a method"),
        ({"evaluate": "accuracy"}, "evaluate='accuracy': give a function"),
        ({"evaluate_at_end": {}}, "evaluate_at_end={}: give a function"),
        ({"clock": 3}, "clock=3: give a function"),
        ({"save": [1]}, r"save=\[1\]: give a dict"),
        ({"save": 3}, "save=3: give a dict"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        pzobo.fit(PROBLEM, **{"steps": 2, "method": METHOD, **options})
    if not {"resume", "tensorboard"} & options.keys():
        with pytest.raises(OptionError, match=message):
            pzobo.fit(PROBLEM, **{"steps": 2, "method": METHOD, **options, "out": tmp_path / "new"})
        assert not (tmp_path / "new").exists()


# Numbers that are not finite, and losses that are none


def failing(outer: Any, **options: Any) -> None:
    pzobo.fit(pzobo.Problem(bowl, outer, normal(3), ZERO), METHOD, 5, **options)


def test_losses_that_end_a_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"outer loss is nan at outer step 0.*smaller"):
        failing(lambda x, y, b: f(x, y) * math.nan, out=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stopped"] == "failed"
    assert "outer loss is nan" in result["error"]
    with pytest.raises(NonFiniteError, match="hypergradient holds NaN or infinity at outer step 0"):
        failing(lambda x, y, b: f(x, y) + (x - x.detach()).abs().sum().sqrt())
    with pytest.raises(RequirementError, match="does not depend on x"):
        failing(lambda x, y, b: torch.tensor(1.0))
    with pytest.raises(ScalarLossError, match=r"outer loss.*\.mean\(\)"):
        failing(lambda x, y, b: y)
    with pytest.raises(ZeroDivisionError):
        failing(lambda x, y, b: 1 / 0)


def test_a_large_but_finite_hypergradient_has_a_norm() -> None:
    problem = pzobo.Problem(bowl, lambda x, y, b: 1e30 * x.sum() + y.sum(), torch.ones(3), torch.zeros(3))
    found = pzobo.fit(problem, METHOD, 1, lr=0.1)
    assert found.history[0]["hypergradient_norm"] == pytest.approx(math.sqrt(3) * 1e30)


# Memory, the bar and TensorBoard


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_memory_is_that_of_the_steps() -> None:
    def large(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
        torch.ones(200 * 2**17, dtype=torch.float64).sum()
        return x.detach()

    def evaluate(objective: Objective) -> dict[str, float]:
        torch.ones(400 * 2**17, dtype=torch.float64).sum()
        return {}

    def peak(box: Any, **options: Any) -> float:
        method = pzobo.Method(pzobo.BlackBox(box), pzobo.PZOBO())
        return pzobo.fit(PROBLEM, method, 3, lr=0.1, **options).history[-1]["memory"]

    assert 195 < peak(large) < 260
    assert 195 < peak(large, evaluate=evaluate, evaluate_every=1) < 260
    assert peak(lambda x, y0, b: x.detach()) < 60


def test_the_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    found = pzobo.fit(PROBLEM, METHOD, 20, lr=0.05)
    shown = screen.getvalue()
    assert "20/20" in shown
    assert f"outer loss {found.history[-1]['outer_loss']:.4g}" in shown
    assert f"{1e3 * found.seconds / 20:.3g} ms a step" in shown
    screen.truncate(0)
    pzobo.fit(PROBLEM, METHOD, 2, progress=False)
    assert not screen.getvalue()
    assert not capsys.readouterr().out


def test_without_a_terminal_there_is_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    pzobo.fit(PROBLEM, METHOD, 2)
    assert capfd.readouterr() == ("", "")


def test_tensorboard_has_the_rows_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def go(steps: int, **options: Any) -> pzobo.Fit:
        return pzobo.fit(PROBLEM, METHOD, steps, lr=0.05, out=tmp_path, tensorboard=True, evaluate_every=2, **options)

    go(6, target=lambda row: row["step"] == 4)
    go(6, resume=True)
    history = go(9, resume=True).history
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for key in ("outer_loss", "hypergradient_norm", "inner_loss", "val_loss"):
        found = [(e.step, e.value) for e in events.Scalars(key)]
        rows = [row for row in history if row.get(key) is not None]
        if key != "hypergradient_norm":  # the rows at the ends of earlier runs had an evaluation
            assert found[-1] == (9, pytest.approx(history[-1][key], rel=1e-6))
        assert dict(found) == {row["step"]: pytest.approx(row[key], rel=1e-6) for row in rows}
        assert len(found) == len(rows)


@pytest.mark.parametrize("name", ["rich", "tensorboard"])
def test_packages_that_are_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == name or m.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    options: dict[str, Any] = {"progress": True} if name == "rich" else {"tensorboard": True, "out": tmp_path / "run"}
    with pytest.raises(MissingExtraError, match=f"the package {name}.*pip install"):
        pzobo.fit(PROBLEM, METHOD, 2, **options)
    assert not (tmp_path / "run").exists()
