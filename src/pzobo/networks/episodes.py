"""What is a batch for BatchNorm in few-shot learning? The images of one task, and never those of another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm


class Backbone(nn.Module, ABC):
    """A network from images to features, for whole meta-batches.

    `forward(images, support=None)` takes tasks x images x channels x height x width and gives tasks x images x
    `out_features`. If `support` is a number, BatchNorm takes its statistics from the first `support` images of a task:
    the features of an image then depend on no others than these.

    Attributes:
        out_features: how many features an image has. A subclass sets it.

    Examples:
        >>> net = pzobo.networks.CNN4(channels=1, size=16, filters=8)
        >>> isinstance(net, pzobo.networks.Backbone), net.out_features
        (True, 8)
    """

    out_features: int

    @abstractmethod
    def maps(self, images: Tensor, tasks: int, support: int | None) -> Tensor:
        """Images of all tasks, one after another, to their feature maps."""

    def forward(self, images: Tensor, support: int | None = None) -> Tensor:
        # On a CPU convolutions are twice as fast with channels last, and pooling eight times. Images of one channel are
        # contiguous in either format, and only a clone has the strides that tell the layers which one is meant.
        flat = images.flatten(0, 1).clone(memory_format=torch.channels_last)
        features: Tensor = self.maps(flat, len(images), support).flatten(1)
        return features.reshape(*images.shape[:2], -1)


class TaskNorm(nn.Module):
    """BatchNorm over the images of one task (n x channels x height x width), without running statistics.

    (a - mean) / sqrt(var + eps) * weight + bias, where mean and (biased) variance are of all images, or of the first
    `support` ones. It keeps nothing from one call to the next, so training and evaluation are the same function.

    Args:
        channels: of the images; each has a weight and a bias of its own.
        eps: added to the variance, so that nothing is divided by 0.

    Attributes:
        twice: whether training asks for second derivatives. Torch's BatchNorm takes more than twice as long for them
            as the formula written out, which in turn takes longer for first derivatives.

    Examples:
        >>> norm = pzobo.networks.TaskNorm(3)
        >>> norm(torch.randn(4, 3, 8, 8)).shape
        torch.Size([4, 3, 8, 8])
    """

    twice = False

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, a: Tensor, support: int | None = None) -> Tensor:
        if support is None and not (self.twice and self.training):
            return batch_norm(a, None, None, self.weight, self.bias, training=True, eps=self.eps)
        n, channels, height, width = a.shape
        rows = a.permute(0, 2, 3, 1).reshape(-1, channels)

        def mean(values: Tensor) -> Tensor:
            return (values if support is None else values[: support * height * width]).mean(0)

        centred = rows - mean(rows)
        scale = self.weight * torch.rsqrt(mean(centred * centred) + self.eps)
        return torch.addcmul(self.bias, centred, scale).reshape(n, height, width, channels).permute(0, 3, 1, 2)


def each_task(fn: Callable[[Tensor], Tensor], a: Tensor, tasks: int) -> Tensor:
    """fn of the images of each task, whose activations stay in the processor's cache from one operation to the next."""
    return torch.cat([fn(part) for part in a.chunk(tasks)])
