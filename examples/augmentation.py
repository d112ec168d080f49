"""How much should training images be moved? Four strengths of augmentation, learned on digits that are not moved.

x are the logs of shift, rotation, scaling and noise. Every inner step draws how its images are moved, the same for all
paths: `batches=`. `grid_sample` has no second derivative, so PZOBO measures the response, with a direction for each.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 15
torch.manual_seed(0)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(t))
X, t = X[order].float().reshape(-1, 1, 8, 8) / 16, t[order]
(X_train, X_val, X_test), (t_train, t_val, t_test) = (part.split([100, 300, 1397]) for part in (X, t))


def moved(x, draws):
    shift, turn, scale, noise = x.exp()
    angle, factor = turn * draws["turn"], (scale * draws["scale"]).exp()
    first = torch.stack([factor * angle.cos(), -angle.sin(), shift * draws["shift"][:, 0]], 1)
    second = torch.stack([angle.sin(), factor * angle.cos(), shift * draws["shift"][:, 1]], 1)
    grid = affine_grid(torch.stack([first, second], 1), [100, 1, 8, 8], align_corners=False)
    return grid_sample(X_train, grid, align_corners=False) + noise * draws["noise"]


def draw():
    return {k: torch.randn(100, *s) for k, s in {"turn": (), "scale": (), "shift": (2,), "noise": (1, 8, 8)}.items()}


def logits(y, X):
    return torch.tanh(X.flatten(1) @ y["first"]) @ y["last"]


def accuracy(x):
    y = argmin(x, y0, batches=batches)
    return (logits(y, X_test).argmax(1) == t_test).float().mean().item()


y0, batches = {"first": torch.randn(64, 32) / 8, "last": torch.randn(32, 10) / 6}, [draw() for _ in range(80)]
solver, jacobian = pzobo.Adam(0.03, steps=80), pzobo.PZOBO(0.1, 4, pzobo.Orthogonal(), shrink=False)
argmin = pzobo.Argmin(
    lambda x, y, draws: cross_entropy(logits(y, moved(x, draws)), t_train), solver=solver, jacobian=jacobian
)
x = torch.full((4,), 0.05).log().requires_grad_()
optimizer, losses = torch.optim.Adam([x], lr=0.3), []
for _ in range(steps):
    losses.append(cross_entropy(logits(argmin(x, y0, batches=batches), X_val), t_val))
    optimizer.zero_grad()
    losses[-1].backward()
    optimizer.step()
plain, learned = accuracy(torch.full((4,), -20.0)), accuracy(x.detach())
print("learned: shift {:.2f}, rotation {:.2f}, scaling {:.2f}, noise {:.2f}".format(*x.exp().tolist()))
print(f"test accuracy with 100 training digits: learned {learned:.3f}, the ordinary network as they are {plain:.3f}")
