"""How are many calls of a black box made side by side? By joblib, in processes of this machine or of a cluster."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import optree
import torch
from torch import Tensor

from pzobo.errors import BlackBoxError, RequirementError
from pzobo.extras import need
from pzobo.tensors import trees
from pzobo.tensors.trees import Leaves, Tree

_MANY = 8
"""So many numbers of a tensor are shown in a message."""


def call_all(fn: Callable[..., Tree], calls: Iterable[Sequence[Tree]], jobs: int, state: Tensor | None) -> list[Tree]:
    """fn's answers to all of these arguments, of which the first is x; in their order.

    Args:
        fn: any code that pickle, or cloudpickle, can send to another process.
        calls: the arguments of each call.
        jobs: how many run at a time, as joblib counts: -1 is one for each processor.
        state: the state of torch's random numbers for each call, if they draw any.
    """
    joblib = need("joblib", "jobs")
    todo = list(calls)
    with tempfile.TemporaryDirectory(prefix="pzobo-jobs-") as marks:
        try:
            found: list[Tree] = joblib.Parallel(n_jobs=jobs)(
                joblib.delayed(_call)(fn, arguments, state, torch.get_num_threads(), f"{marks}/{i}")
                for i, arguments in enumerate(todo)
            )
        except Exception as error:
            # The latter is Dask's.
            if not isinstance(error, BrokenExecutor) and type(error).__name__ != "KilledWorker":
                raise
            at_work = sorted(int(path.name) for path in Path(marks).iterdir())
            which = " or ".join(f"x = {shown(todo[i][0])}" for i in at_work) or "an x that is not known"
            raise BlackBoxError(
                f"A process that ran the black box was killed (out of memory?). It was at work on {which}. With "
                "out=... and resume=True a run goes on from its checkpoint."
            ) from error
    return found


def _call(fn: Callable[..., Tree], arguments: Sequence[Tree], state: Tensor | None, threads: int, mark: str) -> Tree:
    """One call, in a process of its own. The mark is there while it runs, where the disk is shared."""
    torch.set_num_threads(threads)
    if state is not None:
        torch.set_rng_state(state)
    with contextlib.suppress(OSError):
        Path(mark).touch()
    with torch.enable_grad(), said(arguments[0]):
        answer = optree.tree_map(trees.detach, fn(*arguments))
    with contextlib.suppress(OSError):
        Path(mark).unlink(missing_ok=True)
    return answer


@contextlib.contextmanager
def said(x: Tree) -> Any:
    """What goes wrong inside gets a note of the x that it had."""
    try:
        yield
    except Exception as error:
        error.add_note(f"The black box was called with x = {shown(x)}.")
        raise


def shown(x: Tree) -> str:
    """A tree in one line: the first numbers of each tensor."""

    def short(leaf: Any) -> str:
        if not isinstance(leaf, Tensor):
            return repr(leaf)[:40]
        numbers = ", ".join(f"{number:.6g}" for number in leaf.detach().flatten()[:_MANY].tolist())
        return f"[{numbers}{', ...' if leaf.numel() > _MANY else ''}]"

    paths, leaves, _ = optree.tree_flatten_with_path(x, none_is_leaf=True)
    texts = [
        f"{'.'.join(map(str, path))}: {short(leaf)}" if path else short(leaf)
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    return "; ".join(texts)


def check_draws(jobs: int, call: Callable[[], Leaves]) -> Leaves:
    """The answer of a call, if it does not depend on the generators of Python or NumPy: side by side, calls cannot
    follow each other. Code that draws from them is called once more, to see whether it matters."""
    before = _generators()
    answer = call()
    if _generators() != before and any(not torch.equal(a, b) for a, b in zip(answer, call(), strict=True)):
        raise RequirementError(
            f"BlackBox(jobs={jobs}): the black box draws from the generator of Python or NumPy that all calls share, "
            "and calls side by side would not draw what calls one by one do. Give it one of its own, as in "
            "numpy.random.default_rng(0) or random_state=0; or jobs=1."
        )
    return answer


def _generators() -> list[Any]:
    states: list[Any] = [random.getstate()]
    with contextlib.suppress(ImportError):
        import numpy

        numbers: Any = numpy.random.get_state()
        states.append((numbers[1].tobytes(), *numbers[2:]))
    return states
