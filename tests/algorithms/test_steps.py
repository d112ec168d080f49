"""Does each algorithm do what its paper says? One step and twenty, beside a transcription in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pzobo
from pzobo.algorithms import Algorithm, Decay
from tests.algorithms import transcription as paper
from tests.algorithms.problems import Logistic, Quadratic
from tests.algorithms.stream import Stream

A = pzobo.algorithms
BETA, STEPS, SEED = 0.05, 20, 3
CASES = {"quadratic": Quadratic(), "logistic": Logistic()}

PAIRS: dict[str, tuple[Callable[..., Algorithm[Any]], Callable[..., Any], dict[str, Any]]] = {
    "SOBA": (A.SOBA, paper.soba, {"lr": 0.1, "v_lr": 0.2}),
    "SOBA, decay": (lambda lr, **o: A.SOBA(Decay(lr, 0.5), **o), paper.soba_decay, {"lr": 0.3}),
    "MASOBA": (A.MASOBA, paper.masoba, {"lr": 0.1, "average": 0.3}),
    "SABA": (A.SABA, paper.saba, {"lr": 0.1, "memory": "full"}),
    "SABA, zero": (A.SABA, paper.saba, {"lr": 0.1, "memory": "zero"}),
    "SRBA": (A.SRBA, paper.srba, {"lr": 0.1, "period": 7, "radius": 0.5}),
    "FSLA": (A.FSLA, paper.fsla, {"lr": 0.1, "momentum": 0.3}),
    "FdeHBO": (
        lambda **o: A.FdeHBO(products="autodiff", **o),
        paper.fde_hbo,
        {"lr": 0.1, "momentum": 0.3, "radius": 0.5},
    ),
    "AmIGO": (A.AmIGO, paper.amigo, {"lr": 0.1, "steps": 3, "v_lr": 0.2, "v_steps": 4}),
    "BSA": (A.BSA, paper.bsa, {"lr": 0.1, "steps": 3, "terms": 5, "v_lr": 0.2}),
    "TTSA": (lambda steps, **o: A.TTSA(**o), paper.bsa, {"lr": 0.1, "steps": 1, "terms": 5, "v_lr": 0.2}),
    "SUSTAIN": (A.SUSTAIN, paper.sustain, {"lr": 0.1, "momentum": 0.3, "v_lr": 0.2, "terms": 5}),
    "MRBO": (A.MRBO, paper.mrbo, {"lr": 0.1, "momentum": 0.3, "v_lr": 0.2, "terms": 4}),
    "VRBO": (A.VRBO, paper.vrbo, {"lr": 0.1, "steps": 2, "period": 3, "terms": 4, "v_lr": 0.2}),
    "STABLE": (A.STABLE, paper.stable, {"lr": 0.1, "average": 0.3, "least": 0.9}),
    "F2SA": (A.F2SA, paper.f2sa, {"lr": 0.1, "penalty": 2.0, "growth": 0.2, "steps": 3}),
    "BOME": (A.BOME, paper.bome, {"lr": 0.1, "steps": 3, "y_lr": 0.05, "eta": 0.5, "barrier": "gradient"}),
    "BOME, value": (A.BOME, paper.bome, {"lr": 0.1, "steps": 3, "y_lr": 0.05, "eta": 0.5, "barrier": "value"}),
    "BVFIM": (
        lambda **o: A.BVFIM(prox=0.01, **o),
        paper.bvfim,
        {"lr": 0.1, "steps": 3, "y_lr": 0.2, "y_steps": 2, "reg": 0.1, "barrier": 0.1},
    ),
    "MEHA": (A.MEHA, paper.meha, {"lr": 0.1, "y_lr": 0.2, "r": 5.0}),
    "IAPTT": (A.IAPTT, paper.iaptt, {"lr": 0.1, "steps": 4, "start_lr": 0.05}),
    "STN": (A.STN, paper.stn, {"lr": 0.1, "steps": 3, "scale": 0.2, "scale_rate": 0.1, "entropy": 0.01}),
    "DeltaSTN": (
        lambda **o: A.DeltaSTN(entropy=0.01, **o),
        paper.delta_stn,
        {"lr": 0.1, "steps": 3, "t_lr": 0.05, "scale": 0.2, "scale_rate": 0.1},
    ),
    "SAMA": (
        lambda lr, steps, betas, eps, **o: A.SAMA(pzobo.Adam(lr, steps, betas, eps), products="autodiff", **o),
        paper.sama,
        {"lr": 0.05, "steps": 2, "betas": (0.8, 0.9), "eps": 1e-3},
    ),
}


def run(method: Algorithm[Any], case: Any, steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """x and y after each outer step of plain SGD."""
    objective = method.start(case.problem(), SEED)
    optimizer = torch.optim.SGD([objective.x], lr=BETA)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = objective.outer_loss()
        loss.backward()
        optimizer.step()
        seen.append((objective.x.detach().numpy().copy(), objective.y.numpy().copy()))
    return seen


def error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the size."""
    pairs = [(f, e) for a, b in zip(found, expected, strict=True) for f, e in zip(a, b, strict=True)]
    return max(float(np.abs(f - e).max() / max(1.0, np.abs(e).max())) for f, e in pairs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PAIRS)
def test_twenty_steps_on_batches(name: str, case: str) -> None:
    make, transcribed, numbers = PAIRS[name]
    sizes = {"batch_size": 5, "outer_batch_size": 4}
    found = run(make(**numbers, **sizes), CASES[case])
    stream = Stream(CASES[case], 5, 4, SEED)
    expected = list(itertools.islice(transcribed(CASES[case], stream, BETA, **numbers), STEPS))
    assert np.isfinite(expected[-1][0]).all()
    assert error(found[:1], expected[:1]) < 1e-12
    assert error(found, expected) < 1e-10
    assert np.abs(expected[-1][0] - CASES[case].x0).max() > 1e-3, "x did not move: nothing was tested"
