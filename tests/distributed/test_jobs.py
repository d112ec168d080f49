"""Do black boxes side by side give the same bits as one by one, and does a call that goes wrong say which x it had?"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.svm import SVC
from torch import Tensor

import pzobo
from pzobo.distributed.jobs import shown
from pzobo.errors import BlackBoxError, OptionError, RequirementError

X = np.random.default_rng(0).normal(size=(80, 4))
T = (X[:, 0] + 0.5 * X[:, 1] ** 2 > 0).astype(int)


def machine(x: Tensor, y0: Tensor, batch: Any) -> Any:
    """Decision values of a support vector machine with a scale for each feature."""
    scaled = X * x.exp().detach().numpy()
    return SVC(C=2.0, gamma=0.5).fit(scaled[:40], T[:40]).decision_function(scaled[40:])


def drawing(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    """It draws from torch's generator, which all calls of a pass have in the same state."""
    return (x * torch.randn(4)).detach().sum().expand(40).clone()


def shared(x: Tensor, y0: Tensor, batch: Any) -> Tensor:
    return torch.full((40,), float(x.sum()) + np.random.rand() + random.random())


class Sometimes:
    """It fails, or its process dies, at some x, as long as a file is there."""

    def __init__(self, file: Path, how: str) -> None:
        self.file, self.how = file, how

    def __call__(self, x: Tensor, y0: Tensor, batch: Any) -> Any:
        if self.file.exists() and float(x[0]) > 0.095:
            if self.how == "fails":
                raise ValueError("no such model")
            os.kill(os.getpid(), signal.SIGKILL)
        return machine(x, y0, batch)


def hypergradient(fn: Any, jobs: int, **options: Any) -> Tensor:
    torch.manual_seed(1)
    argmin = pzobo.Argmin(
        None, solver=pzobo.BlackBox(fn, jobs=jobs), jacobian=pzobo.PZOBO(0.1, 5, **options), audit=False
    )
    x = torch.zeros(4, requires_grad=True)
    (argmin(x, torch.zeros(40)) * torch.linspace(-1, 1, 40)).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("fn", [machine, drawing])
@pytest.mark.parametrize("antithetic", [False, True])
def test_side_by_side_has_the_bits_of_one_by_one(fn: Any, antithetic: bool) -> None:
    expected = hypergradient(fn, 1, antithetic=antithetic)
    assert expected.abs().max() > 0
    assert torch.equal(hypergradient(fn, 2, antithetic=antithetic), expected)


def test_generators_that_all_calls_share_are_refused() -> None:
    with pytest.raises(RequirementError, match=r"numpy.random.default_rng\(0\) or random_state=0; or jobs=1"):
        hypergradient(shared, 2)


@pytest.mark.parametrize("jobs", [0, 1.5, True])
def test_a_number_of_jobs_is_a_whole_number(jobs: Any) -> None:
    with pytest.raises(OptionError, match="jobs="):
        pzobo.BlackBox(machine, jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_call_that_fails_says_which_x_it_had(jobs: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="no such model") as caught:
        hypergradient(Sometimes(tmp_path / "file", "fails"), jobs, sampler=pzobo.Coordinate(seed=0))
    assert "The black box was called with x = [0.2, 0, 0, 0]." in caught.value.__notes__


def test_a_call_that_is_killed_says_which_x_it_had_and_the_run_goes_on(tmp_path: Path) -> None:
    box = Sometimes(tmp_path / "file", "dies")
    target = torch.as_tensor(T[40:], dtype=torch.float32) * 2 - 1
    problem = pzobo.Problem(
        None,  # type: ignore[arg-type]
        lambda x, y, batch: (y - target).square().mean(),
        torch.zeros(4),
        torch.zeros(40),
    )
    method = pzobo.Method(pzobo.BlackBox(box, jobs=2), pzobo.PZOBO(0.05, 4, pzobo.Coordinate(seed=0)), audit=False)
    options: dict[str, Any] = {"lr": 0.02, "checkpoint_every": 1, "evaluate_every": 0, "progress": False}
    whole = pzobo.fit(problem, method, 3, **options)

    pzobo.fit(problem, method, 1, out=tmp_path / "run", **options)
    (tmp_path / "file").touch()
    with pytest.raises(BlackBoxError, match=r"It was at work on x = .*resume=True a run goes on"):
        pzobo.fit(problem, method, 3, out=tmp_path / "run", resume=True, **options)
    (tmp_path / "file").unlink()
    found = pzobo.fit(problem, method, 3, out=tmp_path / "run", resume=True, **options)
    assert torch.equal(found.x, whole.x)


def test_a_tree_is_shown_in_one_line() -> None:
    assert shown({"a": torch.arange(10.0), "b": [torch.ones(()), None]}) == (
        "a: [0, 1, 2, 3, 4, 5, 6, 7, ...]; b.0: [1]; b.1: None"
    )
