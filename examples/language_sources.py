"""Which texts should a small language model learn from? One weight for each source, among texts that Python ships.

A character transformer learns from a mixture. The outer loss is that of a short target text, prose of Python's
documentation. Fused attention has no second derivative: PZOBO, with a direction for each weight, needs none.
"""

import inspect
import sys
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import pzobo

steps, LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 12, 32
torch.manual_seed(0)
prose = "\n".join(text for _, text in sorted(topics.items()))
texts = {"documentation": prose[:200_000], "source code": inspect.getsource(inspect)}
texts["table"] = bytes(range(128)).decode() * 99


def rows(text, count):
    codes = torch.tensor([min(ord(c), 127) for c in text])
    return codes[torch.randint(len(codes) - LENGTH, (count, 1)) + torch.arange(LENGTH + 1)]


class Model(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(32, 2, 64, dropout=0, activation="gelu", batch_first=True)
        self.embed, self.place = nn.Embedding(128, 32), nn.Parameter(0.1 * torch.randn(LENGTH, 32))
        self.last, self.mask = nn.Linear(32, 128), nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, codes):
        return self.last(super().forward(self.embed(codes) + self.place, self.mask, is_causal=True))


def text_loss(y, codes):
    return cross_entropy(functional_call(model, y, (codes[:, :-1],)).transpose(1, 2), codes[:, 1:])


model = Model()
y0, x, losses = {k: p.detach() for k, p in model.named_parameters()}, torch.zeros(3, requires_grad=True), []
batches = [torch.stack([rows(text, 16) for text in texts.values()]) for _ in range(40)]
target, test = rows(prose[-20_000:-15_000], 64), rows(prose[-15_000:], 256)
solver, jacobian = pzobo.Adam(lr=0.01, steps=40), pzobo.PZOBO(0.1, 3, pzobo.Orthogonal(), shrink=False)
mixture = lambda x, y, batch: (x.softmax(0) * torch.stack([text_loss(y, codes) for codes in batch])).sum()  # noqa: E731
argmin, optimizer = pzobo.Argmin(mixture, solver=solver, jacobian=jacobian), torch.optim.Adam([x], lr=0.4)
for _ in range(steps):
    y = argmin(x, y0, batches=batches)
    losses.append(text_loss(y, test).item())
    optimizer.zero_grad()
    text_loss(y, target).backward()
    optimizer.step()
alone = pzobo.Argmin(lambda x, y, batch: text_loss(y, target), solver=solver, jacobian=pzobo.Direct())(x.detach(), y0)
weights, only = x.softmax(0).tolist(), text_loss(alone, test).item()
print("weights:", ", ".join(f"{name} {w:.2f}" for name, w in zip(texts, weights, strict=True)))
print(f"loss on new text: learned {losses[-1]:.2f}, all sources alike {losses[0]:.2f}, target text alone {only:.2f}")
