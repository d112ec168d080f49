"""Dataset condensation: twenty images, made so that a model trained on them alone reads real digits well.

x are the images, y is the model trained on them by 30 steps, and f is its loss on 600 real digits.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 80
torch.manual_seed(0)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(t))
X, t = X[order].float() / 16, t[order]
train, test = (X[:600], t[:600]), (X[600:], t[600:])
labels = torch.arange(10).repeat(2)
chosen = torch.cat([(train[1] == digit).nonzero()[:2].flatten() for digit in range(10)]).reshape(10, 2).T.flatten()


def inner_loss(x, y, batch):
    return cross_entropy(batch[0] @ y, batch[1]) + 1e-3 * y.square().sum() + 0 * x.sum()


def accuracy(y):
    return ((test[0] @ y).argmax(1) == test[1]).float().mean().item()


solver, y0 = pzobo.HeavyBall(lr=0.3, momentum=0.9, steps=30), torch.zeros(64, 10)
argmin = pzobo.Argmin(
    lambda x, y, batch: inner_loss(x, y, (x, labels)), solver=solver, jacobian=pzobo.Unrolled(), audit=False
)
x = train[0][chosen].clone().requires_grad_()  # begin with two real digits of each kind
optimizer, curve = torch.optim.Adam([x], lr=0.05), []
for _ in range(steps):
    y = argmin(x, y0)
    curve.append(accuracy(y))
    optimizer.zero_grad()
    cross_entropy(train[0] @ y, train[1]).backward()
    optimizer.step()
ordinary = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Direct())
real, condensed, everything = curve[0], curve[-1], accuracy(ordinary(x.detach(), y0, train))
print(f"test accuracy: 20 real digits {real:.3f}, 20 condensed ones {condensed:.3f}")
print(f"all 600 digits, trained as long: {everything:.3f}")
