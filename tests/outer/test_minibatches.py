"""Are minibatches permutations of the rows, and a function of seed and position alone?"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pzobo
from pzobo.errors import BatchError
from pzobo.outer.minibatches import Minibatches

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
