"""An MLP's weight decays, one for each tensor, its learning rate and its momentum, learned on validation data.

The inner training is 60 steps with momentum, whose numbers are functions of x. The ordinary models are the numbers that
people begin with, and random search for one decay, an lr and a momentum: 25 draws, from the best of which the outer
steps start, and 75 more, which take about as long as these steps do.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import pzobo

STEPS = 15
torch.manual_seed(0)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16
order = torch.randperm(len(t))
train, val, test = zip(X[order].split([150, 500, 1147]), t[order].split([150, 500, 1147]), strict=True)
net = pzobo.Functional(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)))
y0 = net.weights()


def loss(x, y, batch):
    return cross_entropy(net(y, batch[0]), batch[1])


decays = {name: lambda x, name=name: x[name].exp() for name in y0}
solver = pzobo.HeavyBall(lambda x: x["lr"].exp(), lambda x: x["momentum"].sigmoid(), steps=60, weight_decay=decays)
# At the best learning rates a path is at the edge of stability, where its exact derivative is no slope (see the audit).
directions = {"directions": 6, "sampler": pzobo.Orthogonal(seed=0), "batching": "vmap"}
argmin = pzobo.Argmin(loss, solver=solver, jacobian=pzobo.PZOBO(0.03, antithetic=True, **directions))


def numbers(lr, momentum, decay):  # x, which holds logs: the same decay for every tensor
    x = {"lr": lr, "momentum": momentum / (1 - momentum), **dict.fromkeys(y0, decay)}
    return {name: torch.tensor(float(v)).log().requires_grad_() for name, v in x.items()}


def losses(x):
    with torch.no_grad():
        return [loss(x, argmin(x, y0, train), data).item() for data in (val, test)]


drawn = [numbers(10 ** -(2 * a), 1 - 10 ** -(1.3 * b), 10 ** -(5 * c)) for a, b, c in torch.rand(100, 3).tolist()]
tried = [losses(x) for x in drawn]
found = {"as people begin": losses(numbers(0.1, 0.9, 1e-4)), "25 draws": min(tried[:25]), "100 draws": min(tried)}
x = drawn[tried.index(found["25 draws"])]
optimizer = torch.optim.Adam(x.values(), lr=0.05)
for _ in range(STEPS):
    optimizer.zero_grad()
    loss(x, argmin(x, y0, train), val).backward()
    optimizer.step()
found["25 draws, learned"] = losses(x)
for name, (seen, unseen) in found.items():
    print(f"{name:18s} validation loss {seen:.4f}, on unseen data {unseen:.4f}")
