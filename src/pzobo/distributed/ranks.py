"""Who else takes part? The ranks that torchrun started, what they give each other, and what is heard when one fails."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from pzobo.errors import OptionError, PzoboError, RankError
from pzobo.options import positive

TIMEOUT = 600.0
"""Seconds that a rank waits for the slowest, if nothing else is said."""
_PATIENCE = 5.0
"""Seconds in which a rank that fails is heard."""
_PARTING = 2.0
"""Seconds that a rank waits for the others at its end."""
_LOOK = 0.5
"""Seconds between two looks at whether a rank has failed, for those who wait for it."""


class Ranks:
    """All processes of this run, and which of them this one is. A process on its own is rank 0 of 1.

    Attributes:
        rank: the number of this process.
        count: how many there are.
        sent: bytes that this rank has given to collective calls.
        calls: how many such calls there were.
        splits: how often work was split; all ranks count alike.
        over: whether one of them has failed.
    """

    def __init__(self, rank: int = 0, count: int = 1, store: Any = None) -> None:
        self.rank, self.count = rank, count
        self.sent = self.calls = self.splits = 0
        self._store = store
        self.over = False
        self._name = ""
        self._name = self.first(uuid.uuid4().hex)

    # What they give each other. The answers have the same bits on all ranks.

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, stacked in the order of the ranks."""
        if self.count == 1:
            return tensor.unsqueeze(0)
        tensor = tensor.contiguous()
        found = torch.empty((self.count, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self._finish(dist.all_gather, list(found.unbind()), tensor, about=tensor)
        return found

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks."""
        if self.count == 1:
            return tensor
        total = tensor.clone()
        self._finish(dist.all_reduce, total, about=total)
        return total

    def first(self, thing: Any) -> Any:
        """What rank 0 has."""
        if self.count == 1:
            return thing
        text = _packed(thing if self.rank == 0 else None)
        size = torch.tensor(text.numel(), device="cpu")
        self._finish(dist.broadcast, size, 0, about=size)
        if self.rank:
            text = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        self._finish(dist.broadcast, text, 0, about=text)
        return _unpacked(text)

    def objects(self, thing: Any) -> list[Any]:
        """What each rank has."""
        if self.count == 1:
            return [thing]
        text = _packed(thing)
        sizes = self.gather(torch.tensor(text.numel(), device="cpu")).tolist()
        rows = self.gather(torch.nn.functional.pad(text, (0, max(sizes) - text.numel())))
        return [_unpacked(row[:size]) for row, size in zip(rows, sizes, strict=True)]

    def _finish(self, call: Any, *arguments: Any, about: Tensor) -> None:
        """A collective call. What goes wrong in it is another rank's fault; whoever waits hears of one that failed."""
        self.calls, self.sent = self.calls + 1, self.sent + about.nbytes
        try:
            work = call(*arguments, async_op=True)
            if about.device.type != "cpu":
                work.wait()
                return
            while not work.is_completed():
                # Out of patience, or failed: the next look tells, since work may end between the two.
                with contextlib.suppress(RuntimeError):
                    work.wait(timedelta(seconds=_LOOK))
                    return
                if not work.is_completed() and self._read("failed"):
                    raise RuntimeError("another rank has failed")
            work.wait()
        except RuntimeError as error:
            raise _Lost(" ".join(str(error).split())[:200]) from error

    # When one fails

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """An error inside, on any rank, ends all of them, and is said once: by rank 0."""
        try:
            yield
        except Exception as error:
            if self.count == 1 or self.over:
                raise
            self.over = True
            if isinstance(error, _Lost):
                self._heard(error)
            self._fail(error)

    def _heard(self, lost: _Lost) -> NoReturn:
        """Another rank has failed: say what it said before, if it did."""
        words = self._wait("failed")
        said: _Said = pickle.loads(words) if words else _Said("", "", "")
        if self.rank:
            sys.exit(1)
        self._told()
        if not said.sentence:
            raise RankError(
                f"A rank was lost, or did not answer in time ({lost}). Under torchrun --max-restarts=... the run goes "
                "on from its checkpoint, with out=... and resume=True; without, start it again."
            ) from None
        error = RankError(f"{said.who} failed. {said.sentence}")
        if said.trace:
            error.add_note(said.trace)
        raise error from None

    def _fail(self, error: Exception) -> NoReturn:
        """This rank has failed: let the others know, and be silent where rank 0 speaks."""
        who = f"Rank {self.rank} on {socket.gethostname()}"
        # The sentence of one of our own errors is enough.
        trace = (
            "" if isinstance(error, PzoboError) else "There:\n" + "".join(traceback.format_tb(error.__traceback__, -4))
        )
        with contextlib.suppress(Exception):
            words = _Said(who, f"{type(error).__name__}: {error}", trace)
            self._store.set(self._key("failed"), pickle.dumps(words))
        if self.rank == 0:
            self._told()
            raise error
        if self._wait("told"):
            time.sleep(0.5)  # torchrun ends all ranks as soon as one has ended: let rank 0 speak first
            sys.exit(1)
        raise error

    def _wait(self, name: str) -> bytes:
        """What a rank has written by this name, as soon as it is there; nothing if nobody does."""
        until = time.monotonic() + (_PATIENCE if self._store is not None else 0.0)
        with contextlib.suppress(Exception):  # the store may be gone with its host
            while time.monotonic() < until:
                if found := self._read(name):
                    return found
                time.sleep(0.02)
        return b""

    def _read(self, name: str) -> bytes:
        if self._store is None or not self._store.check([self._key(name)]):
            return b""
        return bytes(self._store.get(self._key(name)))

    def _told(self) -> None:
        with contextlib.suppress(Exception):
            self._store.set(self._key("told"), b"1")

    def _key(self, name: str) -> str:
        return f"pzobo/{self._name}/{name}"


class _Lost(RankError):
    """A collective call failed, because of another rank."""


@dataclass(frozen=True)
class _Said:
    """The last words of a rank."""

    who: str
    sentence: str
    trace: str


ALONE = Ranks()
_joined: tuple[Any, Ranks] | None = None
"""The process group, and its ranks."""


def here() -> Ranks:
    """The ranks of this process: those of torch.distributed's group, or of torchrun, which is joined now; or one."""
    global _joined
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        if not _launched():
            return ALONE
        join()
    group = dist.group.WORLD
    if _joined is None or _joined[0] is not group:
        _joined = group, Ranks(dist.get_rank(), dist.get_world_size(), _store_of_group())
    return _joined[1]


_STARTING = 60.0
"""Seconds in which all ranks have started."""


def join(timeout: float = TIMEOUT) -> None:
    """Join the ranks that torchrun started, before anything is split; nothing happens in a process on its own.

    `fit` and `Argmin` do it by themselves. Call it first where the time that a rank waits for another must be a
    different one: a host that has lost its network is noticed after this time.

    Args:
        timeout: seconds that a rank waits for the slowest.

    Raises:
        OptionError: `timeout` is not positive, or this process has joined already.
        RankError: not all ranks have started within `timeout`.

    Examples:
        >>> pzobo.distributed.join(timeout=60)      # one process: nothing to join
    """
    positive("timeout", timeout)
    if not dist.is_available() or not _launched():
        return
    if dist.is_initialized():
        raise OptionError("join: this process has joined its ranks already; call it before anything else does.")
    from torch.distributed.rendezvous import rendezvous  # not there in a torch without torch.distributed

    backend = None if torch.cuda.is_available() else "gloo"  # None: gloo for the CPU and nccl for GPUs
    # A rank may need longer to start than it may be waited for later: all meet at the store first.
    patience = timedelta(seconds=max(timeout, _STARTING))
    store, rank, count = next(iter(rendezvous("env://", timeout=patience)))
    stores: Any = dist  # whose PrefixStore torch's types leave out
    fresh = stores.PrefixStore(_meet(store, rank, count, patience), store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=count, timeout=timedelta(seconds=timeout))
    atexit.register(_leave)


def _meet(store: Any, rank: int, count: int, patience: timedelta) -> str:
    """A name for this start of the ranks, which no start before it had.

    torchrun keeps one store for all its restarts, and in it the addresses of ranks that are gone. So rank 0 calls with
    a name that is new, the others answer the call with names of their own, and go when rank 0 has written down who
    answered.
    """
    name, end = uuid.uuid4().hex, time.monotonic() + patience.total_seconds()
    if rank == 0:
        store.set("pzobo: call", name)
    else:
        store.wait(["pzobo: call"], patience)
    while time.monotonic() < end:
        if rank == 0:
            found = [_text(store, f"pzobo: answer {r}") for r in range(1, count)]
            if all(answer.startswith(name) for answer in found):
                store.set(f"pzobo: go {name}", " ".join(found))
                return name
        else:
            call = _text(store, "pzobo: call")
            store.set(f"pzobo: answer {rank}", call + name)
            if call + name in _text(store, f"pzobo: go {call}").split():
                return call
        time.sleep(0.02)
    raise RankError(f"Not all of the {count} ranks have started within {patience.total_seconds():g} s.")


def _text(store: Any, key: str) -> str:
    """What the store has there, if anything."""
    return str(store.get(key).decode()) if store.check([key]) else ""


def _leave() -> None:
    """At the end of the process: let the others finish what they still receive, unless something went wrong."""
    global _joined
    over = _joined is not None and _joined[1].over
    with contextlib.suppress(Exception):
        if not over and not hasattr(sys, "last_type") and not torch.cuda.is_available():
            dist.barrier(async_op=True).wait(timedelta(seconds=_PARTING))
    _joined = None
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def _launched() -> bool:
    """Whether this process was started as one of several, by torchrun or in its way."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def _store_of_group() -> Any:
    """The store through which the ranks found each other. There is no public way to it; without it, a rank that fails
    says so itself, and the others that a rank was lost."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None


def _packed(thing: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)


def _unpacked(text: Tensor) -> Any:
    return pickle.loads(ctypes.string_at(text.contiguous().data_ptr(), text.numel()))  # NumPy may not be installed
