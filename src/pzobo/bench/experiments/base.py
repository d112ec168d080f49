"""What is an experiment? Settings as in the paper, a problem for each seed, and the methods that are run on it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pzobo.bench.experiments.bounds import Count, NotEmpty, Often, Within, check, check_work
from pzobo.bench.methods import METHODS, Named, Setup
from pzobo.bench.report.about import About
from pzobo.errors import OptionError
from pzobo.outer.every import Every
from pzobo.outer.objective import Objective

SEARCH_SEED = 1000
"""The data on which learning rates are chosen is that of no run."""

Rate = float | Literal["paper", "search"]
Seeds = Annotated[int, Within(1, SEARCH_SEED)]
Rates = Annotated[tuple[float, ...], NotEmpty()]
Workers = Annotated[int, Within(0, 1000)]
Shard = str | None


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """The settings that all experiments have; each adds its own."""

    methods: tuple[str, ...] = ()
    """The methods to run, by name; all but the slow ones by default. `pzobo list` shows the names."""
    seeds: Seeds = 5
    """How many seeds are run, which are 0, 1, ... Data and random directions follow from the seed."""
    steps: int = 100
    """The number of outer steps of each run."""
    seconds: float | None = None
    """Stop each run after so many seconds, even if it has steps left."""
    lr: Rate = "paper"
    """The outer learning rate: a number, "paper" for the paper's, or "search" for each method's best of --lr-grid."""
    lr_grid: Rates = (0.01, 0.02, 0.05, 0.1, 0.2)
    """The learning rates that "search" tries: the same for all methods, on data of another seed."""
    search_steps: int | None = None
    """The number of outer steps of each trial of "search"; that of a run by default."""
    search_seconds: float | None = None
    """Stop each trial of "search" after so many seconds."""
    clock: Literal["wall", "processor"] = "wall"
    """The clock that measures seconds; "processor" counts a run's own time, which is fairer on a busy machine."""
    device: str = "cpu"
    """Where all tensors are: cpu, cuda or mps."""
    compile: bool = True
    """Compile the inner steps. The time for it is not counted."""
    check: bool = True
    """Stop a run whose estimates are rounding noise; --no-check lets it go on."""
    evaluate_every: Often = 10
    """Evaluate every so many outer steps, or every so many seconds of them: 2s. The time for it is not counted."""
    checkpoint_every: Count = 100
    """Write a checkpoint every so many outer steps."""
    out: Path = Path("runs")
    """The folder that the runs are written to."""
    resume: bool = False
    """Go on with the runs that are in the folder already."""
    workers: Workers = 2
    """How many runs go side by side, each a process with one thread; with 0 this process makes one after another."""

    shard: Shard = None
    """Make only these of the runs, as in 2/8: the second of eight parts, for a job of a cluster's array."""

    about: ClassVar[About]
    menu: ClassVar[Mapping[str, Named]] = METHODS
    """The methods on offer, by name."""
    slow: ClassVar[frozenset[str]] = frozenset()
    """Methods that run only when they are named."""
    not_settings: ClassVar[frozenset[str]] = frozenset(
        {"methods", "seeds", "steps", "lr", "out", "resume", "workers", "checkpoint_every", "shard"}
        | {"lr_grid", "search_steps", "search_seconds", "check"}
    )

    def __post_init__(self) -> None:
        part_of(self.shard)
        check(self)
        check_work(self)
        Every.of("evaluate_every", self.evaluate_every)
        try:
            torch.empty(0, device=self.device)
        except Exception as error:  # torch raises a RuntimeError, an AssertionError or what a backend raises
            raise OptionError(f"device={self.device!r} cannot be used here ({error}).") from error

    @property
    def name(self) -> str:
        return self.about.name

    def chosen(self) -> tuple[str, ...]:
        """The methods to run: those that were asked for, or all that are not slow."""
        return self.only_named(self.methods) or tuple(name for name in self.menu if name not in self.slow)

    def only_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names, if all of them are on the menu."""
        for name in names:
            if name not in self.menu:
                raise OptionError(f"{self.name} has no method {name!r}; it has {', '.join(self.menu)}.")
        return names

    def variants(self) -> list[Self]:
        """The same experiment with each combination of settings that is to be run, the main one first."""
        return [self]

    @abstractmethod
    def label(self) -> str:
        """A short name of this variant, for its folder."""

    def family(self) -> str:
        """The name of this variant's family. Its learning rates are searched once, on the first variant."""
        return ""

    @abstractmethod
    def problem(self, seed: int) -> Any:
        """The problem of a seed."""

    @abstractmethod
    def setup(self) -> Setup:
        """What its methods share."""

    @abstractmethod
    def paper_lr(self, method: str) -> float:
        """The outer learning rate that the paper, or its authors' code, has for a method."""

    def optimizer(self, variables: list[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(variables, lr=lr)

    def scheduler(self) -> Callable[[torch.optim.Optimizer], Any] | None:
        return None

    def evaluate(self, objective: Objective) -> Mapping[str, float]:
        return objective.evaluate()

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        """The same for the last row of a run."""
        return self.evaluate(objective)

    def judge(self, objective: Objective) -> Mapping[str, float]:
        """What a learning rate is chosen by, after a trial: `judged`, else `about.final`, else the outer loss."""
        return self.evaluate(objective)

    def settings(self) -> dict[str, Any]:
        """The settings that make a run what it is, as plain values."""
        return {
            f.name: json.loads(json.dumps(getattr(self, f.name), default=str))
            for f in fields(self)
            if f.name not in self.not_settings
        }

    def trial(self) -> dict[str, Any]:
        """The settings that make a trial of a learning rate what it is."""
        lengths = {"steps": self.search_steps or self.steps, "seconds": self.search_seconds}
        found = {key: value for key, value in self.settings().items() if key != "evaluate_every"} | lengths
        return dict(json.loads(json.dumps(found)))

    def only(self, *methods: str, **changes: Any) -> Self:
        """This experiment with other settings, for those of the methods that are to be run."""
        return replace(self, methods=tuple(m for m in methods if m in self.chosen()), **changes)


def part_of(shard: str | None) -> tuple[int, int]:
    """Which part of how many a text such as "2/8" says, counted from 0; all is one part of one."""
    if shard is None:
        return 0, 1
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", shard)
    if found is None or int(found[1]) > int(found[2]):
        raise OptionError(f"shard={shard!r}: give a part and how many there are, as in 2/8.")
    return int(found[1]) - 1, int(found[2])
