"""What images does LeNet want? One channel of 32 x 32, normalised."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import interpolate, pad

from pzobo.errors import StructureError


def for_lenet(images: Tensor, mean: float, std: float) -> Tensor:
    """n x 1 x 32 x 32 from n square images of 28 (padded by zeros) or of 8 (enlarged four times), minus mean, by std.

    Args:
        images: n x s x s floating-point numbers, 0 for the background.
        mean: taken off after the padding, as LeNet's inputs were made.
        std: what the rest is divided by.
    """
    batch = images.unsqueeze(1)
    if images.shape[1:] == (28, 28):
        batch = pad(batch, (2, 2, 2, 2))
    elif images.shape[1:] == (8, 8):
        batch = interpolate(batch, scale_factor=4, mode="bilinear")
    elif images.shape[1:] != (32, 32):
        raise StructureError(f"for_lenet got images of shape {tuple(images.shape)}; expected n x s x s, s = 8, 28, 32.")
    return batch.sub(mean).div(std)
