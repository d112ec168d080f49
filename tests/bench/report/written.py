"""Which runs do the tests of the report read? Small ones, written to a folder as `pzobo.fit` writes them."""

import json
import math
import random

from pzobo.bench.report.about import About, Claim, Panel, View
from pzobo.theory.measurements import Point, Sweep, Verification

ENVIRONMENT = {"python": "3.11.9", "torch": "2.13.0", "cpu": "a CPU", "cores": 2, "time": "2026-01-01T00:00:00"}
NASTY = "</script><script>alert('x')</script><b>&bold"


def write(folder, rows, result=None, **config):
    """A run's folder; a row that is a string is written as it stands, without the end of its line."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": 1, "identity": {}, "config": config}))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    lines = [row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def values(key, ys, seconds=1.0):
    """Rows with y_0, y_1, ... at steps 0, 1, ..., a step taking `seconds`."""
    return [{"step": i, "seconds": seconds * i, key: y} for i, y in enumerate(ys)]


def done(steps=1):
    return {"stopped": "steps", "error": None, "steps": steps, "seconds": 1.0}


def about(name="toy", *, final="outer_loss", **more):
    return About(name, "A toy", "What is run.", final, (View("All", {}, (Panel(final),)),), **more)


METHODS = {
    "pzobo": ("PZOBO", 0.030, 0.05),
    "pzobo-authors": ("PZOBO, authors' code", 0.026, 0.08),
    "hozog": ("HOZOG", 0.012, 0.30),
    "aid-cg": ("AID-CG", 0.017, 0.09),
    "aid-fp": ("AID-FP", 0.015, 0.12),
    "itd-r": ("ITD-R", 0.014, 0.11),
    "stocbio": ("stocBiO", 0.020, 0.10),
    "direct": ("direct gradient only", 0.010, 0.60),
    "exact": ("exact hypergradient", 0.035, 0.04),
}


def decay(seed, rate, floor, steps=200, dimension=128):
    """A loss and an accuracy as an experiment has them, evaluated every tenth step."""
    noise = random.Random(seed)
    pace = noise.uniform(0.9, 1.1) * dimension / 128
    for step in range(steps + 1):
        loss = (500 * math.exp(-rate * 3 * step) + floor) * math.exp(noise.gauss(0, 0.08))
        row = {"step": step, "seconds": step * 0.02 * pace, "outer_loss": loss, "memory": 40 + 30 * rate * pace}
        if step % 10 == 0:
            row["test_accuracy"] = 0.95 - floor * 0.3 - 0.8 * math.exp(-rate * step) + noise.gauss(0, 0.004)
        yield row


def write_experiments(folder, seeds=5):
    """Two experiments of the paper, with all that goes wrong, and a run of somebody's own."""
    for d in (128, 256):
        for method, (label, rate, floor) in METHODS.items():
            for seed in range(seeds):
                config = {"experiment": "hr-linear", "method": method, "label": label, "seed": seed, "d": d, "N": 20}
                config |= {"data": "synthetic", "lr": 0.001, "T": 30, "command": f"pzobo run hr-linear {method} {seed}"}
                rows = decay(seed, rate, floor, dimension=d)
                write(folder / "hr-linear" / f"{method}-{d}-{seed}", rows, done(200), **config)
    for n in (5, 10, 20, 50):
        for seed in range(3):
            config = {"experiment": "effect-of-n", "method": "pzobo", "label": "PZOBO", "seed": seed, "N": n}
            write(folder / "effect" / f"{n}-{seed}", decay(seed, 0.002 * n, 1 / n), done(200), **config)
    nasty = {"experiment": "hr-linear", "method": "broken", "label": NASTY, "seed": 0, "d": 128, "note": NASTY}
    failure = {"stopped": "failed", "error": f"The inner path is not finite {NASTY}.", "steps": 1, "seconds": 0.1}
    rows = [{"step": 0, "seconds": 0.0, "outer_loss": 508.0}, {"step": 1, "seconds": 0.1, "outer_loss": None}]
    write(folder / "hr-linear" / "broken", rows, failure, **nasty)
    cut = [*decay(0, 0.02, 0.1, steps=60), '{"step": 61, "sec']
    write(folder / "hr-linear" / "cut", cut, **nasty | {"method": "aid-cg-s", "label": "AID-CG, cut"})
    write(folder / "mine" / "first", decay(0, 0.02, 0.1), done(200), N=3)


PANELS = (Panel("outer_loss", log=True), Panel("outer_loss", "step", log=True), Panel("test_accuracy"))
ABOUTS = [
    About(
        "hr-linear",
        "Linear hyper-representation",
        "A linear embedding of synthetic data is learned so that ridge regression on it does well.",
        "outer_loss",
        (
            View("Fig. 2 (a), d = 128", {"d": 128}, PANELS),
            View("Fig. 2 (b), d = 256", {"d": 256, "method": ("pzobo", "hozog", "aid-cg")}, PANELS),
        ),
        thresholds=(100.0, 1.0),
        claims=(
            Claim("PZOBO is faster than the other methods.", lambda s: ("yes", f"{s.time_to('pzobo', 1.0, d=128)} s")),
            Claim("HOZOG does not converge.", lambda s: ("in part", "It converges late.")),
            Claim("The larger d is, the larger is the gain.", lambda s: ("no", "The ratio is the same.")),
        ),
    ),
    About(
        "effect-of-n",
        "Effect of N",
        "Inner steps from 5 to 50.",
        "test_accuracy",
        (View("Fig. 5", {}, (Panel("test_accuracy", "step"), Panel("outer_loss", log=True)), by="N"),),
        higher=True,
        thresholds=(0.8,),
    ),
    About("never", "Never run", "", "loss", (), claims=(Claim("It is never run.", lambda s: ("no", "")),)),
]
THEORY = Verification(
    (
        Sweep(
            "Prop. 1", "error", "quadratic", "N", tuple(Point(n, 1 / n, 0.0, 3 / n, 2 / n) for n in (1, 10, 100)), -1
        ),
        Sweep("Prop. 2", "variance", "quadratic", "Q", tuple(Point(q, 2 / q, 0.1 / q, 9 / q) for q in (1, 4, 16)), -1),
    ),
    1.0,
)
