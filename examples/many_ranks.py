"""One script for one process or many: linear features for ridge regression, by PZOBO with 64 directions.

    python examples/many_ranks.py
    torchrun --nproc-per-node=2 examples/many_ranks.py

Each rank runs its share of the directions, 64 numbers cross the network in a step, and the last line is the same for
any number of ranks. A run that was stopped goes on when it is started again, on as many ranks as there are then.
"""

import os
import zlib

import torch

import pzobo
from pzobo.problems import linear_hr

torch.set_num_threads(1)  # the bits of a product of matrices depend on it
method = pzobo.Method(pzobo.GD(lr=1e-3, steps=20), pzobo.PZOBO(mu=0.01, directions=64))
found = pzobo.fit(
    linear_hr(16, 32, n=200, seed=0),
    method,
    steps=20,
    lr=0.05,
    out="runs/many-ranks",
    resume=True,
    split="directions",
)
if os.environ.get("RANK", "0") == "0":
    first, last = found.history[0], found.history[-1]
    print(f"outer loss {first['outer_loss']:.3f} -> {last['outer_loss']:.3f} in {found.steps} steps")
    print(f"checksum of x: {zlib.crc32(found.x.detach().numpy().tobytes()):08x}")
