"""Is a problem the same on another device?"""

from __future__ import annotations

import torch

import pzobo


def test_another_device_keeps_ties_and_moves_modules() -> None:
    weight = torch.ones(3)
    loss = torch.nn.MSELoss()
    loss.register_buffer("scale", torch.ones(()))
    problem = pzobo.Problem(loss, lambda x, y, val: y.sum(), {"a": weight, "b": weight}, torch.zeros(3), train=weight)
    moved = problem.to("meta")
    assert moved.x0["a"] is moved.x0["b"]
    assert moved.x0["a"] is moved.train
    assert {t.device.type for t in (moved.x0["a"], moved.y0, moved.inner_loss.scale)} == {"meta"}
    assert loss.scale.device.type == "cpu", "the first problem has its own"
