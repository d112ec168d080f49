"""MAML on sine waves: a start from which five gradient steps on ten points fit a new wave, and their learning rates.

The start is y0, which requires a gradient; the learning rate of each tensor is a function of x. The ordinary models
make 300 steps of Adam on the ten points, from random weights, and from weights trained on all waves at once.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import pzobo

STEPS, TASKS, SHOTS = 200, 12, 10
torch.manual_seed(0)
net = pzobo.Functional(nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)))


def waves(tasks):
    """Ten points of each wave to adapt to, and fifty to be judged by."""
    amplitude, phase = 0.1 + 4.9 * torch.rand(tasks, 1, 1), torch.pi * torch.rand(tasks, 1, 1)
    few, many = 10 * torch.rand(tasks, SHOTS, 1) - 5, torch.linspace(-5, 5, 50).reshape(-1, 1).expand(tasks, -1, -1)
    return [(t, amplitude * (t + phase).sin()) for t in (few, many)]


def task_loss(x, y, batch):
    return mse_loss(net(y, batch[0]), batch[1])


tasks_loss = pzobo.over_tasks(task_loss)  # the sum over tasks, in one call


def train(argmin, x, y0):
    """Learn x and y0 by the error after adaptation, on other points of the same waves."""
    optimizer = torch.optim.Adam([*x.values(), *y0.values()], lr=0.01)
    for _ in range(STEPS):
        shots, queries = waves(TASKS)
        optimizer.zero_grad()
        y = argmin(x, pzobo.for_tasks(y0, TASKS), shots)
        (tasks_loss(x, y, queries) / TASKS).backward()
        optimizer.step()
    return {name: t.detach() for name, t in y0.items()}


x = {name: torch.tensor(-4.0, requires_grad=True) for name in net.weights()}  # the log of an lr for each tensor
rates = {name: lambda x, name=name: x[name].exp() for name in x}
five = pzobo.Argmin(tasks_loss, solver=pzobo.GD(lr=rates, steps=5), jacobian=pzobo.Unrolled())
adam = pzobo.Argmin(tasks_loss, solver=pzobo.Adam(lr=0.01, steps=300), jacobian=pzobo.Direct())
random, maml = net.weights(), train(five, x, net.weights(requires_grad=True))
joint = train(lambda x, y0, shots: y0, {}, net.weights(requires_grad=True))

torch.manual_seed(1)
shots, queries = waves(100)
found = {}
for name, argmin, y0 in (("random start", adam, random), ("all waves", adam, joint), ("MAML", five, maml)):
    with torch.no_grad():
        found[name] = tasks_loss(x, argmin(x, pzobo.for_tasks(y0, 100), shots), queries).item() / 100
    print(f"{name:12s}, {argmin.solver.steps:3d} steps: squared error on 100 new waves {found[name]:.3f}")
