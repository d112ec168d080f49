"""A weight-net: a small network x reads the loss of a training image and says how much the image counts.

The inner model is a CNN with BatchNorm and dropout; 60 % of its labels are random. x is learned from 100 clean digits
(Meta-Weight-Net). Each outer step goes on from the last y, and differentiates ten inner steps.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
torch.manual_seed(0)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(t))
X, t = X[order].float().reshape(-1, 1, 8, 8) / 16, t[order]
(X_train, X_val, X_test), (t_train, t_val, t_test) = (part.split([600, 100, 1097]) for part in (X, t))
labels = torch.where(torch.rand(600) < 0.6, torch.randint(10, (600,)), t_train)

cnn = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12, track_running_stats=False), nn.Tanh(), nn.Dropout(0.2))
cnn.extend([nn.Flatten(), nn.Linear(12 * 36, 10)])
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid())
x, y0 = dict(net.named_parameters()), {name: p.detach() for name, p in cnn.named_parameters()}


def weighted(x, y, batch):
    each = cross_entropy(functional_call(cnn, y, (X_train,)), labels, reduction="none")
    return (functional_call(net, x, (each.detach().unsqueeze(1),)).squeeze(1) * each).mean()


def ordinary(x, y, batch):
    return cross_entropy(functional_call(cnn, y, (torch.cat([X_train, X_val]),)), torch.cat([labels, t_val]))


def accuracy(y):
    cnn.eval()
    right = functional_call(cnn, y, (X_test,)).argmax(1) == t_test
    return cnn.train() and right.float().mean().item()


solver, y, z, curves = pzobo.HeavyBall(lr=0.1, momentum=0.9, steps=10), y0, y0, []
learned = pzobo.Argmin(weighted, solver=solver, jacobian=pzobo.Unrolled())
plain = pzobo.Argmin(ordinary, solver=solver, jacobian=pzobo.Direct())
optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
for _ in range(steps):
    y, z = (argmin(x, {k: v.detach() for k, v in last.items()}) for argmin, last in ((learned, y), (plain, z)))
    optimizer.zero_grad()
    cross_entropy(functional_call(cnn, y, (X_val,)), t_val).backward()
    optimizer.step()
    curves.append((accuracy(y), accuracy(z)))
after, before = curves[-1]
print(f"weight-net {after:.3f} of the test digits right, the ordinary CNN on all data {before:.3f}")
print("at their best steps {:.3f} and {:.3f}".format(*map(max, zip(*curves, strict=True))))
