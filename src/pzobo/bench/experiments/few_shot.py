"""What does few-shot learning show? Figure 4 and table 1: PZOBO beside the usual learners, on tasks of new classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from pzobo.bench.experiments.base import Experiment, Rates, Seeds
from pzobo.bench.experiments.bounds import Often, Within
from pzobo.bench.methods import Named, Setup
from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.bench.report.claims import converges_faster
from pzobo.data import digits_few_shot, miniimagenet, omniglot
from pzobo.errors import OptionError
from pzobo.jacobians import CG, PZOBO, Direct, Implicit, Unrolled
from pzobo.jacobians.base import Jacobian
from pzobo.meta import (
    ANIL,
    ESMAML,
    FOMAML,
    MAML,
    SVM,
    FewShot,
    HeadLearner,
    Learning,
    MetaOptNet,
    ProtoNet,
    Ridge,
)
from pzobo.networks import CNN4, ResNet12
from pzobo.outer.objective import Objective, Startable
from pzobo.solvers import HeavyBall
from pzobo.zeroth_order.directions import UnitPerTensor

GAMMA = 0.5


def _heads(jacobian: Callable[[Setup], Jacobian]) -> Callable[[Setup, Any], Startable]:
    return lambda setup, problem: HeadLearner(setup.solver, jacobian(setup), gamma=GAMMA, compile=setup.compile)


def _fixed(learner: Startable) -> Callable[[Setup, Any], Startable]:
    return lambda setup, problem: learner


# Workers take them in this order. The slowest come early: a slow last one would leave the other workers idle.
LEARNERS: dict[str, Named] = {
    "direct": Named("Direct (no Jacobian)", "heads adapted, their response left out", _heads(lambda s: Direct())),
    "pzobo-x": Named(
        "PZOBO at x, authors' code",
        "one direction in the weights, shared by all tasks",
        _heads(lambda s: PZOBO(s.mu, s.directions, sampler=UnitPerTensor(), at="x")),
    ),
    "pzobo-z": Named(
        "PZOBO at z", "a direction in the support features", _heads(lambda s: PZOBO(s.mu, s.directions, at="z"))
    ),
    "unrolled": Named("Unrolled", "exact, through the steps of the heads", _heads(lambda s: Unrolled())),
    "implicit": Named("Implicit, like iMAML", "by conjugate gradients", _heads(lambda s: Implicit(CG(s.iterations)))),
    "es-maml": Named("ES-MAML", "zeroth order, of the whole objective", _fixed(ESMAML())),
    "maml": Named("MAML", "the whole network adapts, second order", _fixed(MAML())),
    "fomaml": Named("FOMAML", "the whole network adapts, first order", _fixed(FOMAML())),
    "anil": Named("ANIL", "a learned head, a few exact steps", _fixed(ANIL())),
    "protonet": Named("ProtoNet", "the nearest class mean", _fixed(ProtoNet())),
    "metaoptnet-rr": Named("MetaOptNet, ridge", "ridge regression in closed form", _fixed(MetaOptNet(Ridge()))),
    "metaoptnet-svm": Named("MetaOptNet, SVM", "a support vector machine, by proxsuite", _fixed(MetaOptNet(SVM()))),
}

ACCURACY = (
    Panel("accuracy", "seconds"),
    Panel("error", "seconds", log=True),
    Panel("accuracy", "step"),
    Panel("outer_loss", "seconds", log=True),
)
THRESHOLDS = {"miniimagenet": (0.35, 0.4, 0.45), "omniglot": (0.9, 0.95, 0.97), "digits": (0.75, 0.8, 0.85)}
SIZES = {"filters": 32, "queries": 15, "meta_batch": 16, "eval_tasks": 100}
SMALL = {"filters": 16, "queries": 5, "meta_batch": 4, "eval_tasks": 50}
"""On digits, so that two cores have trained all learners within two minutes."""

Judged = Annotated[int, Within(1, 10**6)]
"""The accuracy on a million tasks is known to a few thousandths of a percent; more of them tell nothing."""


@dataclass(frozen=True, kw_only=True)
class FewShotLearning(Experiment):
    """Figure 4 and table 1: few-shot classification of classes that training never saw."""

    data: Literal["digits", "omniglot", "miniimagenet"] = "digits"
    """The data: digits, which needs no download, omniglot, or miniimagenet, which the paper has."""
    root: Path | None = None
    """The folder that has the data. By default it is looked for in PZOBO_DATA and the cache; omniglot is downloaded."""
    size: int | None = None
    """The side of an image in pixels, no larger than the data has: smaller images take less time."""
    backbone: Literal["cnn4", "resnet12"] = "cnn4"
    """The network whose features are learnt."""
    filters: int | None = None
    """The number of filters in each layer of CNN4; by default 32, on digits 16."""
    learner: tuple[str, ...] = ()
    """The learners to run, by name: another word for --methods."""
    ways: int = 5
    """The number of classes in a task."""
    shots: int = 5
    """The number of images of each class that a task is adapted to."""
    queries: int | None = None
    """The number of images of each class that a task is judged by; by default 15, on digits 5."""
    meta_batch: int | None = None
    """The number of tasks in an outer step; by default 16, on digits 4."""
    pieces: Annotated[int, Within(1)] = 1
    """The number of pieces in which a meta-batch is differentiated, one after the other: more take less memory."""
    train_tasks: int = 20_000
    """The number of different training tasks, after which they come again."""
    N: int = 30
    """The number of inner steps of the heads."""
    alpha: float = 0.01
    """The learning rate of the heads' inner steps."""
    mu: float = 0.1
    """The length of PZOBO's perturbation."""
    directions: int = 1
    """The number Q of random directions in each step."""
    eval_tasks: Judged | None = None
    """The number of validation tasks in an evaluation during training; by default 100, on digits 50."""
    test_tasks: Judged = 600
    """The number of test tasks at the end of a run."""
    milestones: tuple[int, ...] = (1500, 3500)
    """The outer steps at which the learning rate falls to a tenth, as in the authors' code."""
    seeds: Seeds = 1
    steps: int = 60
    evaluate_every: Often = 20
    compile: bool = False
    """Compile the inner steps of the heads."""
    lr_grid: Rates = (0.001, 0.003, 0.01)

    menu: ClassVar[Mapping[str, Named]] = LEARNERS
    not_settings = Experiment.not_settings | {"learner", "root"}

    about = About(
        name="few-shot",
        title="Few-shot learning",
        text="Five classes, five images of each to adapt to. The outer variables are the features, the inner ones a "
        "linear head for each task; accuracy on tasks of classes that training never saw (validation while training, "
        "test_accuracy on 600 test tasks at the end, with half of its 95 % interval).",
        final="accuracy",
        higher=True,
        beside=("test_accuracy", "test_interval"),
        views=tuple(
            View(
                f"Fig. 4: {data}, {backbone}",
                {"data": data, "backbone": backbone},
                ACCURACY,
                thresholds=thresholds,
            )
            for data, thresholds in THRESHOLDS.items()
            for backbone in ("resnet12", "cnn4")
        ),
        claims=(
            Claim(
                "Fig. 4: PZOBO converges faster than the other baseline meta-learning methods.",
                converges_faster(
                    ("maml", "anil", "protonet", "metaoptnet-rr"),
                    {"data": ("miniimagenet", "omniglot"), "backbone": "cnn4"},
                    forms=("pzobo-x", "pzobo-z"),
                ),
            ),
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.meta_batch is not None and self.meta_batch > self.train_tasks:
            raise OptionError(
                f"meta_batch={self.meta_batch}: there are train_tasks={self.train_tasks} different tasks, so that an "
                "outer step would take some of them twice. Choose a smaller meta_batch, or more train_tasks."
            )

    def chosen(self) -> tuple[str, ...]:
        return super().chosen() if not self.learner else self.only_named(self.learner)

    def label(self) -> str:
        return f"{self.data}-{self.backbone}"

    def sizes(self) -> dict[str, int]:
        """Filters, queries, tasks of an outer step and of an evaluation, as they were given or as the data has them."""
        usual = SMALL if self.data == "digits" else SIZES
        return {name: value if getattr(self, name) is None else getattr(self, name) for name, value in usual.items()}

    def settings(self) -> dict[str, object]:
        return {**super().settings(), **self.sizes()}

    def setup(self) -> Setup:
        solver = HeavyBall(self.alpha, 0.9, self.N)
        return Setup(
            solver, self.mu, self.directions, iterations=10, rate=self.alpha, compile=self.compile, check=self.check
        )

    def problem(self, seed: int) -> FewShot:
        if self.data == "digits":
            data = digits_few_shot(seed=seed)
        else:
            data = omniglot(self.root) if self.data == "omniglot" else miniimagenet(self.root)
        if self.size is not None:
            data = data.shrunk(self.size)
        sizes = self.sizes()
        net = ResNet12 if self.backbone == "resnet12" else partial(CNN4, filters=sizes["filters"])
        return FewShot(
            data,
            net,
            self.ways,
            self.shots,
            sizes["queries"],
            meta_batch=sizes["meta_batch"],
            train_tasks=self.train_tasks,
            eval_tasks=sizes["eval_tasks"],
            pieces=self.pieces,
        )

    def evaluate_at_end(self, objective: Objective) -> Mapping[str, float]:
        assert isinstance(objective, Learning)
        test = objective.evaluate("test", self.test_tasks)
        found = {"test_accuracy": test["accuracy"], "test_interval": test["interval"]}
        return {**self.evaluate(objective), **found}

    def scheduler(self) -> Callable[[torch.optim.Optimizer], Any] | None:
        return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, list(self.milestones), 0.1)

    def paper_lr(self, method: str) -> float:
        return 0.01 if method in ("direct", "pzobo-x", "pzobo-z", "unrolled", "implicit") else 0.003
