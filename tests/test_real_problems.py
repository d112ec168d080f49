"""Are the real problems of the benchmarks, in small, the same in both precisions, and their exact adjoints slopes?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pzobo
from benchmarks import real_problems
from tests.jacobians.audit_problems import Case

SMALL: dict[str, tuple[Callable[..., pzobo.Problem], Any]] = {
    "linear": (lambda **o: real_problems.linear(8, 12, 40, **o), pzobo.GD(1e-3, 10)),
    "two-layer": (lambda **o: real_problems.two_layer(8, 10, 12, 40, **o), pzobo.GD(1e-2, 10)),
    "LeNet head": (lambda **o: real_problems.lenet_head(20, **o), pzobo.HeavyBall(0.1, 0.9, 10)),
    "transformer": (
        lambda **o: real_problems.character_transformer(16, 1, 12, 4, 2, **o),
        pzobo.HeavyBall(0.05, 0.9, 5),
    ),
    "BN-CNN": (lambda **o: real_problems.digits_cnn(rows=40, channels=(3, 4), **o), pzobo.GD(0.1, 5)),
    "data cleaning": (lambda **o: real_problems.data_cleaning(80, "digits", **o), pzobo.GD(0.5, 10)),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_is_the_same_problem_in_both_precisions(name: str) -> None:
    make, solver = SMALL[name]
    answers = []
    for dtype in (torch.float64, torch.float32):
        case = Case.of(make(dtype=dtype), solver)
        answers.append(case.hypergradient(case.argmin(pzobo.Unrolled(checkpoint=True))).double())
    exact = answers[0]
    assert (answers[1] - exact).norm() < 1e-4 * exact.norm()
    case = Case.of(make(dtype=torch.float64), solver)
    # Short enough for no kink of ReLU or max-pooling to lie between.
    assert case.slope(exact / exact.norm(), 1e-7) == pytest.approx(float(exact.norm()), rel=1e-3)


def test_the_transformer_has_the_weights_that_its_docstring_says() -> None:
    problem = real_problems.character_transformer()
    weights: Any = problem.y0
    assert f"{sum(t.numel() for t in weights.values()):,} weights" in str(real_problems.character_transformer.__doc__)
