"""Do compiled steps do what the others do? The same batches, values and bits, however many go into one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pzobo
from pzobo.algorithms import Algorithm, Oracles, Step, Vector
from pzobo.errors import CompileError, OptionError
from pzobo.inner import compiled
from pzobo.runs.rows import Row
from tests.algorithms.methods import NUMBERS, make
from tests.algorithms.problems import Logistic, Quadratic

A = pzobo.algorithms
SIZES: dict[str, Any] = {"batch_size": 5, "outer_batch_size": 4}
SHORT: dict[str, dict[str, Any]] = {
    "AmIGO": {"steps": 1, "v_steps": 1},
    "BSA": {"steps": 1, "terms": 3},
    "MRBO": {"terms": 1, "momentum": A.Decay(0.5, 2 / 3)},
    "SUSTAIN": {"terms": 2},
    "VRBO": {"terms": 1, "steps": 1, "period": 4},
    "F2SA": {"steps": 1, "growth": A.Decay(0.1, 0.5)},
    "BOME": {"steps": 1},
    "STN": {"steps": 1, "scale_rate": 0.1},
    "DeltaSTN": {"steps": 1, "scale_rate": 0.1},
    "SOBA": {"lr": A.Decay(0.1, 0.5)},
}
COMPILED = [name for name in NUMBERS if not getattr(A, name).not_compiled]


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo traces, and PyTorch's own kernels run the graph: machine code for each algorithm would take minutes."""
    monkeypatch.setattr(compiled, "_inductor", lambda graph, inputs, **_: graph.forward)
    yield
    torch._dynamo.reset()


def fit(method: Algorithm[Any], steps: int = 12, case: Any = None, **options: Any) -> pzobo.Fit:
    chosen: dict[str, Any] = {"optimizer": torch.optim.SGD, "lr": 0.05, "seed": 2, "evaluate_every": 5, **options}
    return pzobo.fit((case or Quadratic()).problem(), method, steps, **chosen)


def close(a: pzobo.Fit, b: pzobo.Fit) -> None:
    torch.testing.assert_close(a.x, b.x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(a.y, b.y, rtol=1e-10, atol=1e-10)
    assert len(a.history) == len(b.history)
    for one, other in zip(a.history, b.history, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds", "memory"}:
            if one[key] is None or other[key] is None:
                assert one[key] is other[key], key
            else:
                assert one[key] == pytest.approx(other[key], rel=1e-10, abs=1e-10), key


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_steps_are_the_same(name: str, traced_only: None) -> None:
    def method(compile: bool) -> Algorithm[Any]:
        return make(name, **SHORT.get(name, {}), **SIZES, compile=compile)

    def decay(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (k + 1) ** -0.5)

    close(fit(method(False), scheduler=decay), fit(method(True), scheduler=decay))


def test_machine_code_is_the_same(tmp_path: Path) -> None:
    """Many steps in a call, one step in a call (Adam), and a run that is stopped and goes on in the same bits."""
    whole = fit(A.SOBA(0.1, **SIZES, compile=True), 30, Logistic())
    close(fit(A.SOBA(0.1, **SIZES), 30, Logistic()), whole)
    for steps in (7, 18, 30):
        resumed = fit(
            A.SOBA(0.1, **SIZES, compile=True), steps, Logistic(), out=tmp_path, resume=True, checkpoint_every=4
        )
    assert torch.equal(whole.x, resumed.x)
    assert torch.equal(whole.y, resumed.y)
    assert [r["outer_loss"] for r in whole.history] == [r["outer_loss"] for r in resumed.history]
    adam = {"optimizer": torch.optim.Adam, "steps": 6}
    close(fit(A.SOBA(0.1, **SIZES), **adam), fit(A.SOBA(0.1, **SIZES, compile=True), **adam))


def test_the_oracles_stand_where_they_would(traced_only: None) -> None:
    states = []
    for compile in (False, True):
        objective = make("SRBA", period=5, **SIZES, compile=compile).start(Quadratic().problem(), 1)
        optimizer = torch.optim.SGD([objective.x], lr=0.05)
        made = 0
        while made < 17:
            turns = objective.ahead(17 - made) if made and objective.leaps(optimizer) else 0
            if turns:
                assert turns <= 4, "the step on all the data is not made with the others"
                objective.turns([[0.05]] * turns)
            else:
                if made:
                    optimizer.step()
                optimizer.zero_grad()
                objective.outer_loss().backward()
            made += turns or 1
        states.append(objective.at.state_dict())
    assert states[0] == states[1]


def test_a_whole_leap_is_between_evaluations() -> None:
    """What is due is not jumped over: evaluations, checkpoints, the end."""
    seen: list[int] = []

    def evaluate(objective: Any) -> dict[str, float]:
        seen.append(objective.at.k)
        return {}

    found = fit(A.SOBA(0.1, **SIZES, compile=True), 23, evaluate=evaluate, evaluate_every=10)
    assert seen == [1, 11, 21, 24]
    assert [row["step"] for row in found.history] == list(range(24))


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - set(COMPILED)))
def test_what_cannot_be_compiled_says_so(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be compiled"):
        make(name, compile=True)


def test_random_losses_and_buffers_are_refused() -> None:
    case = Quadratic().problem()
    norm = nn.BatchNorm1d(4).double()

    def noisy(x: Any, y: Any, batch: Any) -> Any:
        return case.outer_loss(x, y, batch) + 0.0 * torch.rand(())

    def writing(x: Any, y: Any, batch: Any) -> Any:
        return case.outer_loss(x, y, batch) + 0.0 * norm(y.expand(3, 4)).sum()

    for loss, what in ((noisy, "random numbers"), (writing, "buffers")):
        problem = pzobo.Problem(case.inner_loss, loss, case.x0, case.y0, case.train, case.val)
        objective = A.SOBA(0.1, **SIZES, compile=True).start(problem)
        with pytest.raises(CompileError, match=what):
            objective.outer_loss()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_tensors_of_torch_are_refused(layout: torch.layout) -> None:
    dense = Logistic().problem()
    train = (dense.train[0].to_sparse(layout=layout), *dense.train[1:])
    with pytest.raises(CompileError, match=r"SparseMatrix\.from_torch"):
        A.SOBA(0.1, compile=True).start(replace(dense, train=train))


@dataclass(frozen=True)
class Only:
    y: Vector


@dataclass(frozen=True)
class Late(Algorithm[Only]):
    """Turns its direction after some steps."""

    def begin(self, at: Oracles) -> Only:
        return Only(at.y0)

    def step(self, at: Oracles, now: Only) -> Step[Only]:
        f = at.f(at.x, now.y, at.outer_batch())
        return Step(Only(now.y.step(0.1, f.y)), f.value, f.x.times(1.0 if at.k < 3 else -1.0))


def test_a_step_that_looks_at_its_number_is_refused() -> None:
    with pytest.raises(CompileError, match="alike"):
        Late(compile=True).start(Quadratic().problem()).outer_loss()


def test_divergence_is_said(traced_only: None) -> None:
    with pytest.raises((pzobo.errors.DivergenceError, pzobo.errors.NonFiniteError), match=r"y has left|outer loss is"):
        fit(A.SOBA(1e9, **SIZES, compile=True), 400, evaluate_every=0)


def test_seconds_stop_a_run_soon(traced_only: None) -> None:
    found = fit(A.SOBA(0.1, **SIZES, compile=True), 10**6, seconds=0.3, evaluate_every=0, warm_up=True)
    assert found.stopped == "seconds"
    assert isinstance(found.history[-1], Row)
    assert found.history[-1].evaluated
    assert found.history[-1]["step"] == len(found.history) - 1


def test_hooks_of_the_optimizer_are_called(traced_only: None) -> None:
    """They may keep x within bounds: then one step after the other is made."""

    def bounded(tensors: Any, lr: float) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(tensors, lr=lr)
        optimizer.register_step_post_hook(lambda o, *_: o.param_groups[0]["params"][0].data.clamp_(-0.1, 0.1))
        return optimizer

    one, other = (fit(make("SOBA", compile=c), optimizer=bounded) for c in (False, True))
    close(one, other)
    assert other.x.abs().max() <= 0.1
    objective, plain = (
        make("SOBA", compile=True).start(Quadratic().problem()),
        torch.optim.SGD([torch.zeros(1)], lr=0.1),
    )
    assert objective.leaps(plain)
    del plain._optimizer_step_post_hooks  # torch's own name for them
    assert not objective.leaps(plain)


def test_tensors_that_the_optimizer_leaves_out_stay(traced_only: None) -> None:
    case = Quadratic().problem()
    problem = pzobo.Problem(
        lambda x, y, batch: case.inner_loss(x["a"] + x["b"], y, batch),
        lambda x, y, batch: case.outer_loss(x["a"] + x["b"], y, batch),
        {"a": case.x0, "b": torch.zeros_like(case.x0)},
        case.y0,
        case.train,
        case.val,
    )

    def second(tensors: Any, lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(tensors[1:], lr=lr)

    one, other = (
        pzobo.fit(problem, make("SOBA", compile=c), 8, optimizer=second, lr=0.05, evaluate_every=0)
        for c in (False, True)
    )
    assert torch.equal(other.x["a"], case.x0)
    torch.testing.assert_close(one.x["b"], other.x["b"], rtol=1e-10, atol=1e-10)


def test_rates_of_compiled_steps_are_looked_at_too(traced_only: None) -> None:
    with pytest.raises(OptionError, match=r"gives -0\.05\d* at outer step 3"):
        fit(make("SOBA", lr=lambda k: 0.1 - 0.05 * k, compile=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_without_dimensions_stay_narrow(dtype: torch.dtype, traced_only: None) -> None:
    """A strength of a penalty: the step of the optimizer, a tensor in float64 there, does not widen it."""

    def inner_loss(x: Any, y: torch.Tensor, batch: Any) -> torch.Tensor:
        return (y - x["to"]).square().sum() + x["log_l2"].exp() * y.square().sum()

    x0 = {"log_l2": torch.zeros((), dtype=dtype), "to": torch.ones(3, dtype=dtype)}
    problem = pzobo.Problem(inner_loss, lambda x, y, batch: (y - 2).square().sum(), x0, torch.zeros(3, dtype=dtype))
    one, other, single = (
        pzobo.fit(problem, make("SOBA", compile=c), 8, optimizer=torch.optim.SGD, lr=0.05, evaluate_every=every)
        for c, every in ((False, 0), (True, 0), (True, 1))
    )
    assert other.x["log_l2"].dtype == dtype
    for name, value in one.x.items():
        torch.testing.assert_close(other.x[name], value, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
        assert torch.equal(other.x[name], single.x[name])
