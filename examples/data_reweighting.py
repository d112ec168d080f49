"""Which training labels are wrong? One weight for each training example, learnt from a small clean set.

x holds a logit for each example, y is the classifier trained on the weighted examples, and the outer loss is taken on
100 clean ones. Sixty percent of the training labels are random.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import pzobo

torch.manual_seed(0)
data = load_digits()
order = torch.randperm(len(data.target))
X = torch.tensor(data.data, dtype=torch.float32)[order] / 16
t = torch.tensor(data.target)[order]
X_train, X_val, X_test = X.split([500, 100, len(X) - 600])
t_train, t_val, t_test = t.split([500, 100, len(X) - 600])
wrong = torch.rand(500) < 0.6
labels = torch.where(wrong, torch.randint(10, (500,)), t_train)
wrong = labels != t_train


def inner_loss(x, y, batch):
    X, t = batch
    each = cross_entropy(X @ y, t, reduction="none")
    return (x.sigmoid() * each).mean() + 5e-3 * y.square().sum()


def accuracy(y):
    return ((X_test @ y).argmax(1) == t_test).float().mean().item()


argmin = pzobo.Argmin(
    inner_loss,
    solver=pzobo.HeavyBall(lr=0.5, momentum=0.9, steps=40),
    jacobian=pzobo.Implicit(pzobo.CG(steps=10), products="difference"),
)
x = torch.zeros(500, requires_grad=True)
y = torch.zeros(64, 10)
optimizer = torch.optim.Adam([x], lr=0.3)
accuracies = []
for _ in range(30):
    y = argmin(x, y.detach(), (X_train, labels))  # a warm start: y0 is the last solution
    accuracies.append(accuracy(y))
    loss = cross_entropy(X_val @ y, t_val)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

before, after = accuracies[0], accuracies[-1]
weight = x.detach().sigmoid()
right, false = weight[~wrong].mean().item(), weight[wrong].mean().item()
print(f"test accuracy: the ordinary model, all labels alike {before:.3f}; with learned weights {after:.3f}")
print(f"mean weight of right labels {right:.2f}, of wrong ones {false:.2f}")
