"""One l2 strength for each weight of a linear classifier: 650 hyperparameters, on scikit-learn's digits.

The validation loss does not contain x, so Direct learns nothing. On unseen data the ordinary model is the best.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from torch.nn.functional import cross_entropy

import pzobo

STEPS = 25

X, t = load_digits(return_X_y=True)
X = (X - X.mean(0)) / (X.std(0) + 1e-3)
order = torch.randperm(len(t), generator=torch.Generator().manual_seed(0))
X, t = torch.tensor(X, dtype=torch.float32)[order], torch.tensor(t)[order]
train, val, test = zip(X.split([150, 600, 1047]), t.split([150, 600, 1047]), strict=True)


def outer_loss(y, batch):
    return cross_entropy(batch[0] @ y["weight"] + y["bias"], batch[1])


def inner_loss(x, y, batch):
    penalty = sum((x[name].exp() * y[name].square()).sum() for name in y)
    return outer_loss(y, batch) + 0.5 * penalty


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

both = [torch.cat(pair) for pair in zip(train, val, strict=True)]
again = outer_loss(argmin(x, y0, both), test).item()
search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.1, 0.3, 1, 3, 10]}, scoring="neg_log_loss")
ordinary = -search.fit(*both).score(*test)
print(f"on unseen data: {name}, fitted again on all data {again:.4f}, ordinary logistic regression {ordinary:.4f}")
