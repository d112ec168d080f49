"""Do learners learn? ResNet-12 on real miniImageNet tasks, and features of digits."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

import pzobo
from pzobo.data import FewShotData, ImageClasses, digits_few_shot
from pzobo.meta import FewShot, HeadLearner
from pzobo.networks import CNN4, ResNet12
from pzobo.outer.fitting import fit

BESIDE = Path(__file__).parent.parent.parent.parent / "shared" / "data"


@pytest.fixture
def real_miniimagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FewShotData:
    """The validation classes of the real files in all three parts: decoding them takes three seconds, not twenty."""
    folder = Path(os.environ.get("PZOBO_DATA") or BESIDE)
    if not (folder / "miniimagenet" / "miniimagenet_val_200.npz").is_file():
        pytest.skip(f"{request.node.name} was not run: there is no miniImageNet; set PZOBO_DATA to a folder with it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    part = miniimagenet_part(folder)
    return FewShotData(part, part, part)


def miniimagenet_part(folder: Path) -> ImageClasses:
    from pzobo.data.read_miniimagenet import load

    return load("npz", "val", folder / "miniimagenet" / "miniimagenet_val_200.npz", folder)


def test_resnet12_trains_on_real_miniimagenet(real_miniimagenet: FewShotData) -> None:
    """Two small tasks of real images again and again: their loss falls."""
    problem = FewShot(real_miniimagenet, ResNet12, ways=2, shots=1, queries=1, meta_batch=2, train_tasks=2)
    learner = HeadLearner(pzobo.HeavyBall(0.001, 0.9, 30), pzobo.Unrolled(), gamma=0.5, begin="zeros")
    losses = [row["outer_loss"] for row in fit(problem, learner, 2, lr=1e-4, evaluate=none, progress=False).history]
    assert losses[2] < 0.3 * losses[0], losses


def none(objective: object) -> dict[str, float]:
    return {}


def test_digits_are_learned_by_every_jacobian() -> None:
    problem = FewShot(digits_few_shot(), partial(CNN4, filters=16), queries=5, meta_batch=8, eval_tasks=40)
    for jacobian in (pzobo.Unrolled(), pzobo.PZOBO(mu=0.1, at="z", directions=4)):
        learner = HeadLearner(pzobo.GD(0.1, 10), jacobian, gamma=0.1)
        found = fit(problem, learner, 25, lr=0.01, evaluate_every=0, progress=False)
        assert found.history[-1]["outer_loss"] < 0.6 * found.history[0]["outer_loss"]
        assert found.history[-1]["accuracy"] > 0.7
