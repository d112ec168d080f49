"""What does the page about more processes say? What `benchmarks.scale` measured, and what follows from it."""

from __future__ import annotations

import math
import os
import random
from datetime import date
from typing import Any

import torch

Q = 64
LATENCY, BANDWIDTH = 50e-6, 1.25e9
"""Of an ordinary network of a cluster: 50 us and 10 Gbit/s. Assumed, not measured."""


def simulated(ranks: int, directions: int, wire: str, found: dict[str, Any], trials: int = 100) -> float:
    """Seconds of a step: the base path on all, the slowest rank's share of the directions, whose times are drawn from
    the measured ones, the wire, and with scalars the sum of all directions. gloo's gathers and sums are rings."""
    draw = random.Random(0)
    share = math.ceil(directions / ranks)
    slowest = [
        max(sum(draw.choices(found["spread"], k=share)) for _ in range(min(ranks, directions))) for _ in range(trials)
    ]
    time_of_paths = found["path"] * sum(slowest) / trials
    if ranks == 1:
        return float(found["base"] + time_of_paths)
    if wire == "scalars":
        again = directions * (found["draw"] + found["add"])
        crossing = (ranks - 1) * LATENCY + 4 * directions / BANDWIDTH
    else:
        again = 0.0
        crossing = 2 * (ranks - 1) * LATENCY + 8 * found["p"] / BANDWIDTH
    return float(found["base"] + time_of_paths + again + crossing)


def page(found: dict[str, Any]) -> str:
    wire, made, calls = (found[key] for key in ("wire", "parts", "collectives"))
    lines = [
        "# More processes",
        "",
        "`python -m benchmarks.scale --page docs/results/scale.md` makes this page. It was measured on "
        f"{date.today()} on a machine with {os.cpu_count()} cores, torch {torch.__version__}, commit "
        f"{str(found['environment'].get('commit'))[:10]}.",
        "",
        f"The load of the machine is shown beside the ratios: {os.cpu_count()} is all of it. Above that, wall-clock "
        "ratios say little, since other work has the cores. The time of the processor counts what the slowest process "
        "itself has used: what a machine without other work would show, but for waits. Of the steps of ranks "
        "the least is shown, which other work has disturbed least; of wall-clock times the median.",
        "",
        "## Two processes on two cores",
        "",
        "| | one | two | ratio | wanted | load before and after |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, key, wanted in (
        (f"linear features 128 x 256, Q = {Q}, one rank and two", "ranks", 1.8),
        (f"{Q} fits of an SVC, one job and two", "jobs", 1.7),
    ):
        row, load = found[key], " and ".join(f"{number:.1f}" for number in found["loads"][key])
        for clock in ("wall", "processor"):
            one, two = row[clock]
            ratio = row[f"{clock}_ratio"]
            lines.append(f"| {name}: {clock} | {one:.3f} s | {two:.3f} s | {ratio:.2f} | {wanted} | {load} |")
    lines += ["", "## Bytes on the wire", ""]
    if "not measured" in wire:
        lines.append(f"Not measured, since {wire['not measured']}.")
    else:
        lines += [
            "Bytes that leave a host in an outer step, all headers and acknowledgements included, read from the "
            "network device of each of two hosts (network namespaces), mean of 32 steps, the larger of the two:",
            "",
            "| what crosses | bytes a step | |",
            "| --- | --- | --- |",
            f'| `split="directions"`, `wire="scalars"`, Q = {Q} | {wire["scalars"]:,.0f} | wanted below 4 Q + 1 kB = '
            f"{4 * Q + 1000:,} |",
            f'| `split="directions"`, `wire="vector"`, p = {made["p"]:,} | {wire["vector"]:,.0f} | a vector like x |',
            f'| `split="data"`, Q = 1 | {wire["data"]:,.0f} | the gradient of every inner step, of two paths |',
        ]
    lines += [
        "",
        "## On 8, 64 and 1024 ranks: derived, not measured",
        "",
        "From measured parts (processor time, ms): the base path, the outer loss and the optimizer "
        f"{1e3 * made['base']:.2f}; a path along a direction {1e3 * made['path']:.2f}; making a direction "
        f"{1e3 * made['draw']:.3f} and adding it {1e3 * made['add']:.4f}, for p = {made['p']:,}. The paths of a rank "
        "are drawn from the measured ones, and the slowest rank counts. For the network, "
        f"{1e6 * LATENCY:.0f} us and {8 * BANDWIDTH / 1e9:.0f} Gbit/s are assumed; gloo's calls are rings, which take "
        "R - 1 latencies (a sum twice that). Between two processes of this machine a gather of Q weights took "
        f"{1e6 * calls[0]:.0f} us and a sum of p numbers {1e6 * calls[1]:.0f} us.",
        "",
        "| Q | ranks | scalars: ms | times faster | vector: ms | times faster | which |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for directions in (64, 1024, 16384):
        alone = simulated(1, directions, "scalars", made, 5)
        for count in (1, 8, 64, 1024):
            trials = 5 if directions > 1024 else 30
            both = (
                [alone] * 2
                if count == 1
                else [simulated(count, directions, w, made, trials) for w in ("scalars", "vector")]
            )
            which = "" if count == 1 else "scalars" if both[0] <= both[1] else "vector"
            told = [f"{1e3 * t:.1f} | {alone / t:.1f}" for t in both]
            lines.append(f"| {directions:,} | {count} | {told[0]} | {told[1]} | {which} |")
    ratio = (made["path"] + made["draw"]) / (made["draw"] + made["add"])
    best = {
        (directions, wire): min(
            (simulated(2**k, directions, wire, made, 2), 2**k) for k in range(13) if 2**k <= max(1024, directions)
        )[1]
        for directions in (64, 1024)
        for wire in ("scalars", "vector")
    }
    each = (made["draw"] + made["add"]) / made["p"]
    crossing = ", ".join(f"{8 / (rate * 1.25e8 * each):.3g} at {rate:g} Gbit/s" for rate in (0.1, 1, 10, 100))
    lines += [
        "",
        "**Where it stops to pay.** With scalars each rank makes all Q directions again, so that the gain ends near "
        f"path / direction = {ratio:.0f}, however many ranks there are. gloo's rings take a latency for each rank: "
        f"1024 ranks wait {1e3 * 1023 * LATENCY:.0f} ms for a gather. Of powers of two, a step with Q = 64 is shortest "
        f"at {best[64, 'scalars']} ranks with scalars and {best[64, 'vector']} with a vector, and with Q = 1024 at "
        f"{best[1024, 'scalars']} and {best[1024, 'vector']}. nccl, which has trees, could not be run here.",
        "",
        "**Which wire.** A vector costs 8 p bytes and no direction is made twice; scalars cost 4 Q bytes and Q "
        f"directions. Both grow with p, so the number of directions from which a vector is faster does not: {crossing} "
        "(latencies aside). Scalars are for slow networks and for bits that do not depend on the number of ranks; on a "
        "fast network a vector is faster.",
        "",
    ]
    return "\n".join(lines)
