"""What is ResNet-12? Four residual blocks of three convolutions, the large backbone of few-shot learning."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d, pad

from pzobo.errors import OptionError
from pzobo.networks.episodes import Backbone, TaskNorm, each_task
from pzobo.options import in_range

WIDTHS = (64, 160, 320, 640)
SLOPE = 0.1


def drop_block(a: Tensor, rate: float, size: int = 5) -> Tensor:
    """Squares of size x size set to zero, so many that each number is dropped with probability about `rate`; the rest
    is scaled to keep the mean (Ghiasi et al., 2018)."""
    height, width = a.shape[-2:]
    size = min(size, height, width)
    rows, columns = height - size + 1, width - size + 1
    seeds = torch.empty(*a.shape[:2], rows, columns, dtype=a.dtype, device=a.device)
    seeds.bernoulli_(min(1.0, rate / size**2 * height * width / (rows * columns)))
    kept = 1 - max_pool2d(pad(seeds, (size - 1,) * 4), size, stride=1)
    return a * (kept / kept.mean().clamp_min(1 / kept.numel()))


class _Block(nn.Module):
    """leaky(norm(conv(leaky(norm(conv(leaky(norm(conv a)))))))) + norm(conv1x1 a), then pooling by two."""

    def __init__(self, before: int, after: int, drop: float) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(after if i else before, after, 3, padding=1, bias=False) for i in range(3)
        )
        self.norms = nn.ModuleList(TaskNorm(after) for _ in range(3))
        self.shortcut = nn.Conv2d(before, after, 1, bias=False)
        self.shortcut_norm = TaskNorm(after)
        self.drop = drop

    def forward(self, a: Tensor, tasks: int, support: int | None) -> Tensor:
        def activate(norm: nn.Module, b: Tensor) -> Tensor:
            return each_task(lambda part: leaky_relu(norm(part, support), SLOPE), b, tasks)

        b = activate(self.norms[0], self.convolutions[0](a))
        b = activate(self.norms[1], self.convolutions[1](b))
        b = each_task(lambda part: self.norms[2](part, support), self.convolutions[2](b), tasks)
        b = b + each_task(lambda part: self.shortcut_norm(part, support), self.shortcut(a), tasks)
        # Leaky ReLU commutes with the maximum too.
        b = leaky_relu(max_pool2d(b, 2), SLOPE)
        return drop_block(b, self.drop) if self.training and self.drop else b


class ResNet12(Backbone):
    """ResNet-12 as in MetaOptNet (Lee et al., 2019): 64-160-320-640 channels, LeakyReLU(0.1), the mean over positions.

    Args:
        channels: of the images.
        size: height and width of the images, at least 16; any such size has the same 640 features.
        drop: the share that DropBlock sets to zero after the last two blocks, in training only. 0 is the paper's;
            MetaOptNet has 0.1.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> net = pzobo.networks.ResNet12(channels=1, size=16)
        >>> net(torch.zeros(1, 2, 1, 16, 16)).shape            # tasks x images x features
        torch.Size([1, 2, 640])
    """

    def __init__(self, channels: int = 3, size: int = 84, drop: float = 0.0) -> None:
        super().__init__()
        if size < 16:
            raise OptionError(f"ResNet12: size={size}: images must be at least 16 pixels wide.")
        in_range("ResNet12: drop", drop, 0, 1)
        self.blocks = nn.ModuleList(
            _Block(before, after, drop if i >= 2 else 0.0)
            for i, (before, after) in enumerate(zip((channels, *WIDTHS), WIDTHS, strict=False))
        )
        self.out_features = WIDTHS[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def maps(self, images: Tensor, tasks: int, support: int | None) -> Tensor:
        a = images
        for block in self.blocks:
            a = block(a, tasks, support)
        return a.mean((2, 3))
