"""Do any number of ranks give the answer of one process? In the same bits where that is promised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pzobo
from pzobo.errors import OptionError, RequirementError
from tests.distributed.launch import launch
from tests.distributed.ranked import CASES, ROUNDED, TO_ROUNDING, data, hypergradients, inner, problem

Found = dict[tuple[int, int], dict[str, Tensor]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank of groups of 1, 2 and 3 has found; (0, 0) is a process without torchrun."""
    folder = tmp_path_factory.mktemp("ranks")
    for count in (0, 2, 3):
        launch(count, "-m", "tests.distributed.ranked", folder)
    return {
        (int(path.stem.split("-")[0]), int(path.stem.split("-")[1])): torch.load(path) for path in folder.glob("*.pt")
    }


@pytest.mark.parametrize("name", CASES)
def test_ranks_find_what_one_process_finds(found: Found, name: str) -> None:
    assert sorted(found) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    alone = found[1, 0][name]
    assert alone.isfinite().all()
    assert alone.abs().max() > 0
    for (count, rank), answers in found.items():
        assert torch.equal(answers[name], found[count, 0][name]), f"rank {rank} of {count} is not rank 0"
        if name in ROUNDED:
            torch.testing.assert_close(answers[name], alone, rtol=TO_ROUNDING, atol=TO_ROUNDING)
        else:
            assert torch.equal(answers[name], alone), f"rank {rank} of {count}"


@pytest.mark.parametrize(
    "jacobian", [pzobo.PZOBO(directions=3), pzobo.ForwardMode(directions=3)], ids=lambda j: type(j).__name__
)
def test_in_one_process_nothing_changes(jacobian: Any) -> None:
    assert torch.equal(hypergradients(jacobian, split="directions"), hypergradients(jacobian))


def test_what_has_no_directions_is_refused() -> None:
    with pytest.raises(RequirementError, match="Unrolled has none: use PZOBO"):
        pzobo.Argmin(inner, solver=pzobo.GD(0.1, 3), jacobian=pzobo.Unrolled(), split="directions")
    with pytest.raises(OptionError, match="split='rows': must be"):
        pzobo.Argmin(inner, solver=pzobo.GD(0.1, 3), jacobian=pzobo.PZOBO(), split="rows")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="wire='bytes': must be"):
        pzobo.Argmin(inner, solver=pzobo.GD(0.1, 3), jacobian=pzobo.PZOBO(), wire="bytes")  # type: ignore[arg-type]
    with pytest.raises(RequirementError, match="Auto has none"):
        pzobo.fit(problem(), pzobo.Method(pzobo.GD(0.1, 3)), 1, split="directions")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"jacobian": pzobo.Auto()}, "Auto chooses by time"),
        ({"jacobian": pzobo.Unrolled(), "compile": True}, "use compile=False"),
        ({"jacobian": pzobo.PZOBO(at="z"), "prepare": lambda x, batch: x}, "would need all"),
        ({"jacobian": pzobo.Unrolled(products="difference"), "prepare": lambda x, batch: x}, 'products="forward"'),
        ({"jacobian": pzobo.PZOBO(), "solver": pzobo.BlackBox(lambda x, y0, batch: y0)}, "a black box takes its rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_have_its_data_on_many_ranks(options: dict[str, Any], why: str) -> None:
    with pytest.raises(RequirementError, match=why):
        pzobo.Argmin(inner, **{"solver": pzobo.GD(0.1, 3), **options}, split="data")


def test_a_split_that_splits_nothing_is_refused() -> None:
    soba = pzobo.algorithms.SOBA(0.01)
    with pytest.raises(RequirementError, match='split="directions" splits nothing here'):
        pzobo.fit(problem(), soba, 1, lr=0.1, split="directions")
    with pytest.raises(RequirementError, match='split="tasks" splits nothing here'):
        pzobo.fit(problem(), pzobo.Method(pzobo.GD(0.1, 3), pzobo.PZOBO()), 1, lr=0.1, split="tasks")


def test_an_argmin_with_a_split_can_be_copied() -> None:
    import copy
    import pickle

    argmin = pzobo.Argmin(inner, solver=pzobo.GD(0.1, 3), jacobian=pzobo.PZOBO(directions=2), split="directions")
    for alike in (copy.deepcopy(argmin), pickle.loads(pickle.dumps(argmin))):
        x = torch.zeros(5, requires_grad=True)
        alike(x, torch.zeros(5), data()[0]).sum().backward()
        assert x.grad is not None
        assert x.grad.abs().max() > 0
