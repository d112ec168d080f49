"""Does PZOBO obey its laws? Unbiased, of the variance its sampler promises, the same whatever the batching."""

import functools

import pytest
import torch
from torch import Tensor

import pzobo

p, d = 12, 5
G = torch.Generator().manual_seed(0)
J = torch.randn(d, p, generator=G, dtype=torch.float64)
X0 = torch.randn(p, generator=G, dtype=torch.float64)
V = torch.randn(d, generator=G, dtype=torch.float64)
EXACT = J.T @ V
SAMPLERS = [pzobo.Gaussian, pzobo.Sphere, pzobo.Rademacher, pzobo.Orthogonal, pzobo.Coordinate]
LAWS = {
    pzobo.Gaussian: lambda q: (p + 1) / q,
    pzobo.Sphere: lambda q: (p - 1) / q,
    pzobo.Rademacher: lambda q: (p - 1) / q,
    pzobo.Orthogonal: lambda q: p / q - 1,
    pzobo.Coordinate: lambda q: p / q - 1,
}


def draws(jacobian: pzobo.PZOBO, count: int) -> Tensor:
    """Many estimates of J^T v for the linear response y = J x."""
    argmin = pzobo.Argmin(lambda x, y, _: (y - J @ x).square().sum(), solver=pzobo.ClosedForm(lambda x, _: J @ x),
                          jacobian=jacobian, check=False)  # fmt: skip
    x = X0.clone().requires_grad_()
    y0 = torch.zeros(d, dtype=torch.float64)
    return torch.stack([torch.autograd.grad(argmin(x, y0), x, V)[0] for _ in range(count)])


@functools.cache
def unbiased(sampler, q: int) -> Tensor:
    return draws(pzobo.PZOBO(mu=1e-3, directions=q, shrink=False, sampler=sampler(seed=q), batching="loop"), 2500)


def relative_squared_error(estimates: Tensor) -> float:
    return float((estimates - EXACT).square().sum(1).mean() / EXACT.square().sum())


@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_unbiased_within_three_standard_errors(sampler, q):
    estimates = unbiased(sampler, q)
    # Along the exact answer, and along a direction orthogonal to it.
    other = torch.linalg.qr(torch.stack([EXACT, X0], 1))[0][:, 1]
    for direction in (EXACT / EXACT.norm(), other):
        along = estimates @ direction
        assert abs(float(along.mean() - EXACT @ direction)) < 3 * float(along.std()) / len(along) ** 0.5


@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_law_of_the_relative_squared_error(sampler, q):
    assert relative_squared_error(unbiased(sampler, q)) == pytest.approx(LAWS[sampler](q), rel=0.15)
    assert sampler().relative_error(p, q) == pytest.approx(LAWS[sampler](q))


@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_shrinkage_has_the_smaller_error(sampler, q):
    estimates = unbiased(sampler, q)
    shrunk = sampler().shrinkage(p, q) * estimates
    law = LAWS[sampler](q)
    assert relative_squared_error(shrunk) < relative_squared_error(estimates)
    assert relative_squared_error(shrunk) == pytest.approx(law / (1 + law), rel=0.15)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_shrink_scales_the_same_estimate(sampler):
    plain, shrunk, given = (
        draws(pzobo.PZOBO(mu=1e-3, directions=3, shrink=shrink, sampler=sampler(seed=1)), 3)
        for shrink in (False, True, 0.25)
    )
    torch.testing.assert_close(shrunk, plain * sampler().shrinkage(p, 3), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(given, 0.25 * plain, rtol=1e-12, atol=1e-12)


def test_authors_form_is_a_shrinkage_by_the_size_of_each_tensor():
    """UnitPerTensor estimates J_i^T v / p_i for each tensor i, whether `shrink` or not."""
    sizes = {"a": (3, 2), "b": (4,)}
    g = torch.Generator().manual_seed(1)
    x = {k: torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for k, s in sizes.items()}
    matrix = torch.randn(5, 10, generator=g, dtype=torch.float64)
    v = torch.randn(5, generator=g, dtype=torch.float64)
    flat = lambda x: torch.cat([x["a"].flatten(), x["b"]])  # noqa: E731
    argmin = pzobo.Argmin(lambda x, y, _: y.sum(), solver=pzobo.ClosedForm(lambda x, _: matrix @ flat(x)),
                          jacobian=pzobo.PZOBO(sampler=pzobo.UnitPerTensor(seed=0)), check=False)  # fmt: skip
    y0 = torch.zeros(5, dtype=torch.float64)
    estimates = [torch.autograd.grad(argmin(x, y0), list(x.values()), v) for _ in range(4000)]
    exact = (matrix.T @ v).split([6, 4])
    for i, (size, expected) in enumerate(zip((6, 4), exact, strict=True)):
        many = torch.stack([e[i].flatten() for e in estimates])
        error = (many.mean(0) - expected / size).abs()
        assert (error < 4 * many.std(0) / len(many) ** 0.5).all()


def logistic(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(40, 6, generator=g, dtype=torch.float64)
    t = (torch.rand(40, generator=g) < 0.5).double()

    def loss(x, w, rows):
        return torch.nn.functional.softplus((1 - 2 * t[rows]) * (X[rows] @ w)).mean() + 0.5 * (x.exp() * w**2).mean()

    return loss, torch.zeros(6, dtype=torch.float64, requires_grad=True), torch.zeros(6, dtype=torch.float64), g


def test_unbiased_on_a_path_of_gradient_steps():
    """E of the estimate meets J_N^T v of the path itself (Unrolled) for any N."""
    loss, x, y0, _ = logistic()
    rows, v = torch.arange(40), torch.ones(6, dtype=torch.float64)
    solver = pzobo.GD(lr=0.5, steps=4)
    exact = torch.autograd.grad(pzobo.Argmin(loss, solver=solver, jacobian=pzobo.Unrolled())(x, y0, rows), x, v)[0]
    many = pzobo.PZOBO(mu=1e-4, directions=6000, shrink=False, sampler=pzobo.Gaussian(seed=3), batching=500)
    found = torch.autograd.grad(pzobo.Argmin(loss, solver=solver, jacobian=many)(x, y0, rows), x, v)[0]
    # |error|^2 = (p + 1) / Q |exact|^2 in expectation
    assert float((found - exact).norm() / exact.norm()) < 2 * (7 / 6000) ** 0.5


def test_stochastic_paths_share_their_batches():
    """PZOBO-S: the error does not grow as mu shrinks, because every path sees the same minibatches (Algorithm 2)."""
    loss, x, y0, g = logistic()
    batches = [torch.randint(40, (4,), generator=g) for _ in range(8)]
    solver, v = pzobo.GD(lr=0.5, steps=8), torch.ones(6, dtype=torch.float64)

    def answer(jacobian):
        return torch.autograd.grad(pzobo.Argmin(loss, solver=solver, jacobian=jacobian)(x, y0, batches=batches), x, v)[
            0
        ]

    exact = answer(pzobo.Unrolled())
    errors = [
        float((answer(pzobo.PZOBO(mu=mu, directions=200, shrink=False, sampler=pzobo.Gaussian(seed=5))) - exact).norm())
        for mu in (1e-1, 1e-2, 1e-3, 1e-4)
    ]
    assert max(errors[1:]) < 1.1 * errors[0]
    assert errors[3] == pytest.approx(errors[2], rel=1e-2)

    # The counter-example: with batches of their own the paths differ by more than x, and the error grows as 1 / mu.
    def own(mu):
        def fn(x):
            mine = [torch.randint(40, (4,), generator=g) for _ in range(8)]
            return pzobo.Argmin(loss, solver=solver, jacobian=pzobo.Direct())(x, y0, batches=mine)

        y = pzobo.smooth(fn, x, mu=mu, directions=200, sampler=pzobo.Gaussian(seed=5))
        return float((torch.autograd.grad(y, x, v)[0] - exact).norm())

    assert own(1e-3) > 5 * own(1e-2) > 5 * errors[0]


def embedded(seed: int = 0):
    """A smooth prepare: x of 12 numbers, z of 3 x 2 features."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(3, 4, generator=g, dtype=torch.float64)
    target = torch.randn(3, generator=g, dtype=torch.float64)
    x = torch.randn(4, 3, generator=g, dtype=torch.float64, requires_grad=True)
    mix = torch.randn(3, 2, generator=g, dtype=torch.float64)
    prepare = lambda x, _: torch.tanh(X @ x) @ mix  # noqa: E731
    loss = lambda z, w, _: (z @ w - target).square().mean() + 0.1 * w.square().sum()  # noqa: E731
    return x, torch.zeros(2, dtype=torch.float64), prepare, loss


def response(jacobian, **options) -> Tensor:
    x, y0, prepare, loss = embedded()
    argmin = pzobo.Argmin(loss, solver=pzobo.GD(lr=0.2, steps=10), jacobian=jacobian, prepare=prepare, **options)
    return torch.autograd.grad(argmin(x, y0), x, torch.tensor([1.0, -2.0], dtype=torch.float64))[0]


@pytest.mark.parametrize(("at", "q"), [("x", 12), ("z", 6)])
def test_both_levels_are_exact_with_all_directions(at, q):
    exact = response(pzobo.Unrolled())
    found = response(pzobo.PZOBO(mu=1e-5, directions=q, at=at, sampler=pzobo.Orthogonal(), antithetic=True))
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("at", ["x", "z"])
def test_both_levels_agree_in_expectation(at):
    exact = response(pzobo.Unrolled())
    jacobian = pzobo.PZOBO(mu=1e-4, at=at, shrink=False, sampler=pzobo.Gaussian(seed=2))
    many = torch.stack([response(jacobian).flatten() for _ in range(400)])
    gap = (many.mean(0) - exact.flatten()).abs()
    assert (gap < 4 * many.std(0) / 20).all()


def test_a_small_z_is_less_noisy_than_a_large_x():
    """With 300 outer variables and 6 features the noise at z is that of 6 numbers."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(3, 150, generator=g, dtype=torch.float64)
    x = (torch.randn(150, 2, generator=g, dtype=torch.float64) / 12).requires_grad_()
    loss = lambda z, w, _: (z @ w - 1).square().mean() + 0.1 * w.square().sum()  # noqa: E731
    v = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def answer(jacobian):
        argmin = pzobo.Argmin(
            loss, solver=pzobo.GD(lr=0.2, steps=5), jacobian=jacobian, prepare=lambda x, _: torch.tanh(X @ x)
        )
        return torch.autograd.grad(argmin(x, torch.zeros(2, dtype=torch.float64)), x, v)[0]

    exact = answer(pzobo.Unrolled())
    error = {}
    for at in ("x", "z"):
        jacobian = pzobo.PZOBO(mu=1e-4, at=at, shrink=False, sampler=pzobo.Gaussian(seed=1))
        gaps = torch.stack([answer(jacobian) - exact for _ in range(200)])
        error[at] = float(gaps.square().sum((1, 2)).mean() / exact.square().sum())
    assert error["x"] == pytest.approx(301, rel=0.3)
    assert error["z"] < 20


def test_auto_takes_the_smaller_of_x_and_z():
    seeded = functools.partial(pzobo.PZOBO, mu=1e-4, directions=4)
    auto, at_z, at_x = (response(seeded(at=at, sampler=pzobo.Gaussian(seed=4))) for at in ("auto", "z", "x"))
    assert torch.equal(auto, at_z)
    assert not torch.equal(auto, at_x)


@pytest.mark.parametrize("jacobian", [pzobo.PZOBO, pzobo.ForwardMode])
@pytest.mark.parametrize("at", ["x", "z"])
def test_batching_does_not_change_the_answer(jacobian, at):
    def answer(batching):
        x, y0, prepare, loss = embedded()
        x32 = x.detach().float().requires_grad_()
        argmin = pzobo.Argmin(
            lambda z, w, b: loss(z.double(), w.double(), b).float(),
            solver=pzobo.GD(lr=0.2, steps=10),
            jacobian=jacobian(directions=10, at=at, batching=batching, sampler=pzobo.Gaussian(seed=6)),
            prepare=lambda x, b: prepare(x.double(), b).float(),
        )
        return torch.autograd.grad(argmin(x32, y0.float()).sum(), x32)[0]

    loop = answer("loop")
    for batching in ("vmap", 3, 1, 10, "auto"):
        torch.testing.assert_close(answer(batching), loop, rtol=2e-5, atol=1e-6)
    for batching in ("loop", "vmap", 3):
        assert torch.equal(answer(batching), answer(batching))


def test_each_call_draws_new_directions_and_a_checkpoint_goes_on():
    x, y0, prepare, loss = embedded()

    def make():
        jacobian = pzobo.PZOBO(mu=1e-4, sampler=pzobo.Rademacher(seed=0))
        return pzobo.Argmin(loss, solver=pzobo.GD(lr=0.2, steps=3), jacobian=jacobian, prepare=prepare)

    def run(argmin):
        return torch.autograd.grad(argmin(x, y0).sum(), x)[0]

    argmin = make()
    first = run(argmin)
    state = argmin.state_dict()
    second = run(argmin)
    assert not torch.equal(first, second)
    resumed = make()
    resumed.load_state_dict(state)
    assert torch.equal(run(resumed), second)


def test_one_by_one_never_holds_two_directions():
    import gc
    import weakref
    from dataclasses import dataclass, field

    @dataclass(frozen=True)
    class Watched(pzobo.Gaussian):
        alive: list = field(default_factory=list)
        most: list = field(default_factory=lambda: [0])

        def draw(self, key, j, count, space):
            gc.collect()
            u = super().draw(key, j, count, space)
            self.alive.append(weakref.ref(u))
            # One may be the running sum, which takes the place of the first direction.
            self.most[0] = max(self.most[0], sum(ref() is not None for ref in self.alive[1:]))
            return u

    sampler = Watched(seed=0)
    response(pzobo.PZOBO(mu=1e-3, directions=20, batching="loop", sampler=sampler))
    assert len(sampler.alive) == 20
    assert sampler.most[0] <= 2


def test_mu_goes_to_the_derivative():
    """ForwardMode is PZOBO's limit: the same directions, a difference of order mu (and mu^2 both ways)."""
    limit = response(pzobo.ForwardMode(directions=3, sampler=pzobo.Gaussian(seed=7)))

    def gap(mu, antithetic):
        jacobian = pzobo.PZOBO(mu=mu, directions=3, sampler=pzobo.Gaussian(seed=7), antithetic=antithetic)
        return float((response(jacobian) - limit).norm())

    assert gap(1e-2, False) / gap(1e-3, False) == pytest.approx(10, rel=0.1)
    assert gap(1e-2, True) / gap(1e-3, True) == pytest.approx(100, rel=0.1)


def test_the_noise_check_belongs_to_each_argmin():
    # Two Argmins of one loss share what is compiled, but each refuses a response that is rounding noise at its first.
    def loss(x, y, batch):
        return 0.5 * (y - 100.0 - 1e-9 * x).square().sum()

    both = [pzobo.Argmin(loss, solver=pzobo.GD(0.5, 60), jacobian=pzobo.PZOBO(mu=0.01), compile=True) for _ in "12"]
    for argmin in both:
        x = torch.zeros(8, requires_grad=True)
        with pytest.raises(pzobo.errors.SmoothingError, match="mu is too small"):
            (argmin(x, torch.zeros(8), None) - torch.arange(8.0)).square().sum().backward()
