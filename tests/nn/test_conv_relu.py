"""A convolution with bias and ReLU in one, against torch's layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drqv2.nn.conv_relu import conv_relu, gradient_before_relu
from tests.nn.interpreter import interpret

SHAPES = [(2, 32, 13, 11), (3, 5, 4, 7), (1, 32, 1, 1), (4, 16, 33, 9)]


def check_kernel(device: str) -> None:
    from drqv2.nn import conv_relu_triton

    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        gradient, out = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
        gradient, out = (x.contiguous(memory_format=torch.channels_last) for x in (gradient, out.relu()))
        passed, sums = conv_relu_triton.gradient_before_relu(gradient, out)
        assert torch.equal(passed, torch.where(out > 0, gradient, 0))
        assert passed.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(sums, passed.double().sum((0, 2, 3)).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_the_kernel_does_what_plain_code_does() -> None:
    check_kernel("cuda")


@pytest.mark.slow
def test_the_kernel_in_tritons_interpreter_does_what_plain_code_does() -> None:
    interpret("from tests.nn.test_conv_relu import check_kernel; check_kernel('cpu')")


def results(one: bool, dtype: torch.dtype, device: str, channels: int) -> list[Tensor]:
    """Return the maps of two layers and the gradients by images and parameters."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(channels, 32, 3, 2), nn.Conv2d(32, 32, 3)
    layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU()).to(device, torch.promote_types(dtype, torch.float32))
    pixels = (torch.rand(4, 16, 21, 21) - 0.5).bfloat16()
    pixels[:, channels:] = 0
    images = pixels.to(device, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    if one:
        maps = conv_relu(conv_relu(images, first), second)
    else:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            maps = layers(images[:, :channels])
    maps.square().mean().backward()
    gradients = [x.grad for x in (images, *layers.parameters()) if x.grad is not None]
    assert {gradient.dtype for gradient in gradients[1:]} == {torch.promote_types(dtype, torch.float32)}
    return [maps.detach(), gradients[0][:, :channels], *gradients[1:]]


@pytest.mark.parametrize("channels", [9, 16])
def test_it_is_the_layers_of_torch(channels: int) -> None:
    for got, wanted in zip(*(results(one, torch.float64, "cpu", channels) for one in (True, False)), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_bf16_it_is_as_near_as_autocast(device: str) -> None:
    exact = results(False, torch.float64, "cpu", 9)
    fused, plain = (results(one, torch.bfloat16, device, 9) for one in (True, False))
    for got, usual, wanted in zip(fused, plain, exact, strict=True):
        scale = wanted.norm()
        error, its = (float((x.double().cpu() - wanted).norm() / scale) for x in (got, usual))
        assert error < 1.2 * its < 0.05


def test_where_the_output_is_zero_nothing_passes() -> None:
    out = torch.tensor([0.0, 1.0, 2.0, 0.0]).view(2, 2, 1, 1)
    passed, sums = gradient_before_relu(torch.full((2, 2, 1, 1), 3.0), out)
    assert passed.flatten().tolist() == [0, 3, 3, 0]
    assert sums.tolist() == [3, 3]
