"""Does LeNet have the paper's shape?"""

from __future__ import annotations

import torch

from pzobo.networks import LeNet


def test_lenet_has_84_features_and_the_known_number_of_weights() -> None:
    net = LeNet()
    images = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    features = net.features(images)
    assert features.shape == (3, 84)
    assert torch.equal(net(images), features @ net.head.weight.T + net.head.bias)
    # 156 + 2,416 + 48,120 + 10,164 in the features, 850 in the head: LeNet-5 has 61,706.
    assert sum(p.numel() for p in net.features.parameters()) == 60856
    assert sum(p.numel() for p in net.parameters()) == 61706
    assert LeNet(classes=3)(images).shape == (3, 3)
