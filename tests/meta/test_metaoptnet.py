"""Does the support vector machine agree with scikit-learn's, and is its derivative one?"""

from __future__ import annotations

import pytest
import torch
from sklearn.svm import LinearSVC

from pzobo.meta import SVM, FewShot, MetaOptNet

proxsuite = pytest.importorskip("proxsuite", reason="the SVM was not tested: proxsuite is not installed")


def one_task(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features that overlap, so that some margins are violated; labels; and queries."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4).repeat_interleave(5)
    centres = torch.randn(4, 12, dtype=torch.float64, generator=generator)
    features = centres[labels] + torch.randn(20, 12, dtype=torch.float64, generator=generator)
    return features, labels, torch.randn(9, 12, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("price", [0.01, 0.1, 1.0])
def test_decision_values_are_scikit_learns(price: float) -> None:
    features, labels, queries = one_task()
    alpha = SVM(price).dual((features @ features.T)[None], torch.eye(4, dtype=torch.float64)[labels][None])[0]
    assert torch.allclose(alpha.sum(1), torch.zeros(20, dtype=torch.float64), atol=1e-7)
    assert (alpha <= price * torch.eye(4, dtype=torch.float64)[labels] + 1e-7).all()
    theirs = LinearSVC(multi_class="crammer_singer", C=price, fit_intercept=False, tol=1e-10, max_iter=100_000)
    theirs.fit(features.numpy(), labels.numpy())
    expected = torch.from_numpy(theirs.decision_function(queries.numpy()))
    found = queries @ features.T @ alpha
    # Decision values are the same for all classes but for a common constant.
    assert torch.allclose(found - found.mean(1, True), expected - expected.mean(1, True), atol=1e-5)


def test_derivative_is_that_of_differences() -> None:
    features, labels, queries = one_task(1)
    targets = torch.eye(4, dtype=torch.float64)[labels][None]
    weights = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def value(features: torch.Tensor) -> torch.Tensor:
        alpha = SVM(0.1).dual((features @ features.T)[None], targets)[0]
        return ((queries @ features.T @ alpha) * weights).sum()

    features.requires_grad_()
    value(features).backward()
    direction = torch.randn(features.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    step = 1e-5 * direction
    with torch.no_grad():
        difference = (value(features + step) - value(features - step)) / 2e-5
    assert features.grad is not None
    assert (features.grad * direction).sum().item() == pytest.approx(difference.item(), rel=1e-3)


def test_svm_learner_trains(problem: FewShot) -> None:
    """One small step along its gradient lowers the loss by as much as the gradient says."""
    objective = MetaOptNet(SVM(0.5)).start(problem, seed=1)
    episodes = objective.tasks.batch(0, 3)
    value = objective.outer(episodes)
    value.backward()
    squares = sum(float(t.grad.square().sum()) for t in objective.x["backbone"].values())
    squares += float(objective.x["scale"].grad.square())
    with torch.no_grad():
        for t in (*objective.x["backbone"].values(), objective.x["scale"]):
            t -= 1e-5 / squares * t.grad
    assert (value - objective.outer(episodes)).item() == pytest.approx(1e-5, rel=0.02)
