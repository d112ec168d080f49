"""What does one process make of ranks, and what is without a store?"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pzobo
from pzobo.distributed.alike import check_alike, checksum, due
from pzobo.distributed.ranks import ALONE, Ranks, _store_of_group, here
from pzobo.distributed.rows import share
from pzobo.distributed.splits import Shares
from pzobo.errors import BatchError, OptionError, RankError


def test_a_process_on_its_own_is_rank_0_of_1() -> None:
    ranks = here()
    assert ranks is ALONE
    assert (ranks.rank, ranks.count) == (0, 1)
    assert torch.equal(ranks.gather(torch.arange(3)), torch.arange(3).unsqueeze(0))
    assert torch.equal(ranks.sum(torch.arange(3)), torch.arange(3))
    assert (ranks.first("a"), ranks.objects("a")) == ("a", ["a"])
    assert ranks.calls == 0
    with pytest.raises(ZeroDivisionError), ranks.together():
        1 / 0  # noqa: B018
    pzobo.distributed.join()
    assert not dist.is_initialized()
    with pytest.raises(OptionError, match="timeout"):
        pzobo.distributed.join(timeout=0)


def test_looks_are_due_at_powers_of_two_and_then_every_32() -> None:
    assert [call for call in range(1, 130) if due(call)] == [1, 2, 4, 8, 16, 32, 64, 96, 128]


def test_a_checksum_sees_every_bit() -> None:
    a = torch.tensor([1.0, 0.0, 2.0])
    seen = {
        checksum(t)
        for t in [(a,), (a.neg().neg() + 0.0,), (a * torch.tensor([1.0, -1.0, 1.0]),), (a.nextafter(a + 1),)]
    }
    assert len(seen) == 3, "the second is the same as the first; -0 is not 0"
    assert checksum(()) == checksum((torch.empty(0),)) == 0


class Several(Ranks):
    """One of several ranks, whose collective calls are answered by a function."""

    def __init__(self, rank: int, count: int, others: Any) -> None:
        super().__init__()
        self.rank, self.count, self._others = rank, count, others
        self.splits = 3  # no look is due

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._others(tensor)
        return found


@pytest.mark.parametrize(("directions", "chunk", "count"), [(7, 1, 3), (7, 2, 3), (2, 1, 5), (64, 16, 2)])
def test_each_chunk_is_one_rank_s_and_comes_back_in_its_place(directions: int, chunk: int, count: int) -> None:
    chunks = [range(first, min(first + chunk, directions)) for first in range(0, directions, chunk)]
    weights = [torch.tensor([-0.0 if j == 0 else float(j) for j in numbers]) for numbers in chunks]
    weights = [w[0] if chunk == 1 else w for w in weights]
    lengths = [torch.tensor(10.0 + i) for i in range(len(chunks))]
    sent: dict[int, torch.Tensor] = {}
    for rank in range(count):  # what each sends
        shares = Shares(
            Several(rank, count, lambda t, rank=rank: sent.setdefault(rank, t).expand(count, *t.shape)),
            "scalars",
            chunks,
            {},
        )
        mine = [chunks.index(numbers) for numbers in shares.mine]
        shares.combined([weights[i] for i in mine], [lengths[i] for i in mine], True, torch.zeros(0))
    both = Several(1, count, lambda t: torch.stack([sent[rank] for rank in range(count)]))
    found, told = Shares(both, "scalars", chunks, {}).combined([], [], True, torch.zeros(0))
    assert all(torch.equal(a, b) and torch.equal(a.signbit(), b.signbit()) for a, b in zip(found, weights, strict=True))
    assert [float(t) for t in told] == [float(t) for t in lengths]


def test_rows_are_dealt_out_once() -> None:
    data = {"a": torch.arange(10), "b": [torch.arange(20.0).view(10, 2)], "name": "kept"}
    parts = [share(data, Several(rank, 3, None)) for rank in range(3)]
    assert torch.equal(torch.cat([part["a"] for part, _ in parts]), data["a"])
    assert [part["name"] for part, _ in parts] == ["kept"] * 3
    assert sum(weight for _, weight in parts) == pytest.approx(1.0)
    with pytest.raises(BatchError, match="too small for 11 ranks"):
        share(data, Several(0, 11, None))


def test_nothing_is_compared_where_no_look_is_due() -> None:
    check_alike(Several(0, 2, None), {"x": (torch.zeros(1),)}, 3)


class Work:
    """A collective call that ends just after somebody has waited for it in vain, well or with an error."""

    def __init__(self, error: str) -> None:
        self.error, self.waited = error, 0

    def wait(self, timeout: Any = None) -> None:
        self.waited += 1
        if self.waited == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.waited > 0


def test_a_call_that_ends_just_after_the_wait_is_not_lost() -> None:
    ranks = Several(1, 2, None)
    ranks._finish(lambda async_op: Work(""), about=torch.zeros(1))
    with pytest.raises(RankError, match="connection closed"):
        ranks._finish(lambda async_op: Work("connection closed"), about=torch.zeros(1))


def test_without_a_store_a_rank_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    assert _store_of_group() is None
    lonely, before = Several(1, 2, None), time.monotonic()
    with pytest.raises(ZeroDivisionError), lonely.together():
        1 / 0  # noqa: B018
    assert time.monotonic() - before < 1, "there is nobody to wait for"
