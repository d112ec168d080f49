"""A bilevel problem under Lightning: its parameters are x, and `training_step` returns the outer loss.

One l2 strength for each of 640 weights of a classifier of digits. The Trainer clips the hypergradient, follows a
schedule and keeps a checkpoint. It knows nothing of the inner problem. `pip install pytorch-lightning` comes first.
"""

import logging
import sys
import tempfile

import pytorch_lightning as lightning
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import pzobo

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
X, t = (torch.tensor(part) for part in load_digits(return_X_y=True))
train, val, test = zip((X.float() / 16).split([200, 200, 1397]), t.split([200, 200, 1397]), strict=True)


def inner_loss(x, y, batch):
    return cross_entropy(batch[0] @ y, batch[1]) + (x.exp() * y.square()).sum()


class Strengths(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.full((64, 10), -5.0))  # logs of the strengths
        solver = pzobo.HeavyBall(lr=0.5, momentum=0.9, steps=60)
        self.argmin, self.losses = pzobo.Argmin(inner_loss, solver=solver, jacobian=pzobo.Unrolled()), []

    def forward(self, inputs):
        return inputs @ self.argmin(self.x, torch.zeros(64, 10), train)

    def training_step(self, batch, _):
        loss = cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)]


module, quiet = Strengths(), {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
quiet["accelerator"] = "cpu"
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(max_epochs=steps, gradient_clip_val=0.1, default_root_dir=folder, **quiet)
    trainer.fit(module, DataLoader([val], batch_size=None))  # one batch, so that an epoch is an outer step
learned = (module(test[0]).argmax(1) == test[1]).float().mean().item()
both = [torch.cat(part).numpy() for part in zip(train, val, strict=True)]
ordinary = LogisticRegression(max_iter=1000).fit(*both).score(*(part.numpy() for part in test))
print(f"validation loss {module.losses[0]:.3f} -> {module.losses[-1]:.3f}")
print(f"test accuracy: learned strengths {learned:.3f}, logistic regression on all data {ordinary:.3f}")
