"""A long run that is killed and resumed: `fit` with a folder ends in the same bits as a run that nobody stopped.

650 l2 strengths of a classifier of digits are learned. The script starts itself as another process, kills it (kill -9)
at half of the steps, resumes it, and compares with a run that was left alone.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
X = torch.cat([X.float() / 16, torch.ones(len(X), 1)], 1)
train, val, test = zip(X.split([200, 400, 1197]), t.split([200, 400, 1197]), strict=True)


def inner_loss(x, y, batch):
    return cross_entropy(batch[0] @ y, batch[1]) + (x.exp() * y.square()).sum()


def run(folder, pause=0.0):
    x0, y0 = torch.full((65, 10), -6.0), torch.zeros(65, 10)
    problem = pzobo.Problem(inner_loss, lambda x, y, b: cross_entropy(b[0] @ y, b[1]), x0, y0, train, val)
    method = pzobo.Method(pzobo.HeavyBall(0.5, 0.9, 30), pzobo.Unrolled())
    options = {"evaluate_every": 1, "evaluate": lambda objective: time.sleep(pause) or {}, "checkpoint_every": 2}
    return pzobo.fit(problem, method, steps, lr=0.1, out=folder, resume=True, progress=False, **options)


def rows(folder):
    file = Path(folder, "metrics.jsonl")
    return file.read_text().count("\n") if file.exists() else 0


if len(sys.argv) > 3:  # the process that is killed
    run(sys.argv[3], pause=0.05)
else:
    with tempfile.TemporaryDirectory() as place:
        process = subprocess.Popen([sys.executable, __file__, str(steps), "", f"{place}/killed"])
        while rows(f"{place}/killed") <= steps // 2:
            time.sleep(0.05)
        process.kill()
        process.wait()
        killed_at = rows(f"{place}/killed") - 1
        again, alone = run(f"{place}/killed"), run(f"{place}/alone")
    same = torch.equal(again.x, alone.x)
    learned = ((test[0] @ alone.y).argmax(1) == test[1]).float().mean().item()
    ordinary = LogisticRegression(max_iter=1000).fit(X[:600].numpy(), t[:600].numpy())
    plain = ordinary.score(*(part.numpy() for part in test))
    print(f"killed at step {killed_at} of {steps}, resumed: the same bits as the run that was left alone: {same}")
    print(f"test accuracy {learned:.3f} on 200 digits; logistic regression on all 600 {plain:.3f}")
