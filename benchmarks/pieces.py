"""How much memory does one outer step of ResNet-12 take, in pieces? `python -m benchmarks.pieces --pieces 8`.

Random images of 84 x 84, 5-way 5-shot with 15 queries, as on miniImageNet. The step is the outer loss, its gradient and
Adam. Counted is what torch's tensors hold at their peak; measured is Linux's account of the process.
"""

import argparse
import time
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.environment import describe
from benchmarks.few_shot import learners, noise
from pzobo.data.few_shot import FewShotData
from pzobo.meta import FewShot
from pzobo.networks import ResNet12
from pzobo.runs.memory import Peak


class Counted(TorchDispatchMode):
    """The bytes of all storages that operations gave and that are still in use; `most` is their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for t in tree_leaves(found):
            if isinstance(t, torch.Tensor):
                self._see(t.untyped_storage())
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        if (key := storage._cdata) in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.alive.pop(key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--queries", type=int, default=15)
    parser.add_argument("--learner", default="PZOBO at x", choices=[*learners(30)])
    options = parser.parse_args()
    torch.set_num_threads(1)
    classes = noise(8, options.shots + options.queries, 3, 84)
    problem = FewShot(
        FewShotData(classes, classes, classes),
        ResNet12,
        shots=options.shots,
        queries=options.queries,
        meta_batch=options.tasks,
        pieces=options.pieces,
    )
    objective = learners(30)[options.learner].start(problem)
    leaves = [t for part in objective.x.values() for t in part.values()]
    optimizer, peak, counted = torch.optim.Adam(leaves, lr=1e-3), Peak(), Counted()
    began = time.process_time()
    with peak, counted:
        objective.outer_loss().backward()
        optimizer.step()
    seconds, measured = time.process_time() - began, (peak.megabytes or float("nan")) * 2**20
    print(describe())
    print(
        f"{options.learner}, {options.tasks} tasks in {options.pieces} pieces: counted {counted.most / 1e9:.2f} GB, "
        f"measured {measured / 1e9:.2f} GB, {seconds:.0f} s of one core"
    )


if __name__ == "__main__":
    main()
