"""`verify`: bounds are never below what is measured, slopes are the theory's, and the report shows it."""

import dataclasses
import math

import pytest
import torch

from pzobo.theory import Grid, Point, Sweep, Verification, fragments, page, table, verify
from pzobo.theory.__main__ import main
from pzobo.theory.presentation import table_rows

GRID = Grid(
    draws=60,
    Q=(1, 8, 64),
    p=(16, 128),
    d=(4, 32),
    N=(4, 12, 20, 28),
    mu=(1e-5, 1e-4, 1e-2, 1e-1),
    K=(36, 144),
    S=(1, 16),
    D_f=(1, 16),
    runs=1,
)


@pytest.mark.parametrize("check", ["Q", "p", "N", "D_f", "Lipschitz", "K"])
def test_the_quadratic(check):
    found = verify(GRID, checks=[check], problems=["quadratic"])
    for s in found.sweeps:
        assert s.holds, s
        assert s.as_predicted, (s.slope, s.predicted)


@pytest.mark.parametrize("check", ["N", "mu", "S"])
def test_logistic_regression(check):
    found = verify(GRID, checks=[check], problems=["logistic"])
    for s in found.sweeps:
        assert s.holds, s
        assert s.as_predicted, (s.slope, s.predicted)
    if check == "mu":
        assert found.find("Proposition 2", "mu (Q = p), large").slope == pytest.approx(2, abs=0.1)


def sweep(measured, bound, **options):
    points = tuple(Point(2.0**i, m, 0.0, b) for i, (m, b) in enumerate(zip(measured, bound, strict=True)))
    return Sweep("Proposition 2", "error", "made up", "Q", points, **options)


def test_verdicts_on_made_up_numbers():
    good = sweep([8.0, 4.0, 2.0], [80.0, 400.0, 20.0], predicted=-1.0)
    assert good.slope == pytest.approx(-1)
    assert good.looseness() == (10, 100)
    assert good.looseness(sharp=True) is None
    assert good.holds
    assert good.as_predicted
    assert not sweep([8.0, 4.0], [80.0, 3.9]).holds
    assert not sweep([8.0, 4.0], [80.0, 80.0], predicted=-0.5).as_predicted
    assert sweep([8.0, 4.0], [80.0, 80.0], predicted=-0.5, at_most=True).as_predicted
    falling = sweep([math.exp(-0.3 * 2.0**i) for i in range(4)], [1.0] * 4, predicted=-0.3, law="exponential")
    assert falling.slope == pytest.approx(-0.3)
    below = dataclasses.replace(good, points=(Point(1.0, 5.0, 0.1, 9.0, 4.0),))
    assert not below.holds  # ten standard errors above the sharp bound
    assert not Verification((good, below), 0.0).ok


def noisy(slope, relative, **options):
    """Two points a factor of four apart, each with this relative standard error."""
    points = tuple(Point(v, m, relative * m, 1e3) for v, m in ((4.0, 1.0), (16.0, 4.0**slope)))
    return Sweep("Theorem 2", "error", "made up", "K", points, **options)


def test_a_slope_that_is_noise_decides_nothing():
    """Its standard error is that of the logarithms, over the distance: sqrt(2) r / log 4."""
    for slope in (-0.8, -0.42, -0.38, 0.3):
        s = noisy(slope, 0.1, predicted=-0.5, at_most=True)
        assert s.slope == pytest.approx(slope)
        assert s.slope_error == pytest.approx(math.sqrt(2) * 0.1 / math.log(4))
    verdicts = {
        slope: [noisy(slope, r, predicted=-0.5, at_most=True).verdict for r in (0.0, 0.02, 0.1)]
        for slope in (-0.8, -0.42, -0.38, 0.3)
    }
    assert verdicts == {
        -0.8: ["ok", "ok", "ok"],
        -0.42: ["ok", "ok", "not decided"],
        -0.38: ["another slope", "another slope", "not decided"],
        0.3: ["another slope", "another slope", "another slope"],
    }
    assert [noisy(s, 0.1, predicted=-0.5).verdict for s in (-0.5, -0.9)] == ["not decided", "another slope"]
    assert noisy(-0.9, 1e3).verdict == "ok", "no slope is claimed"
    open_, broken = noisy(-0.42, 0.1, predicted=-0.5, at_most=True), noisy(0.3, 0.1, predicted=-0.5)
    assert Verification((open_,), 0.0).ok
    assert Verification((open_,), 0.0).undecided == (open_,)
    assert not Verification((open_, broken), 0.0).ok


def test_a_slope_agrees_with_its_error_in_repeated_measurements():
    """The standard deviation of slopes of noisy points is what one of them says of itself."""
    generator = torch.Generator().manual_seed(0)
    values, relative, slopes = (1.0, 4.0, 16.0), 0.05, []
    for _ in range(400):
        noise = 1 + relative * torch.randn(3, generator=generator, dtype=torch.float64)
        points = tuple(Point(v, float(n) / v, relative / v, 9.0) for v, n in zip(values, noise, strict=True))
        slopes.append(Sweep("P", "e", "made up", "Q", points, predicted=-1.0))
    found = torch.tensor([s.slope for s in slopes]).std()
    assert float(found) == pytest.approx(slopes[0].slope_error, rel=0.15)  # 4 / sqrt(2 * 400)


def test_the_report_is_one_page_without_a_network():
    found = Verification((sweep([8.0, 4.0], [80.0, 40.0], predicted=-1.0), sweep([8.0, 4.0], [80.0, 3.0])), seconds=1.0)
    pieces = fragments(found)
    assert len(pieces) == 3
    assert "bound broken" in pieces[0]
    assert len(pieces[1]) > 1e6 > len(pieces[2])  # plotly's code is there once
    assert all(len(piece) < 1e6 for piece in fragments(found, plotlyjs=False))
    whole = page(found)
    assert whole.startswith("<!doctype html>")
    assert '<script src="http' not in whole
    assert len(table_rows(found)) == table(found).row_count == 2
    with pytest.raises(KeyError):
        found.find("Theorem 1", "K")


def test_the_command(tmp_path, capsys):
    assert main(["--quick", "--only", "N", "-o", str(tmp_path / "theory.html")]) == 0
    assert "Lemma 8" in capsys.readouterr().out
    assert "Lemma 8" in (tmp_path / "theory.html").read_text(encoding="utf-8")
