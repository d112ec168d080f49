"""What is CNN4? Four times convolution, BatchNorm, ReLU and pooling: the small backbone of few-shot learning."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from pzobo.errors import OptionError
from pzobo.networks.episodes import Backbone, TaskNorm, each_task

DEPTH = 4


class CNN4(Backbone):
    """The network of Vinyals et al. (2016): 64 filters for Omniglot, often 32 for miniImageNet.

    Args:
        channels: of the images.
        size: height and width of the images, at least 16.
        filters: of each convolution. The features are filters x (size / 16)^2 numbers.

    Raises:
        OptionError: an option has a value that makes no sense.

    Examples:
        >>> net = pzobo.networks.CNN4(channels=1, size=28, filters=8)
        >>> net(torch.zeros(2, 5, 1, 28, 28)).shape            # tasks x images x features
        torch.Size([2, 5, 8])
    """

    def __init__(self, channels: int = 3, size: int = 84, filters: int = 64) -> None:
        super().__init__()
        side = size >> DEPTH
        if side < 1:
            raise OptionError(f"CNN4: size={size}: images must be at least {2**DEPTH} pixels wide.")
        self.convolutions = nn.ModuleList(
            nn.Conv2d(filters if i else channels, filters, 3, padding=1, bias=False) for i in range(DEPTH)
        )
        self.norms = nn.ModuleList(TaskNorm(filters) for _ in range(DEPTH))
        self.out_features = filters * side**2

    def maps(self, images: Tensor, tasks: int, support: int | None) -> Tensor:
        def activate(norm: nn.Module, a: Tensor) -> Tensor:
            # ReLU commutes with the maximum, after which there are four times fewer numbers.
            return each_task(lambda part: relu(max_pool2d(norm(part, support), 2)), a, tasks)

        a = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            a = activate(norm, convolution(a))
        return a
