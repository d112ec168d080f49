"""Is Unrolled plain autograd through the path, for any N, solver, truncation and structure?"""

import pytest
import torch
from torch.nn.functional import cross_entropy

import pzobo

SOLVERS = [
    pzobo.GD(lr=0.3, steps=1),
    pzobo.HeavyBall(lr=0.2, momentum=0.9, steps=1),
    pzobo.Adam(lr=0.1, steps=1),
]


def problem(seed: int = 0):
    """Softmax regression on learned features, one l2 penalty for each weight: not quadratic in anything."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(12, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(3, (12,), generator=g)
    x = {
        "features": torch.randn(4, 5, generator=g, dtype=torch.float64, requires_grad=True),
        "l2": torch.randn(5, 3, generator=g, dtype=torch.float64, requires_grad=True),
    }
    y0 = {"w": torch.randn(5, 3, generator=g, dtype=torch.float64), "b": torch.zeros(3, dtype=torch.float64)}

    def prepare(x, batch):
        return {"h": torch.tanh(batch[0] @ x["features"]), "l2": x["l2"]}

    def loss(z, y, batch):
        return cross_entropy(z["h"] @ y["w"] + y["b"], batch[1]) + 0.05 * (z["l2"].exp() * y["w"] ** 2).sum()

    def outer(x, y):
        return cross_entropy(torch.tanh(X @ x["features"]) @ y["w"] + y["b"], labels.flip(0))

    return x, y0, (X, labels), prepare, loss, outer


def by_hand(solver, steps, last=None):
    """The same path and its derivative by autograd alone, with torch's formulas written out."""
    x, y0, batch, prepare, loss, outer = problem()
    z = prepare(x, batch)
    y = {k: t.clone().requires_grad_() for k, t in y0.items()}
    m = {k: torch.zeros_like(t) for k, t in y0.items()}
    s = {k: torch.zeros_like(t) for k, t in y0.items()}
    for t in range(1, steps + 1):
        if last is not None and t == steps - last + 1:
            y = {k: a.detach().requires_grad_() for k, a in y.items()}
            m, s = ({k: a.detach() for k, a in d.items()} for d in (m, s))
        grads = dict(zip(y, torch.autograd.grad(loss(z, y, batch), list(y.values()), create_graph=True), strict=True))
        for k, grad in grads.items():
            if isinstance(solver, pzobo.GD):
                y[k] = y[k] - solver.lr * grad
            elif isinstance(solver, pzobo.HeavyBall):
                m[k] = solver.momentum * m[k] + grad
                y[k] = y[k] - solver.lr * m[k]
            else:
                m[k] = 0.9 * m[k] + 0.1 * grad
                s[k] = 0.999 * s[k] + 0.001 * grad**2
                y[k] = y[k] - solver.lr * (m[k] / (1 - 0.9**t)) / ((s[k] / (1 - 0.999**t)).sqrt() + 1e-8)
    value = outer(x, y)
    value.backward()
    return value.detach(), {k: t.grad for k, t in x.items()}


def by_unrolled(solver, jacobian, **options):
    x, y0, batch, prepare, loss, outer = problem()
    argmin = pzobo.Argmin(loss, solver=solver, jacobian=jacobian, prepare=prepare, **options)
    value = outer(x, argmin(x, y0, batch))
    value.backward()
    return value.detach(), {k: t.grad for k, t in x.items()}


def with_steps(solver, steps):
    return type(solver)(**{**vars(solver), "steps": steps})


@pytest.mark.parametrize("steps", [1, 2, 7, 20])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_equals_autograd_through_the_path(solver, steps, checkpoint):
    expected = by_hand(solver, steps)
    found = by_unrolled(with_steps(solver, steps), pzobo.Unrolled(checkpoint=checkpoint))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("last", [1, 3, 10, 50])
def test_truncated_equals_autograd_of_the_last_steps(solver, last):
    expected = by_hand(solver, 10, last=min(last, 10))
    found = by_unrolled(with_steps(solver, 10), pzobo.Unrolled(last=last))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_differences_agree_with_autograd(solver):
    expected = by_hand(solver, 15)
    found = by_unrolled(with_steps(solver, 15), pzobo.Unrolled(products="difference"))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS[1:], ids=lambda s: type(s).__name__)
def test_compiled_equals_autograd(solver):
    expected = by_hand(solver, 7)
    found = by_unrolled(with_steps(solver, 7), pzobo.Unrolled(), compile=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_fixed_point_is_unrolled_on_a_path_that_stands_still():
    """AID-FP with K steps and ITD with N = K agree when the path starts at the solution."""
    x, y0, batch, prepare, loss, outer = problem()
    solver = pzobo.GD(lr=0.3, steps=3000)
    start = pzobo.Argmin(loss, solver=solver, jacobian=pzobo.Direct(), prepare=prepare)(x, y0, batch)
    start = {k: t.detach() for k, t in start.items()}
    found = []
    for jacobian in (pzobo.Unrolled(), pzobo.Implicit(pzobo.FixedPoint(steps=9))):
        argmin = pzobo.Argmin(loss, solver=pzobo.GD(lr=0.3, steps=9), jacobian=jacobian, prepare=prepare)
        found.append(torch.autograd.grad(outer(x, argmin(x, start, batch)), list(x.values())))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)
