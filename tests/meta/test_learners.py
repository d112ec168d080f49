"""Is each learner's meta-gradient what its definition says? Against plain autograd, closed forms and each other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import optree
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import pzobo
from pzobo.meta import ANIL, ESMAML, FOMAML, MAML, Episodes, FewShot, HeadLearner, Learner, MetaOptNet, ProtoNet, Ridge
from pzobo.networks import CNN4
from pzobo.tensors.seeds import mix
from pzobo.zeroth_order.directions import Space

GD = pzobo.GD(lr=0.3, steps=4)


def gradient(objective: Any) -> tuple[float, list[Tensor]]:
    """The next loss of an objective and its hypergradient."""
    leaves = optree.tree_leaves(objective.x)
    for leaf in leaves:
        leaf.grad = None
    value = objective.outer_loss()
    value.backward()
    return value.item(), [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-9) -> bool:
    a, b = (torch.cat([t.flatten() for t in tensors]) for tensors in (found, expected))
    return bool((a - b).norm() <= tolerance * b.norm())


def reference(objective: Any, loss_of_task: Any) -> tuple[float, list[Tensor]]:
    """The same by plain autograd: the mean of a loss over the first meta-batch, task by task."""
    episodes = objective.problem.tasks("train", objective.seed).batch(0, objective.problem.meta_batch)
    x = optree.tree_map(lambda t: t.detach().clone().requires_grad_(), objective.x)
    losses = [loss_of_task(objective.model.net, x, episodes.task(i)) for i in range(objective.problem.meta_batch)]
    value = torch.stack(losses).mean()
    return value.item(), list(torch.autograd.grad(value, optree.tree_leaves(x), materialize_grads=True))


def features(net: Any, weights: Any, images: Tensor) -> Tensor:
    """One task, by itself."""
    return functional_call(net, weights, (images,))[0]


def anil(net: Any, x: Any, task: Episodes, lr: float = 0.3, steps: int = 4, gamma: float = 0.0) -> Tensor:
    z, query = (features(net, x["backbone"], images) for images in (task.support, task.query))
    start = [x["head"]["weight"], x["head"]["bias"]] if "head" in x else [z.new_zeros(3, z.shape[1]), z.new_zeros(3)]
    y = [torch.zeros_like(t, requires_grad=True) for t in start]
    for _ in range(steps):
        w, b = (s + t for s, t in zip(start, y, strict=True))
        inner = cross_entropy(z @ w.T + b, task.support_labels[0]) + gamma / 2 * sum(t.square().sum() for t in y)
        y = [t - lr * g for t, g in zip(y, torch.autograd.grad(inner, y, create_graph=True), strict=True)]
    w, b = (s + t for s, t in zip(start, y, strict=True))
    return cross_entropy(query @ w.T + b, task.query_labels[0])


def maml(net: Any, x: Any, task: Episodes, second_order: bool) -> Tensor:
    leaves, spec = optree.tree_flatten(x)

    def loss(w: Any, images: Tensor, labels: Tensor) -> Tensor:
        tree = spec.unflatten(w)
        return cross_entropy(
            features(net, tree["backbone"], images) @ tree["head"]["weight"].T + tree["head"]["bias"], labels[0]
        )

    w = list(leaves)
    for _ in range(3):
        grads = torch.autograd.grad(loss(w, task.support, task.support_labels), w, create_graph=True)
        w = [t - 0.1 * (g if second_order else g.detach()) for t, g in zip(w, grads, strict=True)]
    return loss(w, task.query, task.query_labels)


def protonet(net: Any, x: Any, task: Episodes) -> Tensor:
    z, query = (features(net, x["backbone"], images) for images in (task.support, task.query))
    centres = torch.stack([z[task.support_labels[0] == k].mean(0) for k in range(3)])
    return cross_entropy(-torch.cdist(query, centres).square(), task.query_labels[0])


def ridge(net: Any, x: Any, task: Episodes) -> Tensor:
    """By the normal equations of the primal problem."""
    z, query = (features(net, x["backbone"], images) for images in (task.support, task.query))
    targets = torch.eye(3, dtype=z.dtype)[task.support_labels[0]]
    w = torch.linalg.solve(z.T @ z + 0.7 * torch.eye(z.shape[1], dtype=z.dtype), z.T @ targets)
    return cross_entropy(x["scale"] * (query @ w), task.query_labels[0])


CASES: dict[str, tuple[Learner, Any]] = {
    "MAML": (MAML(lr=0.1, steps=3), partial(maml, second_order=True)),
    "FOMAML": (FOMAML(lr=0.1, steps=3), partial(maml, second_order=False)),
    "ANIL": (ANIL(lr=0.3, steps=4), anil),
    "ProtoNet": (ProtoNet(), protonet),
    "MetaOptNet-RR": (MetaOptNet(Ridge(0.7)), ridge),
    "Unrolled": (HeadLearner(GD, pzobo.Unrolled(), gamma=0.2, begin="zeros"), partial(anil, gamma=0.2)),
    "Unrolled from a learned head": (HeadLearner(GD, pzobo.Unrolled(), 0.2, "learned"), partial(anil, gamma=0.2)),
}


@pytest.mark.parametrize("name", CASES)
def test_meta_gradient_is_that_of_plain_autograd(name: str, problem: FewShot) -> None:
    learner, definition = CASES[name]
    objective = learner.start(problem, seed=1)
    expected = reference(objective, definition)
    found = gradient(objective)
    assert found[0] == pytest.approx(expected[0], rel=1e-10)
    assert close(found[1], expected[1])
    assert all(g.abs().sum() > 0 for g in expected[1]), "the reference sees every variable"


def test_second_derivatives_matter(problem: FewShot) -> None:
    first, second = (gradient(learner(lr=0.1, steps=3).start(problem, seed=1))[1] for learner in (FOMAML, MAML))
    assert not close(first, second, 1e-2)


@pytest.mark.parametrize("at", ["x", "z"])
def test_pzobo_with_all_orthogonal_directions_is_unrolled(at: Any, problem: FewShot) -> None:
    exact = HeadLearner(GD, pzobo.Unrolled(), gamma=0.2, begin="zeros")
    tasks = problem.meta_batch * problem.ways * problem.shots
    start = exact.start(problem, seed=1)
    p = sum(t.numel() for t in optree.tree_leaves(start.x)) if at == "x" else 2 * tasks
    jacobian = pzobo.PZOBO(mu=1e-6, directions=p, sampler=pzobo.Orthogonal(), at=at, antithetic=True)
    found = gradient(replace(exact, jacobian=jacobian).start(problem, seed=1))
    expected = gradient(start)
    direct = gradient(replace(exact, jacobian=pzobo.Direct()).start(problem, seed=1))
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert close(found[1], expected[1], 1e-5)
    assert not close(direct[1], expected[1], 1e-2), "the response is no small part of the gradient"


def test_implicit_is_unrolled_when_the_heads_are_solved(problem: FewShot) -> None:
    solver = pzobo.GD(lr=0.3, steps=600)
    learners = [
        HeadLearner(solver, jacobian, gamma=0.2, begin="zeros")
        for jacobian in (pzobo.Unrolled(), pzobo.Implicit(pzobo.CG(40, tol=1e-12)))
    ]
    unrolled, implicit = (gradient(learner.start(problem, seed=1))[1] for learner in learners)
    assert close(implicit, unrolled, 1e-6)


def test_es_maml_with_all_directions_is_the_gradient_of_the_adapted_loss(problem: FewShot) -> None:
    small = replace(problem, meta_batch=1)
    start = ESMAML(lr=0.1, steps=3).start(small, seed=1)
    p = sum(t.numel() for t in optree.tree_leaves(start.x))
    # So small a mu that no perturbation moves a ReLU across its kink, where the adapted weights jump.
    learner = ESMAML(lr=0.1, steps=3, mu=1e-9, directions=p, sampler=pzobo.Orthogonal())
    found = gradient(learner.start(small, seed=1))
    expected = gradient(MAML(lr=0.1, steps=3).start(small, seed=1))
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert close(found[1], expected[1], 1e-4)


def test_one_direction_serves_all_tasks(problem: FewShot) -> None:
    """PZOBO(at="x") with Q = 1: the response part of the gradient is one number times one direction."""
    learner = HeadLearner(GD, pzobo.PZOBO(mu=1e-4, at="x", shrink=False), gamma=0.2, begin="zeros")
    found, direct = (
        torch.cat([g.flatten() for g in gradient(replace(learner, jacobian=j).start(problem, seed=1))[1]])
        for j in (learner.jacobian, pzobo.Direct())
    )
    with torch.random.fork_rng():
        torch.manual_seed(mix(1, 0))  # seed 1, step 0
        key = pzobo.Gaussian().key()
    start = learner.start(problem, seed=1)
    leaves = optree.tree_leaves(start.x)
    u = pzobo.Gaussian().draw(key, 0, 1, Space.of(leaves))
    response = found - direct
    assert torch.cosine_similarity(response, u, dim=0).abs().item() == pytest.approx(1, abs=1e-9)


def test_a_meta_batch_is_the_mean_of_its_tasks(problem: FewShot) -> None:
    """The steps of a task do not depend on what other tasks are in the batch."""
    learner = HeadLearner(GD, pzobo.Unrolled(), gamma=0.2, begin="zeros")
    together = gradient(learner.start(problem, seed=1))
    single = learner.start(replace(problem, meta_batch=1), seed=1)
    apart = [gradient(single) for _ in range(3)]
    assert together[0] == pytest.approx(sum(value for value, _ in apart) / 3, rel=1e-12)
    assert close(together[1], [torch.stack(parts).mean(0) for parts in zip(*(g for _, g in apart), strict=True)])


def test_warm_start_is_the_mean_of_the_last_heads(problem: FewShot) -> None:
    objective = HeadLearner(GD, pzobo.Direct(), gamma=0.2, begin="mean").start(problem, seed=1)
    assert not objective.mean["weight"].any()
    first = objective.heads(objective.tasks.batch(0, 3))
    objective.outer_loss()
    assert torch.equal(objective.mean["weight"], first["weight"].detach().mean(0))
    second = objective.heads(objective.tasks.batch(3, 3))
    objective.mean = {name: torch.zeros_like(t) for name, t in objective.mean.items()}
    assert not torch.equal(second["weight"], objective.heads(objective.tasks.batch(3, 3))["weight"])


def test_defaults_are_the_papers() -> None:
    learner = HeadLearner()
    assert learner.solver == pzobo.HeavyBall(lr=0.01, momentum=0.9, steps=30)
    assert learner.jacobian == pzobo.PZOBO(mu=0.1, sampler=pzobo.UnitPerTensor(), at="x")
    assert (learner.gamma, learner.begin) == (0.5, "mean")


def test_compiled_heads_are_the_same(problem: FewShot) -> None:
    small = replace(problem, backbone=partial(CNN4, filters=3))
    learner = HeadLearner(pzobo.GD(lr=0.3, steps=5), pzobo.PZOBO(mu=1e-3, at="z"), gamma=0.2, begin="zeros")
    found, expected = (gradient(replace(learner, compile=c).start(small, seed=1)) for c in (True, False))
    assert found[0] == pytest.approx(expected[0], rel=1e-10)
    assert close(found[1], expected[1], 1e-7)


@pytest.mark.parametrize("options", [{"begin": "ones"}, {"gamma": -1.0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(pzobo.errors.OptionError, match=f"HeadLearner: {next(iter(options))}"):
        HeadLearner(**options)


def test_a_learner_without_logits_cannot_be_made() -> None:
    class Half(Learner):
        pass

    with pytest.raises(TypeError, match="logits"):
        Half()
