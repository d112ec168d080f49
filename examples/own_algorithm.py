"""An algorithm of your own: what it carries is a record, one step is one function, and `fit` does the rest.

SOBA with momentum on y, beside SOBA, on one l2 strength for each weight of a classifier of digits.
"""

import sys
from dataclasses import dataclass

import torch
from sklearn.linear_model import LogisticRegression

import pzobo
from pzobo.algorithms import SOBA, Oracles, SecondOrder, Step, Vector
from pzobo.problems import logistic_ho

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300


@dataclass(frozen=True)
class Carried:
    y: Vector
    v: Vector
    m: Vector


@dataclass(frozen=True)
class HeavySOBA(SecondOrder[Carried]):
    lr: float = 0.1
    momentum: float = 0.9

    def begin(self, at: Oracles) -> Carried:
        return Carried(at.y0, at.y0.zeros(), at.y0.zeros())

    def step(self, at: Oracles, now: Carried) -> Step[Carried]:
        f = at.f(at.x, now.y, at.outer_batch())
        g = at.curved(at.x, now.y, at.inner_batch(), now.v)
        m = self.momentum * now.m + g.y
        carried = Carried(now.y - self.lr * m, now.v - self.lr * (g.hv + f.y), m)
        return Step(carried, f.value, f.x + g.jv)


problem = logistic_ho("digits")
options = {"lr": 0.01, "batch_size": 64, "outer_batch_size": 64}
found, curves = {}, {}
for name, method in {"SOBA": SOBA(**options), "SOBA with momentum": HeavySOBA(**options)}.items():
    run = pzobo.fit(problem, method, steps, lr=0.05, evaluate_every=max(1, steps // 20), progress=False)
    curves[name] = [(row["step"], row["val_loss"]) for row in run.history if row.evaluated]
    found[name] = run.history[-1]["val_loss"], problem.accuracy(run.x, run.y)
    print(f"{name}: validation loss {found[name][0]:.3f}, test accuracy {found[name][1]:.3f}")
inputs, labels = (torch.cat(pair).numpy() for pair in zip(problem.train, problem.val, strict=True))
ordinary = LogisticRegression(max_iter=1000).fit(inputs, labels).score(*(part.numpy() for part in problem.test))
print(f"ordinary logistic regression on all data: test accuracy {ordinary:.3f}")
