"""Have the ranks drifted apart? Checksums of what all of them hold cross now and then; what differs is told."""

from __future__ import annotations

import ctypes
import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.distributed.ranks import Ranks
from pzobo.errors import DriftError
from pzobo.tensors.trees import Leaves

EVERY = 32
"""Calls between two looks, after those at calls 1, 2, 4, 8 and 16."""

_ADVICE = {
    "key": "The directions of the ranks differ: seed all ranks alike, as by torch.manual_seed(0), or give the sampler "
    "a seed=.",
    "x": "Outer variables that start or move differently: seed all ranks alike, and give all of them the same data.",
    "random numbers": "Seed all ranks alike, as by torch.manual_seed(0).",
    "y": "From the same x the inner paths differ: the ranks need the same data, random numbers, number of threads "
    "(OMP_NUM_THREADS) and kind of processor.",
    "v": "From the same y the outer losses differ: the ranks need the same validation data and number of threads "
    "(OMP_NUM_THREADS).",
}


def due(call: int) -> bool:
    """Whether there is a look at this call, counted from 1."""
    return call % EVERY == 0 or (call & (call - 1) == 0 and call < EVERY)


def check_alike(ranks: Ranks, alike: Mapping[str, Leaves | int], call: int) -> None:
    """Refuse to go on where the ranks hold different things, at calls where a look is due.

    Args:
        ranks: who is compared.
        alike: tensors, or a number, by name, in the order in which one follows from the other.
        call: how often there could have been a look, counted from 1; all ranks count alike.
    """
    if ranks.count == 1 or not due(call):
        return
    sums = torch.tensor([checksum(part) for part in alike.values()], device="cpu")
    found = ranks.gather(sums.to(_device(alike)))
    if bool((found == found[0]).all()):
        return
    differ = [name for name, column in zip(alike, found.T, strict=True) if not bool((column == column[0]).all())]
    name = differ[0]
    other = int((found[:, list(alike).index(name)] != found[0, list(alike).index(name)]).nonzero()[0])
    lines = [f"Rank {other} has drifted from rank 0: {name} differs{_by(ranks, alike[name], other)}."]
    lines.append(_ADVICE.get(name, ""))
    settings = ranks.objects(conditions())
    unlike = {
        key: (settings[0][key], settings[other][key]) for key in settings[0] if settings[0][key] != settings[other][key]
    }
    unlike.pop("host", None)
    if unlike:
        lines.append("They also differ in " + ", ".join(f"{k}: {a} and {b}" for k, (a, b) in unlike.items()) + ".")
    raise DriftError(" ".join(line for line in lines if line))


def checksum(part: Leaves | int) -> int:
    """A number that other bits would change."""
    if isinstance(part, int):
        return part
    found = 0
    for leaf in part:
        flat = leaf.detach().contiguous().flatten().view(torch.uint8).cpu()
        found = zlib.crc32(memoryview(_bytes(flat)), found)
    return found


def _bytes(flat: Tensor) -> Any:
    return (ctypes.c_char * flat.numel()).from_address(flat.data_ptr()) if flat.numel() else b""


def _by(ranks: Ranks, part: Leaves | int, other: int) -> str:
    """In which tensor, and by how much."""
    if isinstance(part, int):
        return ""
    everywhere = ranks.objects([leaf.detach().cpu() for leaf in part] if ranks.rank in (0, other) else None)
    first, second = everywhere[0], everywhere[other]
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f": tensor {i} has shape {tuple(a.shape)}, {a.dtype} and {tuple(b.shape)}, {b.dtype}"
        if checksum((a,)) != checksum((b,)):
            unlike = int((a != b).sum())
            most = float((a.double() - b.double()).abs().max())
            return f" in tensor {i} of shape {tuple(a.shape)}: {unlike} numbers, by at most {most:.3g}"
    return ""


def _device(alike: Mapping[str, Leaves | int]) -> torch.device:
    leaves: Sequence[Any] = [leaf for part in alike.values() if not isinstance(part, int) for leaf in part]
    return leaves[0].device if leaves else torch.device("cpu")


def conditions() -> dict[str, str]:
    """What may change bits from one machine to another."""
    return {
        "host": socket.gethostname(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "precision": torch.get_float32_matmul_precision(),
        "MKL_CBWR": os.environ.get("MKL_CBWR", ""),
    }
