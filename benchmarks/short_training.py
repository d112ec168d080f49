"""Why does a short training of ResNet-12 by PZOBO not fall? `PZOBO_DATA=... python -m benchmarks.short_training`.

Eight five-way one-shot tasks of miniImageNet at a quarter of the size (21 x 21), four of them in each outer step, as in
docs/results/resnet12.md. The same tasks and first weights with each Jacobian, learning rate and start of the heads. At
every eighth step the gradient is compared with the exact one at the same weights.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import pzobo
from benchmarks.environment import describe
from pzobo.data import miniimagenet
from pzobo.data.few_shot import FewShotData
from pzobo.meta import FewShot, HeadLearner
from pzobo.networks import ResNet12

SOLVER = pzobo.HeavyBall(0.01, 0.9, 30)
JACOBIANS = {
    "direct": pzobo.Direct(),
    "unrolled": pzobo.Unrolled(),
    "pzobo-x": pzobo.PZOBO(mu=0.1, sampler=pzobo.UnitPerTensor(), at="x"),
    "pzobo-x, unbiased": pzobo.PZOBO(mu=0.1, at="x", shrink=False),
}
CASES = (
    ("unrolled", 0.003, "mean"),
    ("unrolled", 0.001, "mean"),
    ("direct", 0.003, "mean"),
    ("direct", 0.001, "mean"),
    ("pzobo-x", 0.003, "mean"),
    ("pzobo-x", 0.001, "mean"),
    ("pzobo-x", 0.001, "zeros"),
    ("unrolled", 0.001, "zeros"),
)


def problem(classes: int, stride: int) -> FewShot:
    """A few classes are enough for eight tasks."""
    train = miniimagenet().train
    images = train.images[train.rows[:classes], :40, :, ::stride, ::stride].contiguous()
    some = replace(train, images=images, names=train.names[:classes], classes=torch.arange(classes))
    return FewShot(FewShotData(some, some, some), ResNet12, shots=1, queries=2, meta_batch=4, train_tasks=8)


def learner(jacobian: str, begin: Any) -> HeadLearner:
    return HeadLearner(SOLVER, JACOBIANS[jacobian], begin=begin)


def gradient(learning: Any) -> tuple[float, torch.Tensor]:
    leaves = list(learning.x["backbone"].values())
    loss = learning.outer_loss()
    found = torch.autograd.grad(loss, leaves)
    return loss.item(), torch.cat([t.flatten() for t in found])


def train(few_shot: FewShot, name: str, lr: float, begin: str, steps: int) -> Iterator[tuple[float, float | None]]:
    """The outer loss of each step, and now and then the cosine of its gradient to the exact one."""
    learning, exact = learner(name, begin).start(few_shot), learner("unrolled", begin).start(few_shot)
    leaves = list(learning.x["backbone"].values())
    optimizer = torch.optim.Adam(leaves, lr)
    for step in range(steps):
        cosine = None
        state = learning.state_dict()
        loss, found = gradient(learning)
        if step % 8 == 0 and name != "unrolled":
            exact.x = learning.x
            exact.load_state_dict({**state, "argmin": exact.argmin.state_dict()})
            truth = gradient(exact)[1]
            cosine = float(torch.nn.functional.cosine_similarity(found, truth, 0))
        for leaf, part in zip(leaves, found.split([t.numel() for t in leaves]), strict=True):
            leaf.grad = part.reshape(leaf.shape)
        optimizer.step()
        yield loss, cosine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))), help="numbers of CASES")
    parser.add_argument("--stride", type=int, default=4, help="take every so many pixels; 1 has the whole images")
    options = parser.parse_args()
    torch.set_num_threads(1)
    few_shot = problem(12, options.stride)
    print(describe())
    print("| learner | lr | heads start at | mean outer loss of each eight steps | cosine to the exact gradient |")
    print("| --- | --- | --- | --- | --- |")
    for name, lr, begin in (CASES[i] for i in options.cases):
        began = time.process_time()
        rows = list(train(few_shot, name, lr, begin, options.steps))
        losses = [sum(loss for loss, _ in rows[i : i + 8]) / len(rows[i : i + 8]) for i in range(0, len(rows), 8)]
        cosines = ", ".join(f"{c:.2f}" for _, c in rows if c is not None) or "1"
        shown = ", ".join(f"{loss:.2f}" for loss in losses)
        print(f"| `{name}` | {lr:g} | {begin} | {shown} | {cosines} | {time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
