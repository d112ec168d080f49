"""What do more processes bring? `python -m benchmarks.scale [--page docs/results/scale.md]`.

Two ranks on two cores beside one, and two jobs of a black box beside one, in wall-clock time and in time of the
processor, which other work on the machine does not touch; bytes that leave a host in a step, read from its network
device (a network namespace); and from the measured parts of a step, what it would take on 8, 64 and 1024 ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import pzobo
from benchmarks.environment import OUT, write
from benchmarks.problems import PROBLEMS
from benchmarks.scale_page import page
from pzobo.distributed.ranks import here
from pzobo.zeroth_order.directions import Gaussian, Space
from tests.distributed.hosts import hosts, missing
from tests.distributed.launch import ROOT, command, environment

Q = 64
ROUNDS = 4
STEPS = 6


# Inside of a rank


def loop(wire: Any = "scalars", split: Any = "directions", directions: int = Q) -> Any:
    """One step of a plain loop on linear hyper-representation, 128 x 256."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    p = PROBLEMS["linear large"]()
    argmin = pzobo.Argmin(
        p.inner_loss,
        solver=pzobo.GD(p.lr, p.steps),
        jacobian=pzobo.PZOBO(p.mu, directions, Gaussian(seed=0), shrink=p.shrink, batching="loop", at="x"),
        prepare=p.prepare,
        audit=False,
        split=split,
        wire=wire,
    )
    x = [t.clone().requires_grad_() for t in p.x0]
    optimizer = torch.optim.SGD(x, lr=p.outer_lr)

    def step() -> None:
        optimizer.zero_grad()
        p.outer_loss(tuple(x), argmin(tuple(x), p.y0, p.train), p.val).backward()
        optimizer.step()

    return step


def timed() -> None:
    """Seconds of a step, of the slowest rank: the median by the wall clock, and the least of the processor, which is
    that of a step that other work has disturbed least. Rank 0 prints them."""
    step = loop()
    step()
    walls, own = [], []
    for _ in range(STEPS):
        before = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - before[0])
        own.append(time.process_time() - before[1])
    ranks = here()
    found = ranks.objects((median(walls), min(own)))
    if ranks.rank == 0:
        print(json.dumps([max(pair[i] for pair in found) for i in (0, 1)]))


def wired(what: str, go: str) -> None:
    """Steps for somebody who counts bytes: a few, then a word, and after an answer as many as asked for."""
    step, count = (
        {
            "scalars": lambda: loop("scalars"),
            "vector": lambda: loop("vector"),
            "data": lambda: loop(split="data", directions=1),
        }[what](),
        32,
    )
    for _ in range(40):  # the checksums of the first calls are behind
        step()
    ranks = here()
    for name in ("ready", "done"):
        ranks.objects(None)
        Path(go, f"{name}-{ranks.rank}").touch()
        while not Path(go, f"after-{name}").exists():
            time.sleep(0.01)
        if name == "ready":
            for _ in range(count):
                step()


def collectives() -> None:
    """Seconds of a gather of Q numbers and of a sum of p; rank 0 prints them."""
    ranks, found = here(), []
    for call, size in ((ranks.gather, Q // 2), (ranks.sum, 32768)):
        tensor = torch.zeros(size)
        call(tensor)
        samples = []
        for _ in range(200):
            before = time.perf_counter()
            call(tensor)
            samples.append(time.perf_counter() - before)
        found.append(median(samples))
    if ranks.rank == 0:
        print(json.dumps(found))


# Around them


def launched(ranks: int, *arguments: Any) -> Any:
    found = subprocess.run(
        command(ranks, "-m", "benchmarks.scale", *arguments),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    return json.loads(found.stdout.splitlines()[-1])


def two_ranks() -> dict[str, Any]:
    """One rank and two, in turn."""
    rounds = [[launched(ranks, "timed") for ranks in (1, 2)] for _ in range(ROUNDS)]
    wall, own = ([[pair[0][i] for pair in rounds], [pair[1][i] for pair in rounds]] for i in (0, 1))
    return {
        "wall": [median(t) for t in wall],
        "processor": [min(t) for t in own],
        "wall_ratio": median(a / b for a, b in zip(*wall, strict=True)),
        "processor_ratio": min(own[0]) / min(own[1]),
    }


def machine(x: Any, y0: Any, batch: Any) -> Any:
    from sklearn.svm import SVC

    began = time.process_time()
    data, t = batch
    scaled = data * np.exp(np.asarray(x.detach()))
    half = len(t) // 2
    answer = SVC(gamma=0.02).fit(scaled[:half], t[:half]).decision_function(scaled[half:])
    with open(os.environ["PZOBO_SCALE_TIMES"], "a") as file:
        file.write(f"{os.getpid()} {time.process_time() - began}\n")
    return answer


def two_jobs() -> dict[str, Any]:
    """64 fits of an SVC, on 2,000 rows of 20 features, one by one and two at a time."""
    stream = np.random.default_rng(0)
    data = stream.normal(size=(2000, 20))
    batch = data, (data[:, 0] + data[:, 1] ** 2 + stream.normal(size=2000) > 1).astype(int)
    rounds: list[list[tuple[float, float]]] = []
    with tempfile.NamedTemporaryFile() as times:
        os.environ["PZOBO_SCALE_TIMES"] = times.name
        for _ in range(3):
            turn = []
            for jobs in (1, 2):
                argmin = pzobo.Argmin(
                    None,
                    solver=pzobo.BlackBox(machine, jobs=jobs),
                    jacobian=pzobo.PZOBO(0.1, Q, Gaussian(seed=0)),
                    audit=False,
                )
                x = torch.zeros(20, requires_grad=True)
                y = argmin(x, torch.zeros(1000), batch)
                if not rounds:
                    y.sum().backward(retain_graph=True)  # starts the processes
                Path(times.name).write_text("")
                began = time.perf_counter()
                y.sum().backward()
                wall = time.perf_counter() - began
                each: dict[str, float] = {}
                for line in Path(times.name).read_text().splitlines():
                    pid, seconds = line.split()
                    each[pid] = each.get(pid, 0.0) + float(seconds)
                turn.append((wall, max(each.values())))
            rounds.append(turn)
    wall, own = ([median(turn[j][i] for turn in rounds) for j in (0, 1)] for i in (0, 1))
    return {
        "wall": wall,
        "processor": own,
        "wall_ratio": median(turn[0][0] / turn[1][0] for turn in rounds),
        "processor_ratio": own[0] / own[1],
    }


def bytes_on_the_wire() -> dict[str, Any]:
    """Bytes that leave a host in a step, all headers and acknowledgements included: the mean over 32 steps, with one
    look at the checksums among them; the larger of two hosts."""
    why = missing()
    if why:
        return {"not measured": why}
    found = {}
    for what in ("scalars", "vector", "data"):
        with hosts(2) as both, tempfile.TemporaryDirectory() as go:
            agents = [
                host.start(
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
                    *(f"--node-rank={i}", f"--master-addr={both[0].address}", "--master-port=29500"),
                    *("-m", "benchmarks.scale", "wired", what, go),
                    log=Path(go, f"{i}.log"),
                )
                for i, host in enumerate(both)
            ]
            counts = []
            for name in ("ready", "done"):
                while not all(Path(go, f"{name}-{rank}").exists() for rank in (0, 1)):
                    time.sleep(0.02)
                    if any(agent.poll() not in (None, 0) for agent in agents):
                        raise RuntimeError(Path(go, "0.log").read_text()[-2000:])
                counts.append([host.sent() for host in both])
                Path(go, f"after-{name}").touch()
            for agent in agents:
                agent.wait()
            found[what] = max(b - a for a, b in zip(*counts, strict=True)) / 32
    return found


def parts() -> dict[str, Any]:
    """Seconds of what a step is made of, in time of the processor."""
    torch.set_num_threads(1)
    step, x = loop(split=None, directions=8), PROBLEMS["linear large"]().x0
    space, sampler = Space.of(x), Gaussian()
    step()
    eight = [_own(step) for _ in range(25)]
    one = loop(split=None, directions=1)
    one()
    base = [_own(one) for _ in range(25)]
    paths = [(a - median(base)) / 7 for a in eight]
    total = space.empty().zero_()
    u = sampler.draw(1, 0, Q, space)
    draws = [_own(lambda: sampler.draw(1, 0, Q, space)) for _ in range(200)]
    adds = [_own(lambda: total.addcmul_(u, u[0])) for _ in range(200)]
    path = median(paths)
    return {
        "base": median(base) - path,
        "path": path,
        "spread": [t / path for t in paths],
        "draw": sum(draws) / len(draws),
        "add": sum(adds) / len(adds),
        "p": space.dim,
    }


def _own(action: Any) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("timed", "wired", "collectives"):
        globals()[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the page here")
    parser.add_argument("--only", nargs="*", help="measure these parts anew, and take the others from the last time")
    options = parser.parse_args()
    file = OUT / "scale.json"
    found: dict[str, Any] = json.loads(file.read_text()) if options.only is not None and file.exists() else {}
    found.pop("environment", None)  # that of the last time
    loads = found.setdefault("loads", {})
    measures = {
        "ranks": two_ranks,
        "jobs": two_jobs,
        "wire": bytes_on_the_wire,
        "parts": parts,
        "collectives": lambda: launched(2, "collectives"),
    }
    for name, measure in measures.items():
        if options.only is None or name in options.only:
            before = os.getloadavg()[0]
            found[name] = measure()
            loads[name] = [before, os.getloadavg()[0]]
            print(name, str(found[name])[:400], flush=True)
    write(file, found)
    if options.page:
        options.page.write_text(page(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
