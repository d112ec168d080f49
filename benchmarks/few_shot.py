"""How long is a step of each few-shot learner, beside ProtoNet and MAML? `python -m benchmarks.few_shot`.

CNN4 on random images of 84 x 84, 5-way 5-shot with 15 queries, 16 tasks, N = 30: one outer step, which is the outer
loss, its gradient and Adam. Learners take turns, on one thread; what counts are ratios in one run. `--sampling` counts
the tasks a second that are drawn from as many images as Omniglot has instead.
"""

import argparse
import resource
import subprocess
import sys
import time
from functools import partial
from statistics import median

import torch

import pzobo
from benchmarks.environment import describe
from pzobo.data.few_shot import FewShotData, ImageClasses
from pzobo.meta import ANIL, MAML, FewShot, HeadLearner, Learner, ProtoNet, Tasks
from pzobo.networks import CNN4

WANTED = (("PZOBO at x", "ProtoNet", 2.2), ("PZOBO at z", "ProtoNet", 1.5), ("PZOBO at x", "MAML", 0.5))


def solver(steps: int) -> pzobo.HeavyBall:
    return pzobo.HeavyBall(0.01, 0.9, steps)


def learners(steps: int) -> dict[str, Learner]:
    at_x = pzobo.PZOBO(mu=0.1, sampler=pzobo.UnitPerTensor(), at="x")
    return {
        "ProtoNet": ProtoNet(),
        "PZOBO at x": HeadLearner(solver(steps), at_x),
        "PZOBO at z": HeadLearner(solver(steps), pzobo.PZOBO(mu=0.1, at="z")),
        "Direct": HeadLearner(solver(steps), pzobo.Direct()),
        "Unrolled": HeadLearner(solver(steps), pzobo.Unrolled()),
        "ANIL": ANIL(),
        "MAML": MAML(),
    }


def noise(classes: int, each: int, channels: int, size: int) -> ImageClasses:
    """Random images, so many of each class."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (classes, each, channels, size, size), dtype=torch.uint8, generator=generator)
    return ImageClasses(images, tuple(map(str, range(classes))), mean=(0.5,) * channels, std=(0.3,) * channels)


def problem(filters: int, tasks: int) -> FewShot:
    classes = noise(8, 25, 3, 84)
    return FewShot(FewShotData(classes, classes, classes), partial(CNN4, filters=filters), meta_batch=tasks)


def sampling(queries: int, seconds: float = 3.0) -> float:
    """Five-way five-shot tasks a second, out of 4,400 classes of 20 images of 28 x 28 in memory."""
    tasks = Tasks(noise(4400, 20, 1, 28), ways=5, shots=5, queries=queries)
    tasks.batch(0, 16)
    drawn, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        drawn += len(tasks.batch(drawn, 16).support)
    return drawn / (time.process_time() - began)


def peak(name: str, steps: int, options: argparse.Namespace) -> float:
    """The peak memory of a process that makes two steps, in MB."""
    words = ["--filters", str(options.filters), "--tasks", str(options.tasks), "--only", name, "--steps", str(steps)]
    command = [sys.executable, "-m", "benchmarks.few_shot", *words, "--peak"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--filters", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30, help="N, inner steps of the heads")
    parser.add_argument("--only", nargs="+", help="names of learners")
    parser.add_argument("--peak", action="store_true", help="print the peak memory of two steps, and nothing else")
    parser.add_argument("--sampling", action="store_true", help="count the tasks a second, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.sampling:
        print(describe())
        for queries in (5, 15):
            print(f"{queries} queries of each class: {sampling(queries):.0f} tasks a second, wanted at least 2000")
        return
    few_shot = problem(options.filters, options.tasks)
    chosen = {n: learner for n, learner in learners(options.steps).items() if not options.only or n in options.only}
    objectives = {name: learner.start(few_shot) for name, learner in chosen.items()}
    optimizers = {
        name: torch.optim.Adam([t for part in objective.x.values() for t in part.values()], lr=1e-3)
        for name, objective in objectives.items()
    }

    def step(name: str) -> float:
        began = time.process_time()
        optimizers[name].zero_grad()
        objectives[name].outer_loss().backward()
        optimizers[name].step()
        return time.process_time() - began

    if options.peak:
        for name in chosen:
            step(name)
            step(name)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    for round_number in range(options.rounds + 1):
        for name in chosen:
            seconds = step(name)
            if round_number or name == "MAML":  # the first step of the others warms up; MAML's is long enough
                taken[name].append(seconds)
    print(describe())
    base = median(taken["ProtoNet"]) if "ProtoNet" in taken else 1.0
    for name, times in taken.items():
        print(f"{name:<12} {median(times):8.2f} s {median(times) / base:8.2f} of ProtoNet")
    for name, other, most in WANTED:
        if name in taken and other in taken:
            ratio = median(taken[name]) / median(taken[other])
            print(f"{name} / {other}: {ratio:.2f}, wanted at most {most}: {'yes' if ratio <= most else 'NO'}")
    for steps in (30, 300):
        print(f"peak memory of PZOBO at x, N = {steps}: {peak('PZOBO at x', steps, options):.0f} MB")


if __name__ == "__main__":
    main()
