"""What does `fit` ask of a device? Few reads, no wait of its own, no copy of y; random numbers of those in use."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import StaleError
from pzobo.outer.loop import Loop
from pzobo.runs import randomness
from pzobo.tensors.replay import devices_of
from tests.argmin.test_large import DIRECTIONS, GD, LAYERS, ROWS, WIDTH, inner_loss, network
from tests.device import Device

Y = LAYERS * WIDTH**2 * 4


def outer_loss(x: Tensor, y: dict[str, Tensor], batch: Tensor) -> Tensor:
    return network(y, batch).square().mean()


def large() -> pzobo.Problem:
    train, val = (torch.empty(ROWS, WIDTH, device="meta") for _ in range(2))
    y0 = {f"layer {i}": torch.zeros(WIDTH, WIDTH, device="meta") for i in range(LAYERS)}
    return pzobo.Problem(inner_loss, outer_loss, torch.zeros(ROWS, WIDTH, device="meta"), y0, train, val)


ESTIMATORS = {
    "PZOBO": (pzobo.PZOBO(0.01, sampler=DIRECTIONS), 2),
    "Unrolled": (pzobo.Unrolled(), 1),
    "CG": (pzobo.Implicit(pzobo.CG(20, tol=1e-6)), 6),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_of_fit_reads_one_number_more_than_its_estimator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jacobian, own = ESTIMATORS[name]
    counted: list[int] = []
    look = Loop.look

    def counting(self: Loop, *args: Any) -> Any:
        counted.append(sum(device.reads.values()))
        device.reset()
        return look(self, *args)

    monkeypatch.setattr(Loop, "look", counting)
    gc.collect()
    with Device() as device:
        pzobo.fit(large(), pzobo.Method(GD, jacobian, audit=False), 8, evaluate_every=0)
    assert counted[5:] == [own + 1] * 3, counted  # passes 1, 2, 4 and 8 are looked at closely


def test_an_evaluation_holds_y0_and_y_and_no_copy() -> None:
    alive: list[float] = []

    def evaluate(objective: pzobo.Objective) -> dict[str, float]:
        alive.append(device.live / Y)
        return {}

    gc.collect()
    with Device() as device:
        method = pzobo.Method(GD, pzobo.Unrolled(), audit=False)
        pzobo.fit(large(), method, 3, evaluate=evaluate, evaluate_every=1)
    # At the end the solution of the last step is there too: a longer run goes on from it.
    *alive, last = alive
    assert max(alive) < 2.1, alive
    assert last < 3.1


def test_an_evaluation_that_writes_into_y_is_refused() -> None:
    def evaluate(objective: pzobo.Objective) -> dict[str, float]:
        objective.y.mul_(2)
        return {}

    problem = pzobo.Problem(
        lambda x, y, batch: (y - x).square().sum(), lambda x, y, batch: y.square().sum(), torch.ones(3), torch.zeros(3)
    )
    with pytest.raises(StaleError, match="evaluate wrote into y"):
        pzobo.fit(problem, pzobo.Method(GD, pzobo.Unrolled()), 2, evaluate=evaluate)


# Devices that are not there: what is asked of them is noted


class Accelerator:
    """Stands for a kind of device with random numbers and streams."""

    def __init__(self) -> None:
        self.states = {0: torch.tensor([0]), 1: torch.tensor([10]), 2: torch.tensor([20])}
        self.current, self.waits = 0, 0
        self.asked: list[int] = []

    def get_rng_state(self, device: torch.device) -> Tensor:
        self.asked.append(device.index)
        return self.states[device.index].clone()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.states[device.index] = state

    def manual_seed(self, seed: int) -> None:
        self.states[self.current] = torch.tensor([seed])

    def device(self, device: torch.device) -> Any:
        outer, before = self, self.current

        class Guard:
            def __enter__(self) -> None:
                outer.current = device.index

            def __exit__(self, *_: object) -> None:
                outer.current = before

        return Guard()

    # A stream, and an event of it
    def record_event(self) -> Accelerator:
        return self

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    made = Accelerator()
    real = torch.get_device_module
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: made if device else real(device))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: made)
    return made


TWO = (torch.device("cuda", 0), torch.device("cuda", 2))


def test_a_run_seeds_and_restores_the_devices_in_use_alone(accelerator: Accelerator) -> None:
    before = torch.get_rng_state()
    with randomness.seeded(7, TWO):
        assert [int(state) for state in accelerator.states.values()] == [7, 10, 7]
        assert torch.initial_seed() == 7
    assert [int(state) for state in accelerator.states.values()] == [0, 10, 20]
    assert set(accelerator.asked) == {0, 2}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_checkpoint_has_the_random_numbers_of_all_devices_in_use(accelerator: Accelerator) -> None:
    saved = randomness.random_state(TWO)
    accelerator.states = {0: torch.tensor([5]), 1: torch.tensor([5]), 2: torch.tensor([5])}
    randomness.set_random_state(saved, TWO)
    assert [int(state) for state in accelerator.states.values()] == [0, 5, 20]
    # Devices may have other numbers on the machine that goes on.
    randomness.set_random_state(saved, TWO[::-1])
    assert [int(state) for state in accelerator.states.values()] == [20, 5, 0]
    with pytest.raises(ValueError, match="2 devices, and the run uses 1"):
        randomness.set_random_state(saved, TWO[:1])


def test_a_checkpoint_of_version_0_1_has_those_of_one(accelerator: Accelerator) -> None:
    saved = randomness.random_state(())
    randomness.set_random_state({**saved, "cuda": torch.tensor([3])}, TWO)
    assert [int(state) for state in accelerator.states.values()] == [3, 10, 20]


def test_the_devices_are_those_of_x_y_and_data() -> None:
    """Each once, in their order; those without random numbers of their own are left out."""
    cpu, meta = torch.zeros(2), torch.zeros(2, device="meta")
    assert devices_of([cpu, meta, 3, None]) == ()

    class There(Tensor):
        device = TWO[1]

    assert devices_of([There(), cpu, There()]) == (TWO[1],)
    objective = pzobo.Method(GD, pzobo.Direct()).start(large())
    assert {t.device.type for t in torch.utils._pytree.tree_leaves((objective.x, objective.y, objective.data()))} == {
        "meta"
    }


def test_a_run_waits_for_devices_at_its_checkpoints_and_its_end_alone(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """By an event of the stream: never for all that a device has to do."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a full synchronisation")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    monkeypatch.setattr(torch.accelerator, "synchronize", refuse)
    monkeypatch.setattr("pzobo.outer.state.devices_of", lambda leaves: TWO[:1])
    monkeypatch.setattr("pzobo.outer.loop.Peak", lambda devices: type("P", (), {"megabytes": None, "aside": nothing})())
    problem = pzobo.Problem(
        lambda x, y, batch: (y - x).square().sum(), lambda x, y, batch: y.square().sum(), torch.ones(3), torch.zeros(3)
    )
    pzobo.fit(problem, pzobo.Method(GD, pzobo.Unrolled()), 12, checkpoint_every=5, out=tmp_path / "run")
    assert accelerator.waits == 4  # after steps 5, 10 and 12, and before the last row


def nothing(self: Any) -> Any:
    from contextlib import nullcontext

    return nullcontext()
