"""Is a meta-batch in pieces the same as in one, with less in memory?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import pzobo
from pzobo.errors import OptionError
from pzobo.meta import ANIL, ESMAML, FewShot, HeadLearner, MetaOptNet, ProtoNet, Ridge
from tests.helpers import relative_error

SOLVER = pzobo.HeavyBall(0.05, 0.5, 6)
LEARNERS: dict[str, Any] = {
    "PZOBO at x": HeadLearner(SOLVER, pzobo.PZOBO(0.1, sampler=pzobo.UnitPerTensor(), at="x")),
    "PZOBO at x with a seed": HeadLearner(SOLVER, pzobo.PZOBO(0.1, 2, pzobo.Gaussian(seed=3), at="x")),
    "Unrolled": HeadLearner(SOLVER, pzobo.Unrolled()),
    # Few iterations, or a residual that is not small, see other Krylov spaces in pieces; at the end they are the same.
    "CG": HeadLearner(SOLVER, pzobo.Implicit(pzobo.CG(60, tol=1e-13)), begin="zeros"),
    "Direct": HeadLearner(SOLVER, pzobo.Direct()),
    "ANIL": ANIL(),
    "ES-MAML": ESMAML(steps=1),
    "ProtoNet": ProtoNet(),
    "MetaOptNet": MetaOptNet(Ridge()),
}


def walk(problem: FewShot, learner: Any, steps: int = 3) -> tuple[list[float], list[torch.Tensor], Any]:
    """The losses and the gradients of some steps of SGD, and the objective."""
    learning = learner.start(problem, seed=1)
    leaves, _ = pzobo.tensors.trees.Plan.take(learning.x)
    losses, gradients = [], []
    for _ in range(steps):
        loss = learning.outer_loss()
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([t.grad.flatten() for t in leaves]))
        with torch.no_grad():
            for t in leaves:
                t -= 0.1 * t.grad
                t.grad = None
    return losses, gradients, learning


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_the_numbers_are_those_of_one_piece(problem: FewShot, learner: Any, pieces: int) -> None:
    losses, gradients, one = walk(problem, learner)
    found, cut, many = walk(replace(problem, pieces=pieces), learner)
    assert found == pytest.approx(losses, rel=1e-9)
    for a, b in zip(cut, gradients, strict=True):
        assert float(b.norm()) > 0
        assert relative_error(a, b) < 1e-8
    assert many.evaluate() == pytest.approx(one.evaluate(), rel=1e-9)
    if "mean" in one.state_dict():
        torch.testing.assert_close(many.state_dict()["mean"], one.state_dict()["mean"], rtol=1e-9, atol=1e-12)


def test_the_loss_alone_needs_no_gradient(problem: FewShot) -> None:
    learning = ProtoNet().start(replace(problem, pieces=3), seed=1)
    with torch.no_grad():
        alone = learning.outer_loss()
    assert not alone.requires_grad
    assert alone.item() == pytest.approx(ProtoNet().start(problem, seed=1).outer_loss().item(), rel=1e-12)


def test_pieces_are_as_equal_as_can_be(problem: FewShot) -> None:
    seven = replace(problem, meta_batch=7, pieces=3)
    assert seven.cuts(14, 7) == [(14, 2), (16, 2), (18, 3)]
    assert seven.cuts(0, 2) == [(0, 2)], "an evaluation has fewer at its end"
    assert replace(problem, pieces=1).cuts(3, 3) == [(3, 3)]


def test_more_pieces_than_tasks_are_refused(problem: FewShot) -> None:
    with pytest.raises(OptionError, match="pieces=4: there are meta_batch=3 tasks"):
        replace(problem, pieces=4)


def test_one_piece_is_in_memory_at_a_time(problem: FewShot) -> None:
    """The bytes that autograd holds at most: a third where there are three pieces."""
    most = {}
    for pieces in (1, 3):
        learning = ProtoNet().start(replace(problem, pieces=pieces), seed=1)
        held = Held()
        with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
            learning.outer_loss().backward()
        most[pieces] = held.most
    assert most[3] < 0.4 * most[1], most


class Held:
    """Counts what autograd keeps for its backward pass, as long as it keeps it."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, t: torch.Tensor) -> Any:
        self.now += t.nbytes
        self.most = max(self.most, self.now)
        return Kept(self, t)

    def unpack(self, kept: Any) -> torch.Tensor:
        found: torch.Tensor = kept.tensor
        return found


class Kept:
    def __init__(self, held: Held, tensor: torch.Tensor) -> None:
        self.held, self.tensor = held, tensor

    def __del__(self) -> None:
        self.held.now -= self.tensor.nbytes
