"""What is LeNet? Two convolutions and two linear layers that give 84 features, and a linear head."""

from __future__ import annotations

from torch import Tensor, nn

FEATURES = 84


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, for images of n x 1 x 32 x 32.

    `features` has the 60,856 outer variables of deep hyper-representation, `head` is the inner problem's linear layer.

    Args:
        classes: outputs of the head; 10 for digits.

    Examples:
        >>> pzobo.networks.LeNet()(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(400, 120), nn.ReLU()),
            *(nn.Linear(120, FEATURES), nn.ReLU()),
        )
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits
