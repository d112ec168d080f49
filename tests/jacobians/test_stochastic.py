"""Do the stochastic forms (AID-CG-S, AID-FP-S, stocBiO) take their products on the batches they are given?"""

import pytest
import torch

import pzobo

d, p = 4, 3


def setting(seed: int = 0):
    """g = y^T A_b y / 2 - y^T B_b x with another A_b, B_b in each batch: every product can be written out."""
    g = torch.Generator().manual_seed(seed)

    def batch():
        R = torch.randn(d, d, generator=g, dtype=torch.float64)
        return torch.eye(d, dtype=torch.float64) + 0.1 * R @ R.T, torch.randn(d, p, generator=g, dtype=torch.float64)

    x = torch.randn(p, generator=g, dtype=torch.float64, requires_grad=True)
    v = torch.randn(d, generator=g, dtype=torch.float64)
    return [batch() for _ in range(5)], [batch() for _ in range(6)], x, torch.zeros(d, dtype=torch.float64), v


def loss(x, y, batch):
    A, B = batch
    return 0.5 * y @ (A @ y) - y @ (B @ x)


def answer(inverse, own, with_prepare=False, products="autodiff", **data):
    inner, _, x, y0, v = setting()
    prepare = (lambda x, batch: batch[1] @ x) if with_prepare else None
    g = (lambda z, y, batch: 0.5 * y @ (batch[0] @ y) - y @ z) if with_prepare else loss
    argmin = pzobo.Argmin(g, solver=pzobo.GD(lr=0.3, steps=5), jacobian=pzobo.Implicit(inverse, products=products),
                          prepare=prepare)  # fmt: skip
    y = argmin(x, y0, batches=inner, jacobian_batches=own, **data)
    return torch.autograd.grad(y, x, v)[0], y.detach()


@pytest.mark.parametrize("with_prepare", [False, True])
@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
def test_products_are_taken_on_the_own_batches_in_turn(with_prepare, products):
    _, own, _, _, v = setting()
    eye = torch.eye(d, dtype=torch.float64)

    found, _ = answer(pzobo.Implicit(pzobo.CG(30, tol=1e-14)).inverse, own[:2], with_prepare, products)
    torch.testing.assert_close(found, own[1][1].T @ torch.linalg.solve(own[0][0], v), rtol=1e-8, atol=1e-9)

    q = r = v
    for A, _ in own[:4]:
        r = r - 0.2 * A @ r
        q = q + r
    found, _ = answer(pzobo.Neumann(step=0.2, terms=4), own[:5], with_prepare, products)
    torch.testing.assert_close(found, 0.2 * own[4][1].T @ q, rtol=1e-8, atol=1e-9)

    w = v
    for A, _ in own[:3]:
        w = v + (eye - 0.3 * A) @ w
    found, _ = answer(pzobo.FixedPoint(steps=4), own[:4], with_prepare, products)
    torch.testing.assert_close(found, 0.3 * own[3][1].T @ w, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("with_prepare", [False, True])
def test_the_path_does_not_see_the_own_batches(with_prepare):
    inner, own, x, y0, _ = setting()
    _, y = answer(pzobo.CG(30), own, with_prepare)
    expected = y0
    for A, B in inner:
        expected = expected - 0.3 * (A @ expected - B @ x.detach())
    torch.testing.assert_close(y, expected)


def test_without_own_batches_the_inner_ones_serve_again():
    inner, _, _, _, v = setting()
    found, _ = answer(pzobo.CG(30, tol=1e-14), None)
    torch.testing.assert_close(found, inner[1][1].T @ torch.linalg.solve(inner[0][0], v), rtol=1e-8, atol=1e-9)


def test_full_batch_methods_ignore_nothing_when_batches_are_all_the_same():
    """PZOBO-S, Unrolled and Nudged with N equal batches are the full-batch forms."""
    inner, _, x, y0, v = setting()
    for jacobian in (
        pzobo.Unrolled(),
        pzobo.Nudged(eps=1e-3, steps=200),
        pzobo.PZOBO(mu=1e-3, directions=p, sampler=pzobo.Orthogonal()),
        pzobo.ForwardMode(directions=p, sampler=pzobo.Orthogonal()),
        pzobo.Implicit(pzobo.CG(20)),
    ):
        argmin = pzobo.Argmin(loss, solver=pzobo.GD(lr=0.3, steps=5), jacobian=jacobian)
        one = torch.autograd.grad(argmin(x, y0, inner[0]), x, v)[0]
        many = torch.autograd.grad(argmin(x, y0, batches=[inner[0]] * 5), x, v)[0]
        torch.testing.assert_close(one, many, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("steps", [4, 12])
@pytest.mark.parametrize(
    "jacobian",
    [
        pzobo.PZOBO(mu=1e-3, directions=p, sampler=pzobo.Orthogonal()),
        pzobo.Unrolled(),
        pzobo.Nudged(eps=1e-3, steps=7),
        pzobo.ForwardMode(directions=p, sampler=pzobo.Orthogonal()),
    ],
    ids=lambda jacobian: type(jacobian).__name__,
)
def test_compiled_steps_see_their_own_batches(jacobian, steps):
    first, second, x, y0, v = setting()
    batches = (first + second + first)[:steps]
    answers = []
    for compile in (False, True):
        argmin = pzobo.Argmin(loss, solver=pzobo.GD(lr=0.3, steps=steps), jacobian=jacobian, compile=compile)
        for _ in range(2):
            y = argmin(x, y0, batches=batches)
            answers.append((y.detach(), torch.autograd.grad(y, x, v)[0]))
    for found in answers[1:]:
        torch.testing.assert_close(found, answers[0], rtol=1e-9, atol=1e-10)


def test_compiled_code_sees_what_changes_between_calls():
    """Neither a new batch, nor another value that the loss closes over, is taken for the old one."""
    first, _, x, y0, v = setting()
    scale = [1.0]
    jacobian = pzobo.PZOBO(mu=1e-3, directions=p, sampler=pzobo.Orthogonal())

    def scaled(x, y, batch):
        return loss(x, y, batch) + 0.5 * scale[0] * y.square().sum()

    solver = pzobo.GD(lr=0.2, steps=11)
    compiled, eager = (
        pzobo.Argmin(scaled, solver=solver, jacobian=jacobian, compile=compile) for compile in (True, False)
    )
    for scale[0], batch in [(1.0, first[0]), (1.0, first[1]), (0.5, first[1]), (1.0, first[0])]:
        y, expected = compiled(x, y0, batch), eager(x, y0, batch)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            torch.autograd.grad(y, x, v), torch.autograd.grad(expected, x, v), rtol=1e-8, atol=1e-9
        )


def test_a_prepare_that_ignores_x_keeps_its_batches_apart():
    first, _, x, y0, v = setting()
    target = torch.ones(p, dtype=torch.float64)
    for jacobian in (pzobo.Unrolled(), pzobo.PZOBO(at="z"), pzobo.Direct()):
        argmin = pzobo.Argmin(
            lambda z, y, batch: 0.5 * y @ (batch[0] @ y) - y @ z,
            solver=pzobo.GD(lr=0.3, steps=5),
            jacobian=jacobian,
            prepare=lambda x, batch: batch[1] @ target + 0 * x.detach().sum(),
        )
        expected = y0
        for A, B in first:
            expected = expected - 0.3 * (A @ expected - B @ target)
        y = argmin(x, y0, batches=first)
        torch.testing.assert_close(y.detach(), expected)
        assert torch.equal(torch.autograd.grad(y, x, v)[0], torch.zeros_like(x))


# The last product, on data of its own


@pytest.mark.parametrize("with_prepare", [False, True])
@pytest.mark.parametrize("products", ["autodiff", "forward", "difference"])
def test_the_last_product_is_taken_on_the_mixed_batch(with_prepare, products):
    _, own, _, _, v = setting()
    eye, (first, last) = torch.eye(d, dtype=torch.float64), (own[:3], own[5])
    (A, _), B = own[0], last[1]

    found, _ = answer(pzobo.CG(30, tol=1e-14), first, with_prepare, products, mixed_batch=last)
    torch.testing.assert_close(found, B.T @ torch.linalg.solve(A, v), rtol=1e-8, atol=1e-9)
    found, _ = answer(pzobo.Exact(), first, with_prepare, products, mixed_batch=last)
    torch.testing.assert_close(found, B.T @ torch.linalg.solve(A, v), rtol=1e-8, atol=1e-9)

    q = r = v
    for A, _ in first:
        r = r - 0.2 * A @ r
        q = q + r
    found, _ = answer(pzobo.Neumann(step=0.2, terms=3), first, with_prepare, products, mixed_batch=last)
    torch.testing.assert_close(found, 0.2 * B.T @ q, rtol=1e-8, atol=1e-9)

    w = v
    for A, _ in first:
        w = v + (eye - 0.3 * A) @ w
    found, _ = answer(pzobo.FixedPoint(steps=4), first, with_prepare, products, mixed_batch=last)
    torch.testing.assert_close(found, 0.3 * B.T @ w, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("with_prepare", [False, True])
def test_the_path_does_not_see_the_mixed_batch(with_prepare, own):
    _, others, _, _, _ = setting()
    jacobian_batches = others[:2] if own else None
    _, expected = answer(pzobo.CG(30), None, with_prepare)
    _, y = answer(pzobo.CG(30), jacobian_batches, with_prepare, mixed_batch=others[5])
    assert torch.equal(y, expected)


ROWS, CLASSES = 24, 3


def cleaning():
    """A weight for each of 24 rows, softmax regression with an l2 term: data, g, prepare, x, y0 and v."""
    g = torch.Generator().manual_seed(1)
    X = torch.randn(ROWS, d, generator=g, dtype=torch.float64)
    t = torch.randint(0, CLASSES, (ROWS,), generator=g)

    def weighted(w, y, batch):
        each = torch.nn.functional.cross_entropy(batch[0] @ y, batch[1], reduction="none")
        return (w * each).mean() + 0.2 * y.square().sum()

    def prepare(x, batch):
        return x[batch[2]].sigmoid()

    x = torch.randn(ROWS, generator=g, dtype=torch.float64, requires_grad=True)
    y0 = torch.zeros(d, CLASSES, dtype=torch.float64)
    v = torch.randn(d, CLASSES, generator=g, dtype=torch.float64)
    return (X, t, torch.arange(ROWS)), weighted, prepare, x, y0, v


LAST = [
    pzobo.Implicit(pzobo.CG(30, tol=1e-14)),
    pzobo.Implicit(pzobo.FixedPoint(30), products="forward"),
    pzobo.Implicit(pzobo.Neumann(0.4, 30)),
    pzobo.Implicit(pzobo.Exact(), products="difference"),
    pzobo.Nudged(steps=40),
]


def cleaned(jacobian, prepared=True, compile=False, **data):
    _, g, prepare, x, y0, v = cleaning()
    if prepared:
        argmin = pzobo.Argmin(g, solver=pzobo.GD(0.4, 40), jacobian=jacobian, prepare=prepare, compile=compile)
    else:
        argmin = pzobo.Argmin(lambda x, y, batch: g(prepare(x, batch), y, batch),
                              solver=pzobo.GD(0.4, 40), jacobian=jacobian, compile=compile)  # fmt: skip
    return torch.autograd.grad(argmin(x, y0, **data), x, v)[0]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("jacobian", LAST, ids=repr)
def test_all_rows_in_the_last_product_and_an_exact_system_are_the_full_batch(jacobian, prepared):
    train = cleaning()[0]
    exact = cleaned(jacobian, prepared, batch=train)
    found = cleaned(jacobian, prepared, batches=[train] * 40, jacobian_batches=[train], mixed_batch=train)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12)
    assert (exact != 0).all()


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("jacobian", LAST, ids=repr)
def test_batches_in_the_last_product_are_unbiased_and_see_their_own_rows_alone(jacobian, prepared):
    """The mean over the batches of an epoch is the answer with all rows."""
    train = cleaning()[0]
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)).split(6)
    parts = []
    for index in order:
        part = tuple(leaf[index] for leaf in train)
        parts.append(cleaned(jacobian, prepared, batch=train, mixed_batch=part))
        assert set(parts[-1].nonzero().flatten().tolist()) == set(index.tolist())
    expected = cleaned(jacobian, prepared, batch=train)
    torch.testing.assert_close(torch.stack(parts).mean(0), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("jacobian", [LAST[0], LAST[1], LAST[4]], ids=repr)
def test_a_compiled_last_product_takes_data_of_another_size(jacobian):
    train = cleaning()[0]
    batches = [tuple(leaf[i : i + 6] for leaf in train) for i in range(0, 24, 6)] * 10
    data = {"batches": batches, "jacobian_batches": batches[:3], "mixed_batch": train}
    eager, compiled = (cleaned(jacobian, compile=compile, **data) for compile in (False, True))
    torch.testing.assert_close(compiled, eager, rtol=1e-8, atol=1e-10)


def test_a_mixed_batch_that_is_changed_before_the_backward_pass_is_refused():
    train, g, prepare, x, y0, v = cleaning()
    argmin = pzobo.Argmin(g, solver=pzobo.GD(0.4, 4), jacobian=LAST[0], prepare=prepare)
    mixed = (train[0].clone(), *train[1:])
    y = argmin(x, y0, train, mixed_batch=mixed)
    mixed[0].zero_()
    with pytest.raises(pzobo.errors.StaleError):
        y.backward(v)
