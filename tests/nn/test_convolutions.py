"""Convolutions of pixels against those of the images that they stand for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from drqv2.errors import UserError
from drqv2.nn.convolutions import PixelConv2d, check_side


def images(channels: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (5, channels, 20, 17), dtype=torch.uint8, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_the_weights_are_those_of_centred_numbers(dtype: torch.dtype, bias: bool) -> None:
    conv = PixelConv2d(3, 4, 5, 2, bias=bias, centre=0.5).double()
    x = images(3, dtype)
    wanted = F.conv2d(x.double() / 255 - 0.5, conv.weight, conv.bias, 2)
    torch.testing.assert_close(conv(x), wanted)


def test_of_stacked_frames_they_are_those_of_changes() -> None:
    conv = PixelConv2d(6, 4, 5, 2, centre=0.5, frames=3).double()
    x = images(6, torch.uint8)
    first, second, newest = (x.double() / 255 - 0.5).chunk(3, 1)
    seen = torch.cat([4 * (second - first), 4 * (newest - second), newest], 1)
    torch.testing.assert_close(conv(x), F.conv2d(seen, conv.weight, conv.bias, 2))


def test_in_bf16_it_is_nearly_the_same() -> None:
    conv, x = PixelConv2d(6, 4, 5, 2, centre=0.5, frames=2), images(6, torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        maps = conv(x)
    assert maps.dtype == torch.bfloat16
    torch.testing.assert_close(maps.float(), conv(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("layers", [((4, 4), (3, 2), (3, 1)), ((8, 4), (4, 2)), ((3, 1),)])
def test_the_least_side_is_the_least_that_convolutions_take(layers: tuple[tuple[int, int], ...]) -> None:
    def out(side: int) -> int:
        for kernel, stride in layers:
            side = (side - kernel) // stride + 1 if side >= kernel else 0
        return side

    least = next(side for side in range(1, 100) if out(side) > 0)
    check_side((3, least, 200), layers, "agent.x=y")
    with pytest.raises(UserError) as refused:
        check_side((3, 200, least - 1), layers, "agent.x=y", " or less")
    wanted = f"agent.x=y: images of 200x{least - 1} are too small; set image_size to {least} or more or less"
    assert str(refused.value) == wanted
