"""Hyper-representation: features that make a linear model good. The network is x, the linear model on top of it is y.

The head is fitted on one half of the data, the features are judged on the other half: what the paper's figures 2 and 3
do. The head has a formula here (ridge regression), so its dependence on the features is plain autograd.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
torch.manual_seed(0)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(t))
X, t = X[order].float() / 16, t[order]
train, val, test = zip(X.split([300, 300, 1197]), t.split([300, 300, 1197]), strict=True)


net, plain = (nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)) for out in (24, 10))


def features(x, batch):
    return functional_call(net, x, (batch[0],))


def ridge(z, batch):
    return torch.linalg.solve(z.T @ z + 0.1 * torch.eye(24), z.T @ (one_hot(batch[1], 10) - 0.1))


def inner_loss(z, y, batch):
    return (z @ y - one_hot(batch[1], 10) + 0.1).square().sum() + 0.1 * y.square().sum()


argmin = pzobo.Argmin(inner_loss, prepare=features, solver=pzobo.ClosedForm(ridge), jacobian=pzobo.Unrolled())
x, y0 = dict(net.named_parameters()), torch.zeros(24, 10)
optimizer, other = torch.optim.Adam(net.parameters(), 3e-3), torch.optim.Adam(plain.parameters(), 3e-3)
both, losses = [torch.cat(pair) for pair in zip(train, val, strict=True)], []
for _ in range(steps):
    losses.append(cross_entropy(5 * net(val[0]) @ argmin(x, y0, train), val[1]))
    for opt, loss in ((optimizer, losses[-1]), (other, cross_entropy(plain(both[0]), both[1]))):
        opt.zero_grad()
        loss.backward()
        opt.step()
head = argmin({k: p.detach() for k, p in x.items()}, y0, both)
learned = ((net(test[0]) @ head).argmax(1) == test[1]).float().mean().item()
ordinary = (plain(test[0]).argmax(1) == test[1]).float().mean().item()
print(f"test accuracy: ridge regression on learned features {learned:.3f}, the ordinary network {ordinary:.3f}")
