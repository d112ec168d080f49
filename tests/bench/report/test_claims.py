"""Do the checks of the paper's sentences say what the numbers say? On runs made up by hand."""

from pathlib import Path

from pzobo.bench.report.about import About
from pzobo.bench.report.claims import (
    beats,
    beats_all,
    converges_faster,
    fastest_to,
    finds_corrupted,
    hozog_flat,
    hozog_stuck,
    hozog_worse,
    insensitive,
    only_one_to,
    saturates,
)
from pzobo.bench.report.runs import Run
from pzobo.bench.report.summary import Summary


def run(method, values, *, pace=1.0, metric="outer_loss", seed=0, norms=None, **settings):
    """A run whose metric takes these values, one each `pace` seconds."""
    rows = [
        {"step": k, "seconds": k * pace, metric: value, "hypergradient_norm": (norms or values)[k]}
        for k, value in enumerate(values)
    ]
    config = {"experiment": "e", "method": method, "seed": seed, **settings}
    return Run(Path(f"{method}-{seed}-{settings}"), config, {}, rows, None)


def summary(*runs, final="outer_loss", higher=False):
    return Summary(About("e", "E", "", final, (), higher=higher), runs)


def test_nothing_is_said_without_runs():
    checks = [beats_all({}, 1.0), hozog_worse({}), hozog_stuck({}), hozog_flat({}), insensitive({}), fastest_to(1, {})]
    checks += [only_one_to(1, {}), saturates(1, {}), beats("pzobo", "hozog", {}), finds_corrupted()]
    checks += [converges_faster(("aid-cg",), {})]
    assert [check(summary()) for check in checks] == [None] * len(checks)


def test_faster_than_all_others():
    mine, slow, control = run("pzobo-authors", [9, 0.1]), run("aid-cg", [9, 1, 0.1]), run("direct", [9, 5, 5])
    verdict, text = beats_all({}, 0.5)(summary(mine, slow, control))
    assert verdict == "yes"
    assert "pzobo-authors 1" in text
    assert "aid-cg 2" in text


def test_faster_than_the_baselines_but_not_than_direct():
    runs = run("pzobo-authors", [9, 0.1]), run("aid-cg", [9, 1, 0.1]), run("direct", [9, 0.1], pace=0.5)
    verdict, text = beats_all({}, 0.5)(summary(*runs))
    assert verdict == "in part"
    assert "no faster than Direct" in text


def test_slower_than_a_baseline():
    assert beats_all({}, 0.5)(summary(run("pzobo-authors", [9, 1, 0.1]), run("itd-r", [9, 0.1])))[0] == "no"
    assert beats_all({}, 0.01)(summary(run("pzobo-authors", [9, 1, 0.1]), run("itd-r", [9, 0.1])))[0] == "no"


def test_hozog_ends_worse_in_each_case_or_in_some():
    runs = [run(m, [9, v], d=d) for d in (1, 2) for m, v in (("pzobo-authors", 1.0), ("hozog", 5.0 if d == 1 else 0.5))]
    assert hozog_worse({"d": 1})(summary(*runs))[0] == "yes"
    assert hozog_worse({"d": 2})(summary(*runs))[0] == "no"
    verdict, text = hozog_worse({"d": (1, 2)})(summary(*runs))
    assert verdict == "in part"
    assert "d = 1: final: pzobo-authors 1, hozog 5; d = 2" in text


def test_the_papers_text_is_not_the_authors_code():
    runs = run("pzobo-authors", [9, 1]), run("pzobo-paper", [9, 8]), run("hozog", [9, 5])
    verdict, text = hozog_worse({})(summary(*runs))
    assert verdict == "in part"
    assert "not for the paper's text" in text


def test_hozog_does_not_converge():
    assert hozog_stuck({})(summary(run("hozog", [100, 50])))[0] == "yes"
    assert hozog_stuck({})(summary(run("hozog", [100, 0.5])))[0] == "no"


def test_hozogs_norm_is_flat():
    # The last row has no gradient.
    flat, falling = run("hozog", [9, 9, 9], norms=[5, 4, float("nan")]), run("pzobo-authors", [9, 1], norms=[5, 0.1])
    assert hozog_flat({})(summary(flat, falling))[0] == "yes"
    assert hozog_flat({})(summary(run("hozog", [9, 9], norms=[5, 0.1]), falling))[0] == "no"
    verdict, text = hozog_flat({})(summary(run("hozog", [9, 9], norms=[5, 90]), falling))
    assert verdict == "in part"
    assert "rises" in text


def test_insensitive_to_N():
    def runs(*ends):
        return [run("pzobo-authors", [9, end], N=n) for n, end in zip((5, 10, 20), ends, strict=True)]

    assert insensitive({})(summary(*runs(1.0, 1.2, 1.9)))[0] == "yes"
    assert insensitive({})(summary(*runs(1.0, 1.2, 2.1)))[0] == "no"
    accuracies = [run("pzobo-authors", [0.1, end], N=n) for n, end in ((5, 0.98), (10, 0.96))]
    assert insensitive({})(summary(*accuracies, higher=True))[0] == "no"
    assert insensitive({})(summary(runs(1, 2, 3)[0])) is None


def accuracies(**ends):
    names = {"pzobo": "pzobo-s-authors", "cg": "aid-cg-s", "fp": "aid-fp-s", "direct": "direct"}
    return summary(
        *[run(names[n], [0.1, *values], metric="accuracy") for n, values in ends.items()], final="accuracy", higher=True
    )


def test_accuracies():
    s = accuracies(pzobo=[0.96, 0.99], cg=[0.5, 0.93])
    assert fastest_to(0.95, {})(s)[0] == "yes"
    assert only_one_to(0.98, {})(s)[0] == "yes"
    assert saturates(0.95, {})(s)[0] == "yes"
    s = accuracies(pzobo=[0.5, 0.99], cg=[0.99, 0.99])
    assert fastest_to(0.95, {})(s)[0] == "no"
    assert only_one_to(0.98, {})(s)[0] == "in part"
    assert saturates(0.95, {})(s)[0] == "no"
    s = accuracies(pzobo=[0.5, 0.97], direct=[0.97, 0.99])
    assert fastest_to(0.95, {})(s)[0] == "in part"
    assert only_one_to(0.98, {})(s)[0] == "no"


def test_one_beats_another_in_each_form():
    runs = run("pzobo", [9, 1.0]), run("pzobo-paper", [9, 3.0]), run("hozog", [9, 2.0])
    verdict, text = beats("pzobo", "hozog", {})(summary(*runs))
    assert verdict == "in part"
    assert "pzobo 1, pzobo-paper 3, hozog 2" in text


def test_faster_half_way_and_at_the_end():
    runs = run("pzobo", [9, 5, 2, 1, 1]), run("aid-cg", [9, 6, 3, 2, 0.5])
    verdict, text = converges_faster(("aid-cg",), {})(summary(*runs))
    assert verdict == "in part"
    assert "after 2 s: pzobo 2, aid-cg 3; after 4 s: pzobo 1, aid-cg 0.5" in text


def test_weights_find_corrupted_labels():
    runs = [run(m, [0.5, auc], metric="auc") for m, auc in (("direct", 0.5), ("itd-r", 0.99), ("hozog", 0.6))]
    assert finds_corrupted()(summary(*runs)) == ("in part", "AUC: hozog 0.6, itd-r 0.99, Direct 0.5")
