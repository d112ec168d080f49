"""Is the zeroth-order primitive its formula, around any function, at the cost it says?"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pzobo
from pzobo.errors import DirectionsError, OptionError, SmoothingError, StructureError
from pzobo.zeroth_order.directions import Sampler, Space
from tests.helpers import Counted, attempt, bowl, descend, leaf, normal

KINDS = [
    pzobo.Gaussian,
    pzobo.Sphere,
    pzobo.Rademacher,
    pzobo.Orthogonal,
    pzobo.Coordinate,
    pzobo.UnitPerTensor,
]


def formula(fn: Any, x: Tensor, v: Tensor, mu: float, sampler: Sampler, count: int, antithetic: bool = False) -> Tensor:
    """(1/Q) sum_j <(fn(x + mu u_j) - fn(x)) / mu, v> u_j by hand, from the sampler's next directions."""
    key, space = sampler.key(), Space.of([x])
    total = torch.zeros_like(x)
    for j in range(count):
        u = sampler.draw(key, j, count, space).reshape(x.shape)
        low, width = (fn(x - mu * u), 2 * mu) if antithetic else (fn(x), mu)
        total += ((fn(x + mu * u) - low) / width * v).sum() * u
    return total / count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("batching", ["loop", "vmap", 2])
def test_the_gradient_is_the_formula(kind: Any, antithetic: bool, batching: Any) -> None:
    x, v = leaf(2, 3), normal(3, seed=1)

    def fn(x: Tensor) -> Tensor:
        return x.sin().sum(0) * x.square().mean()

    y = pzobo.smooth(
        fn, x, mu=0.1, directions=5, sampler=kind(seed=3), antithetic=antithetic, batching=batching, shrink=False
    )
    torch.testing.assert_close(y.detach(), fn(x.detach()))
    found = torch.autograd.grad(y, x, v)[0]
    expected = formula(fn, x.detach(), v, 0.1, kind(seed=3), 5, antithetic)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("directions", [1, 4])
def test_around_a_whole_bilevel_objective_it_is_hozog(directions: int) -> None:
    """f(x, y^N(x)) + its direct term, all by differences: equal to the formula from the same seed."""
    argmin = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 5), jacobian=pzobo.Direct())
    y0 = torch.zeros(3, dtype=torch.float64)

    def objective(x: Tensor) -> Tensor:
        y = argmin(x, y0)
        return (y - 1).square().sum() + 0.1 * x.square().sum()

    def by_hand(x: Tensor) -> Tensor:
        y = descend(lambda y: bowl(x, y), y0, 0.1, 5).detach()
        return (y - 1).square().sum() + 0.1 * x.square().sum()

    x = leaf(3)
    loss = pzobo.smooth(objective, x, mu=0.01, directions=directions, sampler=pzobo.Gaussian(seed=2))
    assert float(loss) == pytest.approx(float(by_hand(x.detach())))
    loss.backward()
    one = torch.ones((), dtype=torch.float64)
    expected = formula(by_hand, x.detach(), one, 0.01, pzobo.Gaussian(seed=2), directions)
    torch.testing.assert_close(x.grad, expected, rtol=1e-9, atol=1e-11)


def test_around_an_inner_solve_it_is_pzobo() -> None:
    x, v, y0 = leaf(3), normal(3, seed=1), torch.zeros(3, dtype=torch.float64)
    y = pzobo.smooth(
        lambda x: descend(lambda y: bowl(x, y), y0, 0.1, 4),
        x,
        mu=0.01,
        directions=2,
        sampler=pzobo.Gaussian(seed=5),
        shrink=True,
    )
    argmin = pzobo.Argmin(bowl, solver=pzobo.GD(0.1, 4), jacobian=pzobo.PZOBO(0.01, 2, pzobo.Gaussian(seed=5), at="x"))
    expected = torch.autograd.grad(argmin(x, y0), x, v)[0]
    torch.testing.assert_close(torch.autograd.grad(y, x, v)[0], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [pzobo.Orthogonal, pzobo.Coordinate])
@given(p=st.integers(1, 12), bases=st.integers(1, 2), mu=st.floats(1e-3, 10), seed=st.integers(0, 999))
@settings(max_examples=20, deadline=None)
def test_antithetic_pairs_are_exact_for_quadratics(kind: Any, p: int, bases: int, mu: float, seed: int) -> None:
    """At Q = p orthogonal directions, whatever mu."""
    A, b, x = normal(p, p, seed=seed), normal(p, seed=seed + 1), leaf(p, seed=seed + 2)
    loss = pzobo.smooth(
        lambda x: x @ A @ x + b @ x, x, mu=mu, directions=bases * p, sampler=kind(seed=seed), antithetic=True
    )
    loss.backward()
    exact = (A + A.T) @ x.detach() + b
    torch.testing.assert_close(x.grad, exact, rtol=1e-9, atol=1e-8 * float(1 + exact.abs().max()))


def test_one_sided_differences_have_the_bias_of_their_curvature() -> None:
    """fn = |x|^2 along sqrt(p) e_i: the difference is 2 x_i sqrt(p) + mu p, so each entry has mu sqrt(p) too much."""
    x = leaf(4)
    pzobo.smooth(lambda x: x.square().sum(), x, mu=0.3, directions=4, sampler=pzobo.Coordinate(seed=0)).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 0.3 * 2)


@pytest.mark.parametrize(("shrink", "factor"), [(False, 1.0), (True, 2 / 9), (0.25, 0.25)])
def test_shrink(shrink: Any, factor: float) -> None:
    """Two Gaussian directions for p = 6: Q / (Q + p + 1)."""
    x, v = leaf(6), normal(6, seed=1)
    y = pzobo.smooth(torch.sin, x, mu=0.1, directions=2, sampler=pzobo.Gaussian(seed=0), shrink=shrink)
    expected = factor * formula(torch.sin, x.detach(), v, 0.1, pzobo.Gaussian(seed=0), 2)
    torch.testing.assert_close(torch.autograd.grad(y, x, v)[0], expected)


def test_trees_in_and_out() -> None:
    """Frozen and integer leaves are constants; one that is not used has no response; tied ones are one variable."""
    tied = leaf(2, seed=1)
    x = {"a": leaf(3), "b": [tied, (tied, normal(2, seed=2))], "index": torch.tensor([1, 0]), "n": 2}

    def fn(x: Any) -> dict[str, Any]:
        one, (two, frozen) = x["b"]
        return {"p": (x["a"] * x["n"]).sin(), "q": [(one * two * frozen)[x["index"]], x["a"].sum()]}

    y = pzobo.smooth(fn, x, mu=1e-4, directions=5, sampler=pzobo.Orthogonal(seed=0), antithetic=True)
    assert set(y) == {"p", "q"}
    (y["p"].sum() + y["q"][0].sum() + 3 * y["q"][1]).backward()
    found = x["a"].grad.clone(), tied.grad.clone()
    x["a"].grad = tied.grad = None
    y = fn(x)
    (y["p"].sum() + y["q"][0].sum() + 3 * y["q"][1]).backward()
    torch.testing.assert_close(found, (x["a"].grad, tied.grad), rtol=1e-6, atol=1e-7)


# What is evaluated, and when


@pytest.mark.parametrize("directions", [1, 3])
@pytest.mark.parametrize("antithetic", [False, True])
def test_evaluations_are_made_when_they_are_needed(directions: int, antithetic: bool) -> None:
    fn, x = Counted(lambda x: x.square().sum()), leaf(3)
    loss = pzobo.smooth(fn, x, mu=0.1, directions=directions, antithetic=antithetic)
    assert fn.calls == 1
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    assert fn.calls == 1 + directions * (2 if antithetic else 1)
    loss.backward()
    assert torch.equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "constant"])
def test_without_gradients_there_is_one_evaluation_and_no_direction(how: str) -> None:
    fn, x, sampler = Counted(lambda x: x.square().sum()), leaf(3), pzobo.Gaussian(seed=0)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "constant": torch.enable_grad}[how]
    with context():
        y = pzobo.smooth(fn, x.detach() if how == "constant" else x, mu=0.1, directions=5, sampler=sampler)
    assert fn.calls == 1
    assert not y.requires_grad
    assert float(y) == pytest.approx(float(x.square().sum()))
    assert sampler.key() == pzobo.Gaussian(seed=0).key()


def test_each_call_draws_new_directions() -> None:
    x, sampler = leaf(3), pzobo.Gaussian(seed=0)
    first, second = (
        torch.autograd.grad(pzobo.smooth(lambda x: x.sum(), x, mu=0.1, sampler=sampler), x)[0] for _ in range(2)
    )
    assert not torch.equal(first, second)


def test_any_code_that_gives_tensors() -> None:
    def fn(x: Tensor) -> Tensor:
        value = x.numpy()
        return torch.as_tensor((value**2).sum() + abs(value[0]))

    x = leaf(3)
    loss = pzobo.smooth(fn, x, mu=1e-4, directions=3, sampler=pzobo.Coordinate(seed=0), antithetic=True)
    loss.backward()
    expected = 2 * x.detach() + torch.tensor([float(x[0].sign()), 0, 0])
    torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=1e-7)


def test_code_that_differentiates_inside() -> None:
    """MAML's inner step is inside of fn; gradients are enabled there, also in the backward pass."""

    def fn(x: Tensor) -> Tensor:
        w = x.detach().clone().requires_grad_()
        w.pow(4).sum().backward()
        return (w - 0.1 * w.grad).detach().square().sum()

    x = leaf(3)
    loss = pzobo.smooth(fn, x, mu=1e-4, directions=3, sampler=pzobo.Coordinate(seed=0), antithetic=True)
    loss.backward()
    other = x.detach().clone().requires_grad_()
    (other - 0.4 * other.pow(3)).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-5, atol=1e-6)


# Replay


@pytest.mark.parametrize("batching", ["loop", "vmap"])
def test_dropout_inside_has_one_mask(batching: Any) -> None:
    x = leaf(8)

    def fn(x: Tensor) -> Tensor:
        return F.dropout(x).sin().sum()

    torch.manual_seed(3)
    mask = F.dropout(torch.ones_like(x))
    torch.manual_seed(3)
    loss = pzobo.smooth(fn, x, mu=1e-4, directions=3, sampler=pzobo.Gaussian(seed=1), batching=batching)
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)
    one = torch.ones((), dtype=torch.float64)
    expected = formula(lambda x: (x * mask).sin().sum(), x.detach(), one, 1e-4, pzobo.Gaussian(seed=1), 3)
    torch.testing.assert_close(x.grad, expected, rtol=1e-7, atol=1e-9)


def test_batch_norm_inside_counts_one_evaluation() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    data = normal(6, 3)
    plain = copy.deepcopy(net)
    plain(data)

    def fn(x: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, x, (data,)).sin().mean()

    loss = pzobo.smooth(fn, dict(net.named_parameters()), mu=1e-4, directions=3)
    loss.backward()
    torch.testing.assert_close(list(net.buffers()), list(plain.buffers()))
    assert all(p.grad is not None for p in net.parameters())


def test_autocast_is_that_of_the_first_evaluation() -> None:
    kinds = []

    def fn(x: Tensor) -> Tensor:
        product = x.unsqueeze(0) @ x.unsqueeze(1)
        kinds.append(product.dtype)
        return product.float().sum()

    x = leaf(4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = pzobo.smooth(fn, x, mu=0.5, directions=2)
    loss.backward()
    assert kinds == [torch.bfloat16] * 3


# Changes in place, and errors


def test_x_changed_in_place_before_backward_raises() -> None:
    x = leaf(3)
    loss = pzobo.smooth(lambda x: x.sum(), x, mu=0.1)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match=r"inplace|in place"):
        loss.backward()


def test_an_answer_changed_in_place_does_no_harm() -> None:
    x = leaf(3)
    y = pzobo.smooth(lambda x: 2 * x, x, mu=0.1, directions=3, sampler=pzobo.Coordinate(seed=0))
    y.mul_(5)
    found, message = attempt(lambda: torch.autograd.grad(y.sum(), x)[0], RuntimeError)
    if found is None:
        assert "inplace" in message or "in place" in message
    else:
        torch.testing.assert_close(found, torch.full_like(x, 10.0))


def test_an_infinite_cotangent_is_passed_on() -> None:
    x = leaf(3)
    (pzobo.smooth(lambda x: x.sum(), x, mu=0.1) * torch.inf).backward()
    assert not torch.isfinite(x.grad).any()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mu": 0.0}, SmoothingError),
        ({"mu": -1e-3}, SmoothingError),
        ({"mu": float("nan")}, SmoothingError),
        ({"mu": 0.1, "directions": 0}, DirectionsError),
        ({"mu": 0.1, "batching": "fast"}, OptionError),
        ({"mu": 0.1, "batching": 0}, OptionError),
        ({"mu": 0.1, "shrink": -1.0}, OptionError),
    ],
    ids=str,
)
def test_wrong_options(options: Any, error: Any) -> None:
    with pytest.raises(error, match=next(reversed(options))):
        pzobo.smooth(lambda x: x.sum(), leaf(3), **options).backward()


def test_answers_that_are_not_tensors() -> None:
    with pytest.raises(StructureError, match="float"):
        pzobo.smooth(lambda x: float(x.sum()), leaf(3), mu=0.1)


def test_an_answer_whose_structure_changes() -> None:
    """Between x and x + mu u: a number of tensors that depends on x."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    y = pzobo.smooth(lambda x: [x, x] if x == 0 else [x], x, mu=0.1)
    with pytest.raises(StructureError, match="structure"):
        (y[0] + y[1]).backward()
