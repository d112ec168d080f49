"""Are minibatches permutations of the rows, a function of seed and position alone, and there when they are needed?"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import pzobo
from pzobo.algorithms import oracles
from pzobo.errors import BatchError
from pzobo.outer import bilevel, minibatches
from pzobo.outer.minibatches import Minibatches, sent
from tests.device import Device
from tests.helpers import normal

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda pair: (max(pair), min(pair)))
SEEDS = st.integers(-(2**40), 2**63 - 1)


def order(rows: int, size: int, seed: int, count: int, start: int = 0) -> list[list[int]]:
    batches = Minibatches(torch.arange(rows), size, seed)
    batches.position = start
    return [batches.next().tolist() for _ in range(count)]


@given(SIZES, SEEDS)
def test_an_epoch_has_each_row_once(sizes: tuple[int, int], seed: int) -> None:
    rows, size = sizes
    per_epoch = rows // size
    found = order(rows, size, seed, 2 * per_epoch)
    assert all(len(batch) == size for batch in found)
    for epoch in (found[:per_epoch], found[per_epoch:]):
        seen = [row for batch in epoch for row in batch]
        assert len(set(seen)) == len(seen) == per_epoch * size
        assert set(seen) <= set(range(rows))


@given(SIZES, SEEDS, st.integers(0, 200))
def test_the_position_is_all_the_state(sizes: tuple[int, int], seed: int, position: int) -> None:
    rows, size = sizes
    assert order(rows, size, seed, 3, start=position) == order(rows, size, seed, position + 3)[position:]


def test_seeds_and_epochs_differ() -> None:
    firsts = [tuple(order(50, 50, seed, 1)[0]) for seed in range(20)] + [tuple(b) for b in order(50, 50, 0, 20)[1:]]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_layouts_that_have_no_rows_are_refused(layout: torch.layout) -> None:
    with pytest.raises(BatchError, match=r"SparseMatrix\.from_torch"):
        Minibatches({"a": torch.eye(6).to_sparse(layout=layout), "b": torch.arange(6)}, 4)


def test_the_same_rows_of_every_tensor_dense_or_sparse() -> None:
    dense = torch.eye(6)[:, :4] + 1
    sparse = pzobo.SparseMatrix.from_torch(dense.to_sparse_csr())
    data = {"x": dense, "s": sparse, "i": torch.arange(6)}
    batch = Minibatches(data, 4, 3).next()
    assert torch.equal(batch["x"], dense[batch["i"]])
    assert torch.equal(batch["s"] @ torch.eye(4), dense[batch["i"]])


def test_draws_nothing_from_torch() -> None:
    before = torch.get_rng_state()
    order(10, 3, 0, 10)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "data", [None, [], torch.tensor(1.0), (torch.zeros(3), torch.zeros(4)), (torch.zeros(3), "words")], ids=repr
)
def test_data_without_rows(data: object) -> None:
    with pytest.raises(BatchError, match="same number of rows"):
        Minibatches(data, 2)


def test_sizes_that_make_no_sense() -> None:
    with pytest.raises(BatchError, match="4 rows was asked of data with 3"):
        Minibatches(torch.zeros(3), 4)
    with pytest.raises(ValueError, match="batch size=0"):
        Minibatches(torch.zeros(3), 0)


# Data on the host, x and y on a device


def inner_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (batch[0] @ y - batch[1]).square().mean() + (x.exp() * y.square()).sum()


def outer_loss(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (batch[0] @ y - batch[1]).square().mean()


def problem(device: str) -> pzobo.Problem:
    train, val = ((normal(20, 3, seed=seed), normal(20, seed=seed + 1)) for seed in (0, 2))
    x0, y0 = (torch.zeros(3, dtype=torch.float64, device=device) for _ in range(2))
    return pzobo.Problem(inner_loss, outer_loss, x0, y0, train, val)


METHODS: dict[str, Any] = {
    "Unrolled": pzobo.Method(pzobo.GD(0.1, 3), pzobo.Unrolled(), batch_size=4, outer_batch_size=5, audit=False),
    "Implicit": pzobo.Method(
        pzobo.GD(0.1, 3), pzobo.Implicit(pzobo.CG(2)), batch_size=4, jacobian_batches=2, mixed="batch", audit=False
    ),
    "SOBA": pzobo.algorithms.SOBA(lr=0.1, v_lr=0.1, batch_size=4, outer_batch_size=5, audit=False),
    "BSA": pzobo.algorithms.BSA(lr=0.1, v_lr=0.1, batch_size=4, outer_batch_size=5, audit=False),
}


@pytest.mark.parametrize("name", ["Unrolled", "SOBA"])
def test_the_batches_of_a_step_are_sent_in_the_one_before_and_nothing_waits(name: str) -> None:
    at_loss: list[int] = []

    def seen(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        assert [t.device.type for t in batch] == ["meta"] * 2
        at_loss.append(sum(device.sent.values()))
        return inner_loss(x, y, batch)

    a_row = 4 * 8  # three numbers and a target
    step = (4 * (3 if name == "Unrolled" else 1) + 5) * a_row
    with Device() as device:
        on_host = problem("meta")
        objective = METHODS[name].start(dataclasses.replace(on_host, inner_loss=seen), seed=0)
        for k in range(4):
            device.reset()
            at_loss.clear()
            objective.outer_loss().backward()
            assert not device.waits
            # The first step sends its own batches too; the others have theirs when they begin.
            assert (at_loss[0] > 0) == (k == 0)
            assert sum(device.sent.values()) == (2 * step if k == 0 else step)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches of the CPU go the way to a device, and end on the CPU: for their values."""
    asked: list[int] = []

    def here(data: Tensor, index: Tensor, device: torch.device) -> Tensor:
        asked.append(len(index))
        return sent(data, index, torch.device("cpu"))

    monkeypatch.setattr(minibatches, "sent", here)
    for room in (bilevel, oracles):
        monkeypatch.setattr(room, "one_device", lambda *trees: torch.device("meta"))
    return asked


def losses(name: str, count: int, start: dict[str, Any] | None = None) -> tuple[list[Tensor], dict[str, Any]]:
    """What some steps of SGD see, and the state after them."""
    objective = METHODS[name].start(problem("cpu"), seed=0)
    if start is not None:
        objective.load_state_dict(start["objective"])
        with torch.no_grad():
            objective.x.copy_(start["x"])
    found = []
    for _ in range(count):
        objective.x.grad = None
        found.append(objective.outer_loss())
        found[-1].backward()
        found[-1] = found[-1].detach()
        with torch.no_grad():
            objective.x.sub_(objective.x.grad)
    return found, copy.deepcopy({"objective": objective.state_dict(), "x": objective.x.detach()})


@pytest.mark.parametrize("name", METHODS)
def test_fetched_batches_are_those_of_the_host_and_a_run_goes_on_in_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    expected = losses(name, 12)[0]
    asked = request.getfixturevalue("fetched")
    assert losses(name, 12)[0] == expected
    assert asked
    first, state = losses(name, 5)
    assert first + losses(name, 7, state)[0] == expected


def test_a_batch_that_was_fetched_in_vain_is_dropped(fetched: list[int]) -> None:
    stream = Minibatches(torch.arange(40), 4, 0, torch.device("meta"))
    stream.next(), stream.next()
    stream.fetch()
    stream.position += 1  # passed over
    assert [stream.next().tolist() for _ in range(9)] == order(40, 4, 0, 9, start=3)
    stream.position = 1
    assert [stream.next().tolist() for _ in range(3)] == order(40, 4, 0, 3, start=1)
    assert len(fetched) == 2 + 2 + 8 + 2  # number 2 was still there


def test_rows_are_gathered_in_pinned_memory_where_there_is_such(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[bool] = []
    real = torch.empty

    def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        pinned.append(pin_memory)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", empty)
    data, index = torch.eye(3), torch.tensor([2, 0])
    assert torch.equal(sent(data, index, torch.device("cpu")), data[index])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert sent(data, index, torch.device("meta")).device.type == "meta"
    sent(data, index, torch.device("cpu"))
    assert pinned == [False, True, False]


@pytest.mark.parametrize("data", ["device", "sparse", "gradient"])
def test_data_that_stay_where_they_are(data: str, fetched: list[int]) -> None:
    made = {
        "device": lambda: torch.zeros(6, 2, device="meta"),
        "sparse": lambda: pzobo.SparseMatrix.from_torch(torch.eye(6).to_sparse_csr()),
        "gradient": lambda: torch.zeros(6, requires_grad=True),
    }[data]()
    stream = Minibatches(made, 2, 0, torch.device("meta"))
    for _ in range(3):
        batch = stream.next()
        stream.fetch()
        assert (batch.device, batch.requires_grad) == (made.device, made.requires_grad)
    assert not fetched
