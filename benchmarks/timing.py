"""How are contenders timed so that the noise of the machine hits all alike?

In rounds: each contender in turn takes one step that is not timed, which brings its data back into the cache, and
then a few that are. What is compared are ratios of medians over all rounds.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

TURN_SECONDS = 0.02
MAX_STEPS_A_TURN = 10


class Racer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def step(self) -> Callable[[], Any]: ...


@dataclass(frozen=True)
class Timing:
    name: str
    ms: float
    ms_quartiles: tuple[float, float]
    steps: int


def seconds(action: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    action()
    return clock() - start


def race(contenders: Sequence[Racer], rounds: int, clock: Callable[[], float] = time.perf_counter) -> list[Timing]:
    turns = []
    for contender in contenders:
        usual = min(seconds(contender.step, clock) for _ in range(3))
        turns.append(max(1, min(MAX_STEPS_A_TURN, round(TURN_SECONDS / usual))))
    samples: list[list[float]] = [[] for _ in contenders]
    gc.collect()
    gc.freeze()
    order = list(zip(contenders, turns, samples, strict=True))
    for _ in range(rounds):
        order.reverse()  # a contender that comes after its twin finds more in the cache
        for contender, turn, own in order:
            contender.step()
            own.extend(seconds(contender.step, clock) for _ in range(turn))
    gc.unfreeze()
    return [
        Timing(contender.name, 1e3 * median(own), _quartiles(own), len(own))
        for contender, own in zip(contenders, samples, strict=True)
    ]


def _quartiles(samples: list[float]) -> tuple[float, float]:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return 1e3 * low, 1e3 * high
