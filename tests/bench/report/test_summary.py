"""Are medians, times and bands those that one finds by hand?"""

import math

import pytest

from pzobo.bench.report.about import About, Panel, View
from pzobo.bench.report.runs import Run, read
from pzobo.bench.report.styles import STYLES, style
from pzobo.bench.report.summary import POINTS, Summary, band, thin
from tests.bench.report.written import about, done, values, write


def runs(tmp_path, *given):
    """One folder for each (settings, rows) or (settings, rows, result)."""
    for i, (config, rows, *result) in enumerate(given):
        write(tmp_path / f"{i:03}", rows, *(result or [done()]), **config)
    return tuple(read(tmp_path))


def seeds(tmp_path, *curves, method="pzobo", seconds=1.0, **config):
    """Runs of one method whose losses are the curves."""
    each = [({"method": method, "seed": i, **config}, values("outer_loss", ys, seconds)) for i, ys in enumerate(curves)]
    return runs(tmp_path, *each)


def test_final_and_spread_are_over_seeds(tmp_path):
    s = Summary(about(), seeds(tmp_path, [9, 1.0], [9, 5.0], [9, 2.0]))
    assert s.final("pzobo") == 2.0
    assert s.spread("pzobo") == (1.0, 5.0)
    assert s.final("hozog") is None
    assert s.spread("hozog") is None


def test_final_takes_the_last_row_that_has_the_metric(tmp_path):
    rows = [{"step": 0, "outer_loss": 4.0, "accuracy": 0.5}, {"step": 1, "outer_loss": 3.0}]
    s = Summary(about(), runs(tmp_path, ({"method": "pzobo"}, rows)))
    assert s.final("pzobo", "accuracy") == 0.5
    assert s.final("pzobo") == 3.0


def test_a_value_that_is_not_finite_is_the_worst(tmp_path):
    given = seeds(tmp_path, [1.0, None], [1.0, 2.0], [1.0, 3.0])
    assert Summary(about(), given).final("pzobo") == 3.0
    assert Summary(about(), given).spread("pzobo") == (2.0, math.inf)
    assert Summary(about(higher=True), given).spread("pzobo") == (-math.inf, 3.0)


def test_where_takes_values_and_tuples(tmp_path):
    s = Summary(
        about(),
        runs(
            tmp_path,
            *(
                ({"method": method, "d": d, "seed": 0}, values("outer_loss", [d]))
                for d in (512, 64, 128)
                for method in ("unheard-of", "hozog", "pzobo")
            ),
        ),
    )
    assert s.where(d=64).final("pzobo") == 64
    assert s.where(d=(64, 128), method="pzobo").final(None) == 96
    assert s.final("hozog", d=512) == 512
    assert s.where(d=7).runs == ()
    assert s.values("d") == [64, 128, 512]
    assert s.values("nothing") == []
    assert s.methods() == ["pzobo", "hozog", "unheard-of"]


def test_time_to_is_the_first_row_that_reaches_the_value(tmp_path):
    s = Summary(about(), seeds(tmp_path, [9, 4, 9, 1], [9, 9, 4, 1], [9, 9, 9, 4], seconds=2.0))
    assert s.time_to("pzobo", 4) == 4.0
    assert s.time_to("pzobo", 4.0) == 4.0
    assert s.time_to("pzobo", 9) == 0.0
    assert s.time_to("pzobo", 0.5) is None
    assert s.time_to("hozog", 4) is None


def test_time_to_needs_half_of_the_seeds(tmp_path):
    s = Summary(about(), seeds(tmp_path, [9, 1], [9, 1], [9, 9], [9, None]))
    assert s.time_to("pzobo", 1) == 1.0
    assert Summary(s.about, s.runs[1:]).time_to("pzobo", 1) is None


def test_time_to_goes_up_where_higher_is_better(tmp_path):
    s = Summary(about(higher=True), seeds(tmp_path, [0.1, 0.5, 0.9]))
    assert s.time_to("pzobo", 0.5) == 1.0


def test_at_is_the_last_row_until_then(tmp_path):
    s = Summary(about(), seeds(tmp_path, [9, 5, 1], [8, 4], [7, 3, 0]))
    assert s.at("pzobo", 0.0) == 8
    assert s.at("pzobo", 1.9) == 4
    assert s.at("pzobo", 2.0) == 1
    assert s.at("pzobo", -1.0) is None


def test_milliseconds_memory_seeds_and_rate(tmp_path):
    rows = [{"step": 0, "seconds": 0.0, "memory": 10.0}, {"step": 4, "seconds": 2.0, "memory": 30.0}]
    slow = [{"step": 0, "seconds": 0.0, "memory": 50.0}, {"step": 4, "seconds": 4.0, "memory": 20.0}]
    given = runs(tmp_path, *(({"method": "pzobo", "seed": i, "lr": 0.1}, r) for i, r in enumerate((rows, slow))))
    s = Summary(about(), given)
    assert s.milliseconds("pzobo") == 750.0
    assert s.memory("pzobo") == 40.0
    assert s.seeds("pzobo") == 2
    assert s.seeds("pzobo", seed=1) == 1
    assert s.lr("pzobo") == 0.1
    assert (s.milliseconds("hozog"), s.memory("hozog"), s.seeds("hozog"), s.lr("hozog")) == (None, None, 0, None)


def test_two_rates_are_none(tmp_path):
    s = Summary(about(), runs(tmp_path, *(({"method": "pzobo", "lr": lr}, []) for lr in (0.1, 0.2))))
    assert s.lr("pzobo") is None


def test_failed_says_why(tmp_path):
    failure = {"stopped": "failed", "error": "Too large."}
    s = Summary(about(), runs(tmp_path, ({"method": "pzobo"}, [], failure), ({"method": "pzobo"}, [])))
    assert s.failed("pzobo") == ["Too large."]


def test_band_of_three_is_least_to_largest(tmp_path):
    found = band(seeds(tmp_path, [9, 1], [8, 5], [7, 2]), "step", "outer_loss")
    assert (found.x, found.median, found.low, found.high) == ([0, 1], [8, 2], [7, 1], [9, 5])


def test_band_of_five_is_quartiles(tmp_path):
    found = band(seeds(tmp_path, [1], [2], [3], [4], [100]), "step", "outer_loss")
    assert (found.median, found.low, found.high) == ([3], [2], [4])


def test_band_of_one_has_no_edges(tmp_path):
    found = band(seeds(tmp_path, [3, 2]), "step", "outer_loss")
    assert (found.median, found.low, found.high) == ([3, 2], None, None)


def two_paces(tmp_path):
    quick, slow = values("outer_loss", [16.0, 4.0, 1.0], 1.0), values("outer_loss", [16.0, 1.0], 2.0)
    return runs(tmp_path, ({"seed": 0}, quick), ({"seed": 1}, slow))


def test_between_its_rows_a_run_goes_straight(tmp_path):
    found = band(two_paces(tmp_path), "seconds", "outer_loss")
    assert found.x == [0.0, 1.0, 2.0]
    assert found.low == [16.0, 4.0, 1.0]
    assert found.high == [16.0, 8.5, 1.0]


def test_between_its_rows_a_run_goes_straight_in_its_logarithm(tmp_path):
    found = band(two_paces(tmp_path), "seconds", "outer_loss", log=True)
    assert found.high == pytest.approx([16.0, 4.0, 1.0])


def test_a_run_that_ended_keeps_its_value_until_most_have(tmp_path):
    found = band(seeds(tmp_path, [9, 1], [9, 8, 7], [9, 6, 5, 4]), "step", "outer_loss")
    assert found.x == [0, 1, 2]
    assert found.median == [9, 6, 5]
    assert found.low == [9, 1, 1]


def test_a_band_leaves_out_what_is_not_finite(tmp_path):
    found = band(seeds(tmp_path, [1, 2], [1, None], [1, None]), "step", "outer_loss")
    assert (found.median, found.low, found.high) == ([1, None], [1, 2], [1, None])


def test_a_band_of_nothing_is_empty(tmp_path):
    assert band(seeds(tmp_path, [1]), "step", "accuracy").x == []


def test_long_curves_are_thinned(tmp_path):
    found = band(seeds(tmp_path, range(5000)), "step", "outer_loss")
    assert len(found.x) == POINTS
    assert (found.x[0], found.x[-1]) == (0, 4999)
    assert max(b - a for a, b in zip(found.x, found.x[1:], strict=False)) <= 18
    assert thin([1.0, 2.0]) == [1.0, 2.0]


def view(**where):
    return View("A view", where, (Panel("outer_loss"),))


def grouped(runs: tuple[Run, ...], a_view: View | None = None):
    return {g.label: len(g.runs) for g in Summary(About("toy", "", "", "outer_loss", ()), runs).groups(a_view)}


def test_runs_that_differ_in_their_seed_are_one_curve(tmp_path):
    given = runs(tmp_path, *(({"method": "pzobo", "label": "P", "seed": i, "command": f"{i}"}, []) for i in range(3)))
    assert grouped(given) == {"P": 3}


def test_runs_that_differ_in_more_are_told_apart(tmp_path):
    given = runs(tmp_path, *(({"method": "pzobo", "seed": 0, "T": t, "d": 5}, []) for t in (10, 20)))
    assert grouped(given) == {"pzobo (T = 10)": 1, "pzobo (T = 20)": 1}
    looks = [group.style for group in Summary(about(), given).groups()]
    assert looks[0].color == looks[1].color
    assert looks[0] != looks[1]


def test_runs_without_a_seed_are_named_after_their_folders(tmp_path):
    assert grouped(runs(tmp_path, ({}, []), ({}, []))) == {"000": 1, "001": 1}


def test_a_view_shows_the_controls_beside_its_methods(tmp_path):
    methods = ("pzobo", "hozog", "direct", "exact")
    given = runs(tmp_path, *(({"method": m, "d": d, "seed": 0}, []) for m in methods for d in (1, 2)))
    assert list(grouped(given, view(d=1, method="pzobo"))) == ["pzobo", "exact", "direct"]
    assert list(grouped(given, view(d=1, method=("pzobo", "direct")))) == ["pzobo", "exact", "direct"]


def test_curves_by_a_setting_are_in_its_order(tmp_path):
    given = runs(tmp_path, *(({"method": "pzobo", "N": n, "seed": 0}, []) for n in (100, 5, 20)))
    assert list(grouped(given, View("", {}, (), by="N"))) == ["N = 5", "N = 20", "N = 100"]


def test_styles_tell_methods_apart_and_families_share_a_colour():
    hyper = [name for name in STYLES if name != "maml"][: list(STYLES).index("maml")]
    assert len({STYLES[name] for name in hyper}) == len(hyper)
    for family in ("pzobo", "aid-cg", "aid-fp", "itd-r", "metaoptnet"):
        assert len({look.color for name, look in STYLES.items() if name.startswith(family)}) == 1
    assert style("somebody's") == style("somebody's")
    assert style("direct").dash
    assert style("direct").width > style("exact").width
