"""Are BatchNorm's statistics those of one task, and do CNN4 and ResNet-12 have the known shapes?"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu, max_pool2d, relu

from pzobo.errors import OptionError
from pzobo.networks import CNN4, Backbone, ResNet12, TaskNorm
from pzobo.networks.resnet12 import drop_block


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_task_norm_is_torchs_batch_norm_in_training() -> None:
    a = 3 * images(7, 4, 5, 5) + 2
    ours, torchs = TaskNorm(4).double(), nn.BatchNorm2d(4).double()
    for norm in (ours, torchs):
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, -0.5)
    assert torch.allclose(ours(a), torchs(a), atol=1e-12)
    assert torch.allclose(ours.eval()(a), torchs(a), atol=1e-12), "evaluation is the same function"


def test_the_formula_written_out_has_the_same_derivatives() -> None:
    a, norm = images(5, 3, 4, 4).requires_grad_(), TaskNorm(3).double()
    found = []
    for twice in (False, True):
        norm.twice = twice
        value = norm(a).pow(3).sum()
        inputs = (a, norm.weight, norm.bias)
        first = torch.autograd.grad(value, inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs)
        found.append((value, *first, *second))
    for native, written_out in zip(*found, strict=True):
        assert torch.allclose(native, written_out, rtol=1e-9, atol=1e-9)


def test_inductive_statistics_are_those_of_the_support_images() -> None:
    a = 3 * images(7, 4, 5, 5) + 2
    norm = TaskNorm(4).double()
    found = norm(a, support=3)
    assert torch.allclose(found[:3].mean((0, 2, 3)), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(found[:3].var((0, 2, 3), correction=0), torch.ones(4, dtype=torch.float64), atol=1e-4)
    assert torch.allclose(norm(a, support=7), norm(a), atol=1e-12)
    changed = torch.cat([a[:4], 5 * a[4:]])
    assert torch.equal(norm(changed, support=3)[:4], found[:4])


def small(kind: type[Backbone]) -> Backbone:
    torch.manual_seed(0)
    return kind(1, 16).double()


@pytest.mark.parametrize("kind", [CNN4, ResNet12])
def test_features_of_a_task_do_not_depend_on_the_others(kind: type[Backbone]) -> None:
    net, batch = small(kind), images(3, 4, 1, 16, 16)
    with torch.no_grad():
        for support in (None, 2):
            whole = net(batch, support)
            assert whole.shape == (3, 4, net.out_features)
            for i in range(3):
                assert torch.allclose(net(batch[i : i + 1], support)[0], whole[i], atol=1e-10)
        assert not torch.allclose(net(batch), net(batch, 2))


def reference_cnn4(net: CNN4, task: Tensor) -> Tensor:
    a = task
    for convolution, norm in zip(net.convolutions, net.norms, strict=True):
        a = conv2d(a, convolution.weight, padding=1)
        a = (a - a.mean((0, 2, 3), True)) / (a.var((0, 2, 3), correction=0, keepdim=True) + norm.eps).sqrt()
        a = max_pool2d(relu(a), 2)
    return a.flatten(1)


def test_cnn4_is_four_times_convolution_norm_relu_and_pooling() -> None:
    net, batch = small(CNN4), images(2, 5, 1, 16, 16)
    with torch.no_grad():
        found = net(batch)
        for i in range(2):
            assert torch.allclose(found[i], reference_cnn4(net, batch[i]), atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3])
def test_activations_have_their_channels_last(channels: int) -> None:
    net, strides = CNN4(channels, 16, filters=4), []
    for norm in net.norms:
        norm.register_forward_pre_hook(lambda module, inputs: strides.append(inputs[0].stride(1)))
    net(images(2, 3, channels, 16, 16).float())
    assert strides == [1] * (4 * 2), "convolutions and pooling on a CPU are several times as slow in the other format"


@pytest.mark.parametrize(("channels", "size", "filters", "features"), [(1, 28, 64, 64), (3, 84, 32, 800)])
def test_cnn4_has_the_known_size(channels: int, size: int, filters: int, features: int) -> None:
    net = CNN4(channels, size, filters)
    assert net.out_features == features
    assert net(torch.zeros(1, 2, channels, size, size)).shape == (1, 2, features)
    # Without the biases of the convolutions, which the norms take off again.
    expected = 9 * channels * filters + 3 * 9 * filters**2 + 8 * filters
    assert sum(p.numel() for p in net.parameters()) == expected


def test_resnet12_has_the_known_size_and_blocks() -> None:
    torch.manual_seed(0)
    net = ResNet12()
    # MetaOptNet's: 12.42 million weights in 12 convolutions of 3 x 3 and 4 of 1 x 1.
    widths = (3, 64, 160, 320, 640)
    convolutions = sum(9 * b * (a + 2 * b) + a * b for a, b in pairwise(widths))
    assert sum(p.numel() for p in net.parameters()) == convolutions + 8 * sum(widths[1:]) == 12424320
    block, a = net.blocks[0].double(), images(6, 3, 8, 8)

    def norm(b: Tensor) -> Tensor:
        return (b - b.mean((0, 2, 3), True)) / (b.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()

    with torch.no_grad():
        b = a
        for i, convolution in enumerate(block.convolutions):
            b = norm(conv2d(b, convolution.weight, padding=1))
            b = leaky_relu(b, 0.1) if i < 2 else b
        expected = max_pool2d(leaky_relu(b + norm(conv2d(a, block.shortcut.weight)), 0.1), 2)
        assert torch.allclose(block(a, 1, None), expected, atol=1e-10)


def test_drop_block_drops_whole_squares_at_its_rate() -> None:
    torch.manual_seed(0)
    a = torch.ones(40, 20, 12, 12)
    found = drop_block(a, 0.1, size=3)
    zero = found == 0
    # Squares overlap, so a little less than the rate; the mean is kept.
    assert 0.08 < zero.double().mean() < 0.1
    assert found.mean().item() == pytest.approx(1, abs=1e-4)
    # Every dropped number is in a square of 3 x 3 that is dropped as a whole.
    whole = -max_pool2d(-zero.double(), 3, stride=1)
    spread = max_pool2d(nn.functional.pad(whole, (2, 2, 2, 2)), 3, stride=1)
    assert torch.equal(spread.bool(), zero)
    # A map smaller than the square, as the last one of ResNet-12, is dropped or kept in whole.
    last = drop_block(torch.ones(100, 50, 4, 4), 0.1)
    assert ((last == 0).flatten(2).double().mean(2).unique() == torch.tensor([0.0, 1.0])).all()


def test_drop_block_is_off_in_evaluation() -> None:
    torch.manual_seed(0)
    net, batch = ResNet12(1, 16, drop=0.3), images(1, 4, 1, 16, 16).float()
    with torch.no_grad():
        assert not torch.equal(net(batch), net(batch))
        net.eval()
        assert torch.equal(net(batch), net(batch))


@pytest.mark.parametrize("kind", [CNN4, ResNet12])
def test_too_small_images_are_refused(kind: type[Backbone]) -> None:
    with pytest.raises(OptionError, match="at least 16 pixels"):
        kind(1, 15)
