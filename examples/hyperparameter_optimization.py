"""One l2 strength for each weight of a linear classifier: 650 hyperparameters, on scikit-learn's digits.

The validation loss does not contain x at all, so the whole hypergradient is the response term: Direct learns nothing.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import pzobo

STEPS = 25

X, t = load_digits(return_X_y=True)
X = (X - X.mean(0)) / (X.std(0) + 1e-3)
order = torch.randperm(len(t), generator=torch.Generator().manual_seed(0))
X, t = torch.tensor(X, dtype=torch.float32)[order], torch.tensor(t)[order]
train, val, test = zip(X.split([150, 600, 1047]), t.split([150, 600, 1047]), strict=True)


def logits(y, X):
    return X @ y["weight"] + y["bias"]


def inner_loss(x, y, batch):
    X, t = batch
    penalty = sum((x[name].exp() * y[name].square()).sum() for name in y)
    return cross_entropy(logits(y, X), t) + 0.5 * penalty


def outer_loss(y, batch):
    X, t = batch
    return cross_entropy(logits(y, X), t)


y0 = {"weight": torch.zeros(64, 10), "bias": torch.zeros(10)}
solver = pzobo.HeavyBall(lr=0.2, momentum=0.9, steps=20)
jacobians = {
    "Direct": pzobo.Direct(),
    "PZOBO, Q = 1": pzobo.PZOBO(mu=0.01),
    "Unrolled, difference": pzobo.Unrolled(products="difference"),
}
torch.manual_seed(0)
found = {}
for name, jacobian in jacobians.items():
    argmin = pzobo.Argmin(inner_loss, solver=solver, jacobian=jacobian)
    x = {key: torch.full_like(y, -6.0).requires_grad_() for key, y in y0.items()}
    optimizer = torch.optim.Adam(x.values(), lr=0.2)
    losses = []
    for _ in range(STEPS):
        loss = outer_loss(argmin(x, y0, train), val)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found[name] = losses[0], losses[-1]
    unseen = outer_loss(argmin(x, y0, train), test).item()
    print(f"{name:22s} validation loss {losses[0]:.4f} -> {losses[-1]:.4f}, on unseen data {unseen:.4f}")
