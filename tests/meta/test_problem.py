"""Does BatchNorm keep tasks apart, is an evaluation what it says, and does a run resume bit for bit?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optree
import pytest
import torch

import pzobo
from pzobo.data import FewShotData
from pzobo.errors import OptionError
from pzobo.meta import ANIL, MAML, FewShot, HeadLearner, MetaOptNet, ProtoNet
from pzobo.meta.problem import Norm
from pzobo.networks import ResNet12
from pzobo.outer.fitting import fit

LEARNERS = {
    "pzobo": HeadLearner(pzobo.GD(lr=0.3, steps=3), pzobo.PZOBO(mu=1e-3, at="x"), gamma=0.1),
    "anil": ANIL(lr=0.1, steps=2),
    "maml": MAML(lr=0.1, steps=2),
    "protonet": ProtoNet(),
    "ridge": MetaOptNet(),
}


@pytest.mark.parametrize("norm", ["transductive", "inductive"])
@pytest.mark.parametrize("name", LEARNERS)
def test_predictions_of_a_task_do_not_depend_on_other_tasks(name: str, norm: Norm, problem: FewShot) -> None:
    objective = LEARNERS[name].start(replace(problem, norm=norm), seed=0)
    episodes = problem.tasks("test").batch(0, 3)
    with torch.no_grad():
        whole = objective.logits(episodes)
        for i in range(3):
            assert torch.allclose(objective.logits(episodes.task(i)), whole[i : i + 1], atol=1e-10)


@pytest.mark.parametrize(("norm", "depends"), [("transductive", True), ("inductive", False)])
@pytest.mark.parametrize("name", LEARNERS)
def test_whether_a_prediction_depends_on_the_other_queries(
    name: str, norm: Norm, depends: bool, problem: FewShot
) -> None:
    objective = LEARNERS[name].start(replace(problem, norm=norm), seed=0)
    episodes = problem.tasks("test").batch(0, 2)
    other = episodes._replace(query=episodes.query.clone())
    other.query[:, 1:] *= 3
    with torch.no_grad():
        a, b = (objective.logits(e)[:, 0] for e in (episodes, other))
    assert torch.allclose(a, b, atol=1e-10) != depends


def test_evaluation_is_the_mean_over_tasks_with_its_interval(problem: FewShot) -> None:
    objective = ProtoNet().start(problem, seed=0)
    found = objective.evaluate("test")
    episodes = problem.tasks("test").batch(0, 7)
    with torch.no_grad():
        logits = objective.logits(episodes)
    right = (logits.argmax(-1) == episodes.query_labels).double().mean(1)
    assert found["accuracy"] == pytest.approx(right.mean().item())
    assert found["interval"] == pytest.approx(1.96 * right.std().item() / 7**0.5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), episodes.query_labels.flatten())
    assert found["loss"] == pytest.approx(loss.item())
    assert found != objective.evaluate("val")
    assert objective.evaluate() == objective.evaluate("val", 7)


@pytest.mark.parametrize("name", LEARNERS)
def test_evaluation_leaves_no_trace(name: str, problem: FewShot) -> None:
    plain, watched = (LEARNERS[name].start(problem, seed=3) for _ in range(2))
    for objective in (plain, watched):
        objective.outer_loss()
    watched.evaluate()
    first, second = (objective.outer_loss() for objective in (plain, watched))
    first.backward()
    second.backward()
    for a, b in zip(optree.tree_leaves(plain.x), optree.tree_leaves(watched.x), strict=True):
        assert torch.equal(a.grad, b.grad)


def leaves(run: Any) -> list[torch.Tensor]:
    return [t.detach() for t in optree.tree_leaves(run.x)]


@pytest.mark.parametrize("name", ["pzobo", "anil", "maml"])
def test_resumed_training_ends_in_the_same_bits(name: str, problem: FewShot, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": 0.01, "seed": 2, "progress": False, "evaluate_every": 2}
    whole = fit(problem, LEARNERS[name], 6, **options)
    fit(problem, LEARNERS[name], 3, out=tmp_path / "run", **options)
    resumed = fit(problem, LEARNERS[name], 6, out=tmp_path / "run", resume=True, **options)
    for a, b in zip(leaves(whole), leaves(resumed), strict=True):
        assert torch.equal(a, b)
    assert [row["outer_loss"] for row in whole.history] == [row["outer_loss"] for row in resumed.history]
    assert whole.history[-1]["accuracy"] == resumed.history[-1]["accuracy"]


def test_drop_block_is_the_same_after_a_resume(data: FewShotData) -> None:
    problem = FewShot(data, partial(ResNet12, drop=0.2), ways=2, shots=1, queries=1, meta_batch=1)
    learner = ProtoNet()
    plain, other = learner.start(problem, 0), learner.start(problem, 0)
    plain.outer_loss()
    other.load_state_dict(plain.state_dict())
    torch.rand(5)
    with torch.no_grad():
        assert torch.equal(plain.outer_loss(), other.outer_loss())
        assert plain.model.net.training
        before = [plain.evaluate("val", 2), plain.evaluate("val", 2)]
    assert before[0] == before[1]


def test_seeds_decide(problem: FewShot) -> None:
    same, again, other = (ProtoNet().start(problem, seed).outer_loss().item() for seed in (0, 0, 1))
    assert same == again != other


def test_a_problem_says_what_it_is_in_a_few_words(problem: FewShot, data: FewShotData) -> None:
    assert len(repr(problem)) < 700
    assert repr(data.train) != repr(data.val)


def test_impossible_problems_are_refused(data: FewShotData) -> None:
    with pytest.raises(OptionError, match="transductive"):
        FewShot(data, ways=3, shots=1, queries=2, norm="batch")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="only 5 classes"):
        FewShot(data, ways=6, shots=1, queries=2)
