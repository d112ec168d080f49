"""What is few-shot learning as a bilevel problem? The features are x; a linear head for each task is y."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pzobo.argmin import Argmin
from pzobo.distributed.ranks import Ranks
from pzobo.distributed.splits import ambient
from pzobo.errors import OptionError
from pzobo.jacobians import PZOBO
from pzobo.jacobians.base import Jacobian
from pzobo.meta.learner import FewShotMethod, Learning, task_loss
from pzobo.meta.problem import FewShot, Model
from pzobo.meta.tasks import Episodes
from pzobo.solvers import HeavyBall, Solver
from pzobo.tensors.trees import Tree
from pzobo.zeroth_order.directions import UnitPerTensor

Begin = Literal["zeros", "mean", "learned"]
Head = dict[str, Tensor]


def linear_head(features: int, ways: int, like: Tensor) -> Head:
    """The first values of a linear layer, as torch.nn.Linear draws them, as outer variables."""
    layer = torch.nn.Linear(features, ways).to(like)
    return {"weight": layer.weight.detach().requires_grad_(), "bias": layer.bias.detach().requires_grad_()}


def apply_heads(features: Tensor, heads: Head) -> Tensor:
    """Logits of all tasks in one product: features W_i^T + b_i."""
    return torch.baddbmm(heads["bias"].unsqueeze(1), features, heads["weight"].transpose(1, 2))


@dataclass(frozen=True)
class HeadLearner(FewShotMethod):
    """Features shared by all tasks, and a linear head w_i adapted to the support set of each, all tasks in one batch.

    As in the appendix of the paper, y = (w_1, ..., w_B) = argmin of sum_i [ CE(T(S_i; x) w_i) + gamma/2 |w_i|^2 ] by
    `solver`, with dy/dx by `jacobian`, and f = mean_i CE(T(Q_i; x) w_i). g is a sum over tasks, not a mean, so
    that each task takes the steps it would take alone. One direction u of PZOBO(at="x") serves all tasks, as in the
    paper; at="z" perturbs the support features instead.

    The defaults are the paper's and its authors' for miniImageNet, to be trained by Adam(0.01).

    Args:
        solver: how the heads are reached.
        jacobian: what their dependence on the features is taken to be.
        gamma: the l2 strength.
        begin: where heads start: "zeros"; "mean", the mean of the heads of the last meta-batch; or "learned", outer
            variables x["head"], from which y_i = w_i - x["head"] is the displacement that gamma then holds (iMAML).
        compile: compile the inner steps.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> problem = pzobo.meta.FewShot(pzobo.data.digits_few_shot(), shots=1, queries=2, meta_batch=2, eval_tasks=4)
        >>> learner = pzobo.meta.HeadLearner()
        >>> found = pzobo.fit(problem, learner, 2, lr=0.01, evaluate_every=0, progress=False)
        >>> sorted(found.x), found.history[-1]["accuracy"] > 0.2
        (['backbone'], True)
    """

    solver: Solver = field(default_factory=lambda: HeavyBall(lr=0.01, momentum=0.9, steps=30))
    jacobian: Jacobian = field(default_factory=lambda: PZOBO(mu=0.1, sampler=UnitPerTensor(), at="x"))
    gamma: float = 0.5
    begin: Begin = "mean"
    compile: bool = False

    def __post_init__(self) -> None:
        if self.begin not in ("zeros", "mean", "learned"):
            raise OptionError(f'HeadLearner: begin={self.begin!r}: must be "zeros", "mean" or "learned".')
        if not self.gamma >= 0:
            raise OptionError(f"HeadLearner: gamma={self.gamma!r}: must be a number, at least 0.")

    def variables(self, model: Model) -> Tree:
        weights = model.weights()
        if self.begin != "learned":
            return {"backbone": weights}
        like = next(iter(weights.values()))
        return {"backbone": weights, "head": linear_head(model.net.out_features, model.ways, like)}

    def start(self, problem: FewShot, seed: int = 0) -> Heads:
        return Heads(problem, self, seed)


class Heads(Learning):
    """Training of a `HeadLearner`: an `Argmin` over the heads of a meta-batch."""

    learner: HeadLearner

    def __init__(self, problem: FewShot, learner: HeadLearner, seed: int = 0) -> None:
        super().__init__(problem, learner, seed)
        weights = next(iter(self.x["backbone"].values()))
        shape = (problem.ways, self.model.net.out_features)
        self.mean: Head = {"weight": weights.new_zeros(shape), "bias": weights.new_zeros(shape[:1])}
        self._found: list[Head] = []
        """The heads of the meta-batch, piece by piece."""
        self._tasks = problem.meta_batch
        self.argmin = Argmin(
            self._inner_loss,
            solver=learner.solver,
            jacobian=learner.jacobian.at_start(),
            prepare=self._prepare,
            compile=learner.compile,
        )

    def _prepare(self, x: Any, episodes: Episodes) -> Any:
        # A head that is learned is a part of z too, since the inner loss needs it.
        return (self.model.support(x, episodes), x["head"]) if "head" in x else (self.model.support(x, episodes),)

    def _inner_loss(self, z: Any, y: Head, episodes: Episodes) -> Tensor:
        features, *head = z
        logits = apply_heads(features, moved(y, *head))
        labels = episodes.support_labels
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]
        if not self.learner.gamma:
            return loss
        return loss + 0.5 * self.learner.gamma * (y["weight"].square().sum() + y["bias"].square().sum())

    def heads(self, episodes: Episodes) -> Head:
        """y of some tasks, as a function of x."""
        count = len(episodes.support)
        y0 = {name: t.expand(count, *t.shape).clone() for name, t in self.mean.items()}
        y: Head = self.argmin(self.x, y0, episodes)
        return y

    def predict(self, y: Head, episodes: Episodes) -> Tensor:
        head = [self.x["head"]] if "head" in self.x else []
        return apply_heads(self.model.query(self.x, episodes), moved(y, *head))

    def logits(self, episodes: Episodes) -> Tensor:
        return self.predict(self.heads(episodes), episodes)

    def outer(self, episodes: Episodes) -> Tensor:
        y = self.heads(episodes)
        self._found.append({name: t.detach() for name, t in y.items()})
        return task_loss(self.predict(y, episodes), episodes.query_labels)

    def rewind(self, state: dict[str, Any]) -> None:
        self.argmin.load_state_dict(state["argmin"])

    def settle(self, ranks: Ranks) -> None:
        self._tasks = len(self._found[-1]["bias"])
        if self.learner.begin == "mean":
            sums_of = {name: torch.cat([y[name] for y in self._found]).sum(0) for name in self.mean}
            self.mean = {name: ranks.sum(t) / self.problem.meta_batch for name, t in sums_of.items()}
        self._found = []

    def inner_loss(self) -> float | None:
        """The mean over tasks; with pieces, over those of the last one."""
        if not self.step:
            return None
        here = torch.tensor([float(self.argmin.last.inner_loss), self._tasks], dtype=torch.float64, device="cpu")
        split = ambient("tasks")
        value, tasks = (here if split is None else split.ranks.sum(here)).tolist()
        return float(value / tasks)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"mean": self.mean, "argmin": self.argmin.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.mean = {name: t.detach().clone() for name, t in state["mean"].items()}
        self.argmin.load_state_dict(state["argmin"])


def moved(y: Head, start: Head | None = None) -> Head:
    """The heads w_i: y_i itself, or the learned start moved by y_i."""
    return y if start is None else {name: start[name] + t for name, t in y.items()}
