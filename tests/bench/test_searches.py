"""Do the black-box searches find what there is to find, and go on where they stopped?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pzobo
from pzobo.bench.experiments.searches import SEARCHES, Search
from pzobo.bench.experiments.source_mix import Sources
from pzobo.bench.methods import Setup


def problem() -> pzobo.Problem:
    """f(x, y*(x)) = |x - (1, -2)|^2, since y* = x."""
    goal = torch.tensor([1.0, -2.0])
    return pzobo.Problem(
        lambda x, y, batch: (y - x).square().sum() / 2,
        lambda x, y, batch: (y - batch).square().sum(),
        torch.zeros(2),
        torch.zeros(2),
        None,
        goal,
    )


@pytest.mark.parametrize("kind", ["cma-es", "tpe"])
def test_a_search_finds_the_minimum_and_can_be_stopped(kind: str, tmp_path: Path) -> None:
    setup = Setup(pzobo.GD(1.0, 1), mu=0.1, directions=1, iterations=1, rate=1.0, outer_steps=40)
    search = SEARCHES[kind].build(setup, problem())
    assert isinstance(search, Search)
    assert search.outer_steps == 40 * 3, "as many trainings as 40 steps with a base path and a direction for each"
    whole = pzobo.fit(problem(), search, search.outer_steps, evaluate_every=20)
    assert whole.history[-1]["val_loss"] < 0.1
    assert whole.history[-1]["val_loss"] <= whole.history[20]["val_loss"]
    torch.testing.assert_close(whole.x.detach(), problem().val, atol=0.4, rtol=0)
    pzobo.fit(problem(), search, 50, out=tmp_path)
    resumed = pzobo.fit(problem(), search, search.outer_steps, out=tmp_path, resume=True)
    assert torch.equal(whole.x, resumed.x)
    assert [r["outer_loss"] for r in whole.history] == [r["outer_loss"] for r in resumed.history]


def test_source_weights_has_them() -> None:
    sources = Sources(sources=(3,), steps=2)
    built = sources.menu["cma-es"].build(sources.setup(), sources.problem(0))
    assert isinstance(built, Search)
    assert built.trainings == 2 * 4
    assert {"cma-es", "tpe", "ordinary-all", "ordinary-clean", "target-alone"} <= set(sources.chosen())


def test_smaller_sources_are_another_run() -> None:
    small = Sources(sources=(3,), size=20)
    assert len(small.problem(0).train[1]) == 60
    assert (Sources(sources=(3,)).label(), small.label()) == ("digits-K3", "digits-K3-size20")
