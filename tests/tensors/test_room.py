"""Is free memory told, and is a want of it seen?"""

from __future__ import annotations

import pytest
import torch

from pzobo.tensors.room import free_bytes, out_of_memory


def test_free_memory_of_the_cpu() -> None:
    found = free_bytes(torch.device("cpu"))
    assert found is not None
    assert 2**20 < found < 2**50
    assert free_bytes(torch.device("meta")) is None


def test_a_want_of_memory_is_seen() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(real.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("shapes do not fit"))
